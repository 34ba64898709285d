"""Sweeps: runs of one config with varied settings and seeds, and their comparison."""

from fedwild.results.sweeps.axes import Axes, read_axes
from fedwild.results.sweeps.plan import Sweep, SweepRun, planned_sweep
from fedwild.results.sweeps.record import Record
from fedwild.results.sweeps.running import check_sweep, compared_sweep, run_sweep, write_reports, write_tables

__all__ = [
    "Axes",
    "Record",
    "Sweep",
    "SweepRun",
    "check_sweep",
    "compared_sweep",
    "planned_sweep",
    "read_axes",
    "run_sweep",
    "write_reports",
    "write_tables",
]
