"""Comparing runs: one row for runs that differ only in their seed, and tests of the differences between rows."""

from fedwild.results.comparison.compared import Comparison, compare, comparison
from fedwild.results.comparison.grouping import Group, labelled
from fedwild.results.comparison.reading import FinishedRun, find_runs, read_run
