"""The report of a run: one HTML page with its settings, figures, mistakes and costs."""

from fedwild.results.report.page import write_report
