"""Sweeps: one config, varied over settings and seeds, run to run, and compared."""

from fedwild.sweeps.axes import Axes, merged, read_axes
from fedwild.sweeps.plan import Sweep, SweepRun, planned_sweep
from fedwild.sweeps.record import Record
from fedwild.sweeps.running import check_sweep, compared_sweep, run_sweep, write_reports, write_tables

__all__ = [
    "Axes",
    "Record",
    "Sweep",
    "SweepRun",
    "check_sweep",
    "compared_sweep",
    "merged",
    "planned_sweep",
    "read_axes",
    "run_sweep",
    "write_reports",
    "write_tables",
]
