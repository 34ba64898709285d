"""Runs side by side: one row for runs that differ in their seed only, and what their differences are worth."""

from fedwild.results.comparison.compared import Comparison, compare, comparison
from fedwild.results.comparison.grouping import Group, labelled
from fedwild.results.comparison.reading import FinishedRun, find_runs, read_run

__all__ = ["Comparison", "FinishedRun", "Group", "compare", "comparison", "find_runs", "labelled", "read_run"]
