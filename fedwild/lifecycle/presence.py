"""Which clients a run has, which of them are present in a round, and which join during the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedwild.contract import Draw, Rng, Step
from fedwild.contract.claims import Claims
from fedwild.contract.engine import Presence
from fedwild.contract.schedule import first_rounds
from fedwild.core.errors import RoundFailed
from fedwild.lifecycle.ledger import Ledger
from fedwild.runs.events import EventLog
from fedwild.runs.experiment import Experiment


class Attendance:
    """The clients of a run. Sites that connect by themselves join it."""

    def __init__(
        self, experiment: Experiment, steps: Sequence[Step], ledger: Ledger, log: EventLog, folder: Path
    ) -> None:
        self._experiment, self._steps, self._ledger = experiment, steps, ledger
        self._log, self._folder = log, folder
        clients = experiment.split.clients
        self.names = tuple(sorted(client.name for client in clients))
        self.loads = {client.name: len(client.train) + len(client.unlabelled) for client in clients}
        """The number of samples that each client trains on."""
        self._arrivals = self._first_rounds(experiment.split.newcomers)
        self._waiting: set[str] = set()
        for name in ledger.joined:
            self._enrol(name)

    @property
    def newcomers(self) -> tuple[str, ...]:
        """The newcomers of the settings, then the sites that connected as newcomers."""
        joined = (name for name, row in self._ledger.joined.items() if row["newcomer"])
        return (*self._experiment.split.newcomers, *joined)

    @property
    def claims(self) -> Claims:
        """What clients may claim: at most the samples that they have, or as sites declared."""
        split, federation = self._experiment.split, self._experiment.config.federation
        sizes = {c.name: len(c.train) + len(c.validation) + len(c.unlabelled) for c in split.clients}
        here = {} if self._experiment.config.data.at_sites else sizes
        return Claims({**here, **self._ledger.declared}, federation.max_weight)

    def present(self, connected: Mapping[str, Presence] | None, step: Step) -> list[str]:
        """Return the clients that have arrived by now and are connected; None stands for all clients."""
        for name, who in (connected or {}).items():
            self._ledger.declared.setdefault(name, who.samples)
        for name in sorted((connected or {}).keys() - set(self.names)):
            assert connected is not None
            self._add(connected[name], step)
        begin = self._steps[0].index
        arrived = [name for name in self.names if self._arrivals.get(name, begin) <= step.index]
        if connected is None:
            return arrived
        needed, here = self._experiment.config.federation.min_clients, connected.keys() & set(self.names)
        if len(here) < needed:
            raise RoundFailed(
                f"round {step.index + 1} ({step.phase}): {len(here)} sites are connected, federation.min_clients "
                f"= {needed}. Run `fedwild resume {self._folder}` once they are connected."
            )
        return [name for name in arrived if name in here]

    def _first_rounds(self, newcomers: Sequence[str]) -> dict[str, int]:
        """Return the first round of each client that is not present from the start."""
        chosen = self._experiment.config.federation.arrivals
        return first_rounds(self._experiment.method, newcomers, chosen, self._steps)

    def _add(self, who: Presence, step: Step) -> None:
        """Add a client that connected by itself. A newcomer waits for another run if no stage of this one is left."""
        when = self._first_rounds((*self.newcomers, who.name)).get(who.name) if who.newcomer else None
        if when is not None and not step.index <= when <= self._steps[-1].index:
            if who.name not in self._waiting:
                self._waiting.add(who.name)
                self._log.write("wait", index=step.index, client=who.name)
                who.notify("this run has no stage left to welcome this site: it waits to be welcomed into the next run")
            return
        self._ledger.joined[who.name] = {"since": step.index, "newcomer": who.newcomer, "identity": who.identity}
        self._enrol(who.name)
        about = {"newcomer": who.newcomer, "samples": who.samples, "classes": list(who.classes)}
        self._log.write("join", index=step.index, client=who.name, **about)

    def _enrol(self, name: str) -> None:
        """Add a joined client to the names; a newcomer arrives in the stage that welcomes it."""
        self.names, self.loads[name] = tuple(sorted({*self.names, name})), 0
        if self._ledger.joined[name]["newcomer"]:
            arrivals = self._first_rounds(self.newcomers)
            self._arrivals |= {name: arrivals[name]} if name in arrivals else {}


def draw_share(share: float, rng: Rng) -> Draw:
    """Return the function that draws a random share of some clients, at least one."""

    def draw(names: Sequence[str]) -> Sequence[str]:
        count = max(1, round(share * len(names)))
        if count >= len(names):
            return names
        chosen = rng.numpy("participants").choice(len(names), size=count, replace=False)
        return [names[i] for i in sorted(chosen)]

    return draw


def draw_independently(share: float, rng: Rng) -> Draw:
    """Return the function that draws each client with probability `share` (Poisson sampling); it may draw none."""

    def draw(names: Sequence[str]) -> Sequence[str]:
        drawn = rng.numpy("participants").random(len(names)) < share
        return [name for name, taken in zip(names, drawn, strict=True) if taken]

    return draw
