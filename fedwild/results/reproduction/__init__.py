"""Reproducing the papers' tables: which runs they need, and our figures beside the paper's."""

from fedwild.results.reproduction.outcome import Outcome, outcomes_of, result_table
from fedwild.results.reproduction.plan import Entry, Plan, plan
