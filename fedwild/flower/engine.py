"""The engine that carries jobs to real sites: letters out, answers in, in the sites' own time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedwild.config import Config
from fedwild.data import ClassRoles
from fedwild.discretion import told_outside
from fedwild.engines.base import Answer, Job, Presence
from fedwild.engines.local import LocalEngine
from fedwild.engines.site import Site
from fedwild.flower.courier import Courier, Delivery
from fedwild.flower.desk import Setup, program, sent_config
from fedwild.flower.letters import Letter
from fedwild.flower.roster import LOOK_SECONDS, Roster

POLL_SECONDS = 0.5
DOUBT_SECONDS = 60.0
"""A node that has been busy for so long is asked who it is. It answers one letter after the other, so an answer to this
one shows that it was started anew and has forgotten the job."""


@dataclass
class Errand:
    """A job that is under way."""

    job: Job
    node: int
    begun: float = field(default_factory=time.monotonic)
    doubt: str | None = None
    """The letter that asks a long-busy node who it is."""


class FlowerEngine:
    """Runs jobs at sites; those of no client in particular, on the coordinator's own test data, run here."""

    def __init__(self, site: Site, config: Config, run: str, courier: Courier, roster: Roster) -> None:
        self._here = LocalEngine(site, 0)
        self._courier, self._roster, self._run = courier, roster, run
        self._settings, self._min_clients = config.engine, config.federation.min_clients
        self._members = {client.name for client in site.split.clients} - set(site.split.newcomers)
        self._grows, self._spool = site.method.grows, site.spool
        roles = ClassRoles(site.split.known, site.split.novel, site.split.unknown)
        self._setups = {
            newcomer: Setup(sent_config(config), roles, site.task.input_shape, newcomer).to_json()
            for newcomer in (False, True)
        }

    def present(self) -> Mapping[str, Presence]:
        """The sites that are connected; too few are waited for."""
        self._roster.gather(lambda: len(self._roster.seats) >= self._min_clients, self._settings.wait)
        return {name: self._presence(name) for name in self._roster.seats}

    def _presence(self, name: str) -> Presence:
        seat = self._roster.seats[name]

        def tell(text: str) -> None:
            self._roster.say(name, text)

        return Presence(name, seat.facts.classes, seat.facts.samples, self._is_newcomer(name), seat.identity, tell)

    def _is_newcomer(self, name: str) -> bool:
        """Where newcomers are welcomed, that is who was not there when the run began."""
        return self._grows and name not in self._members

    def run(self, jobs: Iterable[Job], started: Callable[[Job], None] = lambda job: None) -> Iterator[Answer]:
        under_way: dict[str, Errand] = {}
        for job in jobs:
            started(job)
            if job.client is None:
                yield from self._here.run([job])
            elif job.client not in self._roster.seats:
                yield Answer(job, error="its site is not connected")
            else:
                node = self._roster.seats[job.client].node
                under_way[self._courier.send(node, self._letter(job))] = Errand(job, node)
        looked = time.monotonic()
        while under_way:
            for delivery in self._courier.collect(under_way):
                yield self._answer(under_way.pop(delivery.id), delivery)
            if time.monotonic() - looked > LOOK_SECONDS:
                self._roster.look()
                looked = time.monotonic()
                for key, reason in list(self._lost(under_way)):
                    yield Answer(under_way.pop(key).job, error=reason)
            if under_way:
                time.sleep(POLL_SECONDS)

    def _letter(self, job: Job) -> Letter:
        assert job.client is not None
        fields = {**vars(job), "step": vars(job.step)}
        setup = self._setups[self._is_newcomer(job.client)]
        head = {"kind": "job", **program(), "run": self._run, "setup": setup, "job": fields}
        return Letter(head, Path(job.payload).read_bytes())

    def _lost(self, under_way: Mapping[str, Errand]) -> Iterator[tuple[str, str]]:
        """The errands of which nothing will come any more, and why."""
        for key, errand in under_way.items():
            seat, waited = self._roster.seats.get(errand.job.client or ""), time.monotonic() - errand.begun
            if not self._roster.connected(errand.node):
                yield key, "its site is not connected any more"
            elif seat is not None and seat.node != errand.node:
                yield key, "its site was started anew"
            elif self._settings.answer_within is not None and waited > self._settings.answer_within:
                yield key, f"its site did not answer within engine.answer_within = {self._settings.answer_within:g} s"
            elif waited > DOUBT_SECONDS and self._forgot(errand):
                yield key, "its site was started anew and has forgotten the job"

    def _forgot(self, errand: Errand) -> bool:
        """Whether a node that should be busy answers another letter."""
        if errand.doubt is None:
            errand.doubt = self._roster.greet_again(errand.node)
            return False
        return bool(self._courier.collect([errand.doubt]))

    def _answer(self, errand: Errand, delivery: Delivery) -> Answer:
        """A site's letter as an answer, its body appended to a file of the round."""
        job, letter = errand.job, delivery.letter
        if letter is None:
            return Answer(job, error=str(delivery.error))
        told = said(letter.head)
        if told["error"] is not None:
            return Answer(job, error=told["error"], seconds=told["seconds"])
        if told["state"] not in (job.state, job.step.index):
            return Answer(job, error="bad reply: it names a state that this round cannot leave")
        if len(letter.body) > self._settings.max_reply_mb * 1e6:
            return Answer(job, error=f"reply of {len(letter.body)} bytes is larger than engine.max_reply_mb allows")
        path = self._spool / f"up-{job.step.index}-{job.kind}-sites"
        try:
            with open(path, "ab") as file:
                offset = file.tell()
                file.write(letter.body)
        except OSError as error:
            return Answer(job, error=str(error), disk_failed=True)
        return Answer(job, str(path), offset, len(letter.body), told["seconds"], told["state"], told["notes"])

    def close(self) -> None:
        self._here.close()


def said(head: Mapping[str, Any]) -> dict[str, Any]:
    """What a site's answer says beside its body, where it may be believed."""
    seconds, state, notes, error = (head.get(key) for key in ("seconds", "state", "notes", "error"))
    if head.get("kind") != "answer":
        error = head.get("reason", "its site sent something else than an answer")
    return {
        "seconds": float(seconds) if isinstance(seconds, (int, float)) and 0 <= seconds < 1e9 else 0.0,
        "state": state if isinstance(state, int) and not isinstance(state, bool) and 0 <= state < 2**31 else None,
        "notes": [told_outside(str(note)) for note in notes[:20]] if isinstance(notes, list) else [],
        "error": None if error is None else told_outside(str(error)),
    }
