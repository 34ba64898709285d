"""The engine that sends jobs to real sites and collects their answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedwild.contract import Welcomes
from fedwild.contract.engine import Answer, Job, Presence
from fedwild.data import ClassRoles
from fedwild.engines.executor import Executor
from fedwild.engines.local import LocalEngine
from fedwild.runs.config import Config
from fedwild.sites.envelope import Envelope
from fedwild.sites.redaction import redact
from fedwild.sites.requests import Setup, sent_config, version_fields
from fedwild.sites.roster import REFRESH_SECONDS, Roster
from fedwild.sites.transport import Delivery, Transport

POLL_SECONDS = 0.5
PROBE_SECONDS = 60.0
"""A node that has been busy for so long gets a second request. Since a node answers one request after the other, an
answer to the second one shows that the node was restarted and has lost the job."""


@dataclass
class PendingJob:
    """A job that was sent to a site and is not answered yet."""

    job: Job
    node: int
    sent: float = field(default_factory=time.monotonic)
    probe: str | None = None
    """The id of the second request, once it was sent."""


class FlowerEngine:
    """Runs clients' jobs at their sites, and jobs on the coordinator's own test data in this process."""

    def __init__(self, executor: Executor, config: Config, run: str, transport: Transport, roster: Roster) -> None:
        self._local = LocalEngine(executor, 0)
        self._transport, self._roster, self._run = transport, roster, run
        self._settings, self._min_clients = config.engine, config.federation.min_clients
        split = executor.split
        self._members = {client.name for client in split.clients} - set(split.newcomers)
        self._welcomes, self._spool = isinstance(executor.method, Welcomes), executor.spool
        roles = ClassRoles(split.known, split.novel, split.unknown)
        self._setups = {
            newcomer: Setup(sent_config(config), roles, executor.task.input_shape, newcomer).to_json()
            for newcomer in (False, True)
        }

    def present(self) -> Mapping[str, Presence]:
        """Return the connected sites, after waiting for `federation.min_clients` of them."""
        self._roster.wait_until(lambda: len(self._roster.sites) >= self._min_clients, self._settings.wait)
        return {name: self._presence(name) for name in self._roster.sites}

    def _presence(self, name: str) -> Presence:
        site = self._roster.sites[name]

        def notify(text: str) -> None:
            self._roster.notify(name, text)

        return Presence(name, site.facts.classes, site.facts.samples, self._is_newcomer(name), site.identity, notify)

    def _is_newcomer(self, name: str) -> bool:
        """Whether the method welcomes this client: it was not a member when the run started."""
        return self._welcomes and name not in self._members

    def run(self, jobs: Iterable[Job], started: Callable[[Job], None] = lambda job: None) -> Iterator[Answer]:
        pending: dict[str, PendingJob] = {}
        for job in jobs:
            started(job)
            if job.client is None:
                yield from self._local.run([job])
            elif job.client not in self._roster.sites:
                yield Answer(job, error="its site is not connected")
            else:
                node = self._roster.sites[job.client].node
                pending[self._transport.send(node, self._request(job))] = PendingJob(job, node)
        refreshed = time.monotonic()
        while pending:
            for delivery in self._transport.collect(pending):
                yield self._answer(pending.pop(delivery.id).job, delivery)
            if time.monotonic() - refreshed > REFRESH_SECONDS:
                self._roster.refresh()
                refreshed = time.monotonic()
                for key, reason in list(self._lost(pending)):
                    yield Answer(pending.pop(key).job, error=reason)
            if pending:
                time.sleep(POLL_SECONDS)

    def _request(self, job: Job) -> Envelope:
        assert job.client is not None
        fields = {**vars(job), "step": vars(job.step)}
        setup = self._setups[self._is_newcomer(job.client)]
        head = {"kind": "job", **version_fields(), "run": self._run, "setup": setup, "job": fields}
        return Envelope(head, Path(job.payload).read_bytes())

    def _lost(self, pending: Mapping[str, PendingJob]) -> Iterator[tuple[str, str]]:
        """Yield the jobs that will not be answered any more, with the reason."""
        for key, lost in pending.items():
            site, waited = self._roster.sites.get(lost.job.client or ""), time.monotonic() - lost.sent
            if not self._roster.is_connected(lost.node):
                yield key, "its site disconnected"
            elif site is not None and site.node != lost.node:
                yield key, "its site was restarted"
            elif self._settings.answer_within is not None and waited > self._settings.answer_within:
                yield key, f"its site did not answer within engine.answer_within = {self._settings.answer_within:g} s"
            elif waited > PROBE_SECONDS and self._answers_probe(lost):
                yield key, "its site was restarted and has lost the job"

    def _answers_probe(self, pending: PendingJob) -> bool:
        """Whether a node that should be busy answers another request."""
        if pending.probe is None:
            pending.probe = self._roster.greet(pending.node)
            return False
        return bool(self._transport.collect([pending.probe]))

    def _answer(self, job: Job, delivery: Delivery) -> Answer:
        """Return a site's answer; its body is appended to a file of the round."""
        envelope = delivery.envelope
        if envelope is None:
            return Answer(job, error=str(delivery.error))
        head = checked_head(envelope.head)
        if head["error"] is not None:
            return Answer(job, error=head["error"], seconds=head["seconds"])
        if head["state"] not in (job.state, job.step.index):
            return Answer(job, error="bad reply: it names a state version that this round cannot produce")
        if len(envelope.body) > self._settings.max_reply_mb * 1e6:
            return Answer(job, error=f"reply of {len(envelope.body)} bytes is larger than engine.max_reply_mb allows")
        path = self._spool / f"up-{job.step.index}-{job.kind}-sites"
        try:
            with open(path, "ab") as file:
                offset = file.tell()
                file.write(envelope.body)
        except OSError as error:
            return Answer(job, error=str(error), disk_failed=True)
        return Answer(job, str(path), offset, len(envelope.body), head["seconds"], head["state"], head["notes"])

    def close(self) -> None:
        self._local.close()


def checked_head(head: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an answer's head, with defaults in place of invalid values."""
    seconds, state, notes, error = (head.get(key) for key in ("seconds", "state", "notes", "error"))
    if head.get("kind") != "answer":
        error = head.get("reason", "its site did not send an answer")
    return {
        "seconds": float(seconds) if isinstance(seconds, (int, float)) and 0 <= seconds < 1e9 else 0.0,
        "state": state if isinstance(state, int) and not isinstance(state, bool) and 0 <= state < 2**31 else None,
        "notes": [redact(str(note)) for note in notes[:20]] if isinstance(notes, list) else [],
        "error": None if error is None else redact(str(error)),
    }
