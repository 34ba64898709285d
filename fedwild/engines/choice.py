"""The engine that a run's settings name, and its number of workers."""

from __future__ import annotations

import os
from collections.abc import Callable

from fedwild.contract.engine import Engine
from fedwild.engines.executor import Executor
from fedwild.engines.local import LocalEngine
from fedwild.runs.settings import EngineSettings

Connect = Callable[[Executor], Engine]
"""Makes an engine for the clients of an executor, or for the real sites that this process coordinates."""


def worker_count(wanted: int | None) -> int:
    """Return the wanted number of workers, or one per core that this process may use."""
    if wanted is not None:
        return wanted
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def engine_of(settings: EngineSettings) -> Connect:
    """Return a function that makes the engine once the data is loaded. A missing package or cluster is reported now."""
    workers = worker_count(settings.workers)
    if settings.name == "ray":
        from fedwild.engines.ray import RayEngine
        from fedwild.engines.ray_cluster import check_address

        check_address(settings.address)
        return lambda executor: RayEngine(executor, workers, settings.address)
    return lambda executor: LocalEngine(executor, workers)
