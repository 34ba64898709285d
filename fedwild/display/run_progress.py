"""The progress of a run and the time left, from its events."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fedwild.display.forecast import RoundTime, Underway, run_seconds_left

Clock = Callable[[], float]


class RunProgress:
    """Listens to a run's events."""

    def __init__(self, now: Clock = time.monotonic) -> None:
        self._now = now
        self.rounds: int | None = None
        """The number of rounds of the whole run, once it is known."""
        self.rounds_done = 0
        self.clients = 0
        """The number of clients of the current round."""
        self.clients_done = 0
        self._doing = "preparing"
        self._phase: str | None = None
        self._ahead: list[str] = []
        self._times: list[RoundTime] = []
        self._begun = self._replied = now()

    def __call__(self, event: dict[str, Any]) -> None:
        handler = getattr(self, "_on_" + event["event"].replace("-", "_"), None)
        if handler is not None:
            handler(event)

    @property
    def text(self) -> str:
        """The current activity."""
        if self._phase is None:
            return self._doing
        clients = f" {self.clients_done}/{self.clients}" if self.clients else ""
        return f"round {self.rounds_done + 1}/{self.rounds} {self._phase}{clients}: {self._doing}"

    @property
    def done(self) -> float:
        """Completed rounds, plus the share of the current round's clients that have replied."""
        return self.rounds_done + (self._share if self._phase is not None else 0.0)

    def seconds_left(self) -> float | None:
        """Return the time left, or None if it is unknown."""
        now = None if self._phase is None else Underway(self._phase, self._share, self._replied - self._begun)
        left = run_seconds_left(self._times, now, self._ahead)
        # The estimate is as of the last reply.
        return None if left is None else max(0.0, left - (self._now() - self._replied))

    @property
    def _share(self) -> float:
        return self.clients_done / self.clients if self.clients else 0.0

    def _on_start(self, event: dict[str, Any]) -> None:
        self.rounds, self.rounds_done = event["rounds"], event["next_index"]
        self._ahead = [name for name, rounds in event["phases"] for _ in range(rounds)]
        self._begun = self._replied = self._now()
        self._doing = "starting"

    _on_resume = _on_start

    def _on_round_start(self, event: dict[str, Any]) -> None:
        self.clients, self.clients_done = event["clients"], 0
        self._phase, self._ahead = event["phase"], self._ahead[1:]
        self._doing = "starting"

    def _on_client_start(self, event: dict[str, Any]) -> None:
        self._doing = f"{event['client']} trains"

    def _on_client(self, event: dict[str, Any]) -> None:
        self.clients_done, self._replied = self.clients_done + 1, self._now()
        self._doing = f"{event['client']} is done"

    _on_client_failed = _on_client

    def _on_merging(self, event: dict[str, Any]) -> None:
        self._doing = "merging"

    def _on_measuring(self, event: dict[str, Any]) -> None:
        self._doing = "measuring"

    def _on_goodbye(self, event: dict[str, Any]) -> None:
        self._doing = "disconnecting sites"

    def _on_skip(self, event: dict[str, Any]) -> None:
        self._ahead = self._ahead[1:]
        self._on_round(event)

    def _on_round(self, event: dict[str, Any]) -> None:
        """Record the duration of the round; the time for saving it counts for the next one."""
        now = self._now()
        self._times.append(RoundTime(event["phase"], self._replied - self._begun, now - self._replied))
        self._begun = self._replied = now
        self.rounds_done, self._phase, self._doing = event["index"] + 1, None, "saving"
