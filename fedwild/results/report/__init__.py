"""A run's report: one HTML page that tells what was run, how it went, and what the model does with samples."""

from fedwild.results.report.writing import write_report

__all__ = ["write_report"]
