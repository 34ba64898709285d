"""The engine that a run's settings name."""

from __future__ import annotations

from collections.abc import Callable

from fedwild.contract.engine import Engine
from fedwild.engines.executor import Executor
from fedwild.engines.local import LocalEngine
from fedwild.engines.workers import worker_count
from fedwild.runs.settings import EngineSettings

Connect = Callable[[Executor], Engine]
"""Makes an engine for the clients of a executor, or for real sites that this one coordinates."""


def engine_of(settings: EngineSettings) -> Connect:
    """How to make the engine, once the data is there; what cannot be had shows now."""
    workers = worker_count(settings.workers)
    if settings.name == "ray":
        from fedwild.engines.ray import RayEngine
        from fedwild.engines.ray_cluster import check_address

        check_address(settings.address)
        return lambda executor: RayEngine(executor, workers, settings.address)
    return lambda executor: LocalEngine(executor, workers)
