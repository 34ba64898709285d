"""Which runs may use a site: the settings of each run are recorded when it first asks, and may need approval.

    permits/ID/permit.json      what the run asked for, written by the site, and how many jobs were answered
    permits/ID/decision.json    the operator's decision, written by `fedwild site approve` or at the terminal

A decision holds for exactly the recorded settings.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import select
import termios
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from fedwild.core.errors import UserError
from fedwild.core.storage import write_atomically
from fedwild.core.text import clean, duration
from fedwild.sites.policy import Policy
from fedwild.sites.review import Refused

POLL_SECONDS = 0.5
MAX_ANSWERS = 3
"""How often a job of each kind is answered for each planned round: a resumed run repeats rounds."""
Notify = Callable[[str], None]


@dataclass
class Permit:
    """What a run asked for when it first came."""

    run: str
    settings: str
    """The SHA-256 of its config."""
    config: dict[str, Any]
    first: int
    """The index of the first round of its plan."""
    asked: bool = False
    """Whether the operator was asked."""
    answers: dict[str, int] = field(default_factory=dict)
    """The number of answered jobs by kind."""

    def summary(self) -> str:
        """Return what the run does, for the operator."""
        method, model = self.config["method"], self.config["model"]
        plain = (f"{key} {value}" for key, value in method.items() if key in ("rounds", "epochs", "batch_size"))
        return clean(f"method {method['name']} ({', '.join(plain)}), network {model['name']}")


@dataclass
class Permits:
    """The permits of a site."""

    folder: Path
    """Has a folder for each run."""
    policy: Policy
    notify: Notify
    terminal: TextIO | None = None
    """Where the operator can answer."""

    def admit(self, run: str, config: Mapping[str, Any], first: int) -> Permit:
        """Return the permit of a run, after the operator's approval if the policy asks for it."""
        permit = self._read(run) or Permit(run, digest_of(config), dict(config), first)
        # Not by digest: the settings of a resumed run may have 1 in place of 1.0.
        if permit.config != config:
            raise Refused(f"a change of the settings of run {run}", "a run must keep the settings of its first request")
        if permit.first != first:
            raise Refused(f"a change of the plan of run {run}", "a run must keep the rounds of its first request")
        if self.policy.approve == "ask" and decision_on(self.folder, permit) is not True:
            permit.asked = True
            self._write(permit)
            self._wait(permit)
        return permit

    def count(self, permit: Permit, kind: str, rounds: int) -> None:
        """Record that a job is answered. Refuse it if the run has had more answers than its plan needs."""
        done = permit.answers.get(kind, 0)
        if done >= MAX_ANSWERS * rounds:
            rule = f"its plan has {rounds} rounds, and each may be repeated {MAX_ANSWERS - 1} times"
            raise Refused(f"another {kind} job of run {permit.run}", rule)
        permit.answers[kind] = done + 1
        self._write(permit)

    def _wait(self, permit: Permit) -> None:
        """Wait for the operator. Raise if the run is refused, or not approved in time."""
        seconds = self.policy.approve_within
        hint = "type yes or no, or " if self.terminal else ""
        self.notify(
            f"run {permit.run} asks to use this site: {permit.summary()}. Within {duration(seconds)}, {hint}use "
            f"`fedwild site approve {permit.run}`; {self._file(permit.run)} has all its settings"
        )
        if self.terminal is not None:
            # What was typed before the question is not an answer to it. Only terminals can be flushed.
            with contextlib.suppress(termios.error):
                termios.tcflush(self.terminal, termios.TCIFLUSH)
        end = time.monotonic() + seconds
        while (decision := decision_on(self.folder, permit)) is None:
            if time.monotonic() > end:
                raise Refused(f"run {permit.run}", "it was not approved in time")
            typed = self._read_terminal()
            if typed is not None:
                decide(self.folder, permit.run, typed)
        if not decision:
            raise Refused(f"run {permit.run}", "its operator refused it")
        self.notify(f"run {permit.run} is approved")

    def _read_terminal(self) -> bool | None:
        """Wait a moment for a line at the terminal. Return whether it says yes; None if there is none."""
        if self.terminal is None:
            time.sleep(POLL_SECONDS)
            return None
        ready, _, _ = select.select([self.terminal], [], [], POLL_SECONDS)
        if not ready:
            return None
        typed = self.terminal.readline()
        if not typed:
            self.terminal = None
        return {"yes": True, "y": True, "no": False, "n": False}.get(typed.strip().lower())

    def _file(self, run: str) -> Path:
        return self.folder / run / "permit.json"

    def _read(self, run: str) -> Permit | None:
        return read_permit(self._file(run)) if self._file(run).exists() else None

    def _write(self, permit: Permit) -> None:
        self._file(permit.run).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._file(permit.run), (json.dumps(asdict(permit), indent=2) + "\n").encode())


def digest_of(config: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a run's settings."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def read_permit(path: Path) -> Permit:
    """Return the permit in a file."""
    try:
        permit = Permit(**json.loads(path.read_text(encoding="utf-8")))
        assert isinstance(permit.first, int) and isinstance(permit.answers, dict)
        permit.summary()
        return permit
    except (ValueError, TypeError, KeyError, AssertionError) as error:
        raise UserError(f"{str(path)!r} is damaged: delete it to review the run again.") from error


def decision_on(folder: Path, permit: Permit) -> bool | None:
    """Return the operator's decision on a run with these settings; None if there is none."""
    try:
        decision = json.loads((folder / permit.run / "decision.json").read_text(encoding="utf-8"))
        return decision["approved"] is True if decision["settings"] == permit.settings else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def decide(folder: Path, run: str, approved: bool) -> Permit:
    """Approve or refuse a run that has asked."""
    permit = read_permit(folder / run / "permit.json")
    decision = {"run": run, "settings": permit.settings, "approved": approved}
    write_atomically(folder / run / "decision.json", (json.dumps(decision) + "\n").encode())
    return permit


def waiting_runs(folders: list[Path]) -> list[tuple[Path, Permit]]:
    """Return the runs without a decision in the permit folders of some sites."""
    files = [file for folder in folders for file in sorted(folder.glob("*/permit.json"))]
    permits = [(file.parent.parent, read_permit(file)) for file in files]
    return [(folder, permit) for folder, permit in permits if permit.asked and decision_on(folder, permit) is None]
