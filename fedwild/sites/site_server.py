"""One site: its data, the durable state of its client, and its answers to the coordinator's requests.

Every request holds everything about its run, so a site can be stopped and restarted at any time. It sends replies,
figures, class names and counts, as far as its policy allows, and records in its audit log what it sent. Samples, and
answers for single samples, never leave it.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import torch

from fedwild.contract import Task
from fedwild.contract.engine import SECURE_KINDS, Job
from fedwild.core.errors import BadReply, UserError
from fedwild.core.payload import Payload
from fedwild.core.storage import make_folder, write_atomically
from fedwild.core.text import clean
from fedwild.core.trust import only
from fedwild.data import Dataset, load, site_split
from fedwild.engines.executor import Executor
from fedwild.evaluation.outcomes import check_report
from fedwild.openset.sketch import from_payload
from fedwild.runs.at_sites import SiteFacts
from fedwild.runs.checkpoints import state_file, version_of
from fedwild.runs.config import resolve
from fedwild.runs.experiment import usable_device
from fedwild.sites import review
from fedwild.sites.audit import AuditLog, describe_exchange
from fedwild.sites.envelope import Envelope
from fedwild.sites.own_data import only_classes, with_remaining_unknown
from fedwild.sites.permits import Permit, Permits
from fedwild.sites.policy import Policy
from fedwild.sites.redaction import redact
from fedwild.sites.requests import (
    ACTIVITIES,
    Setup,
    check_version,
    first_index,
    job_of,
    own_settings,
    run_of,
    version_fields,
)
from fedwild.sites.time_limit import TimeExceeded, time_limit

LOADING_SETTINGS = ("size", "channels", "test_fraction", "train_samples", "test_samples", "domains")
"""The settings that determine what is read from a site's files."""
KEPT_STATES = 2
"""The number of state versions that a client keeps: as many as a run keeps checkpoints."""
MAX_NOTES = 20
NOT_ALLOWED = "which is not in import_paths of this site's policy"


@dataclass
class SiteServer:
    """Answers the coordinator's requests for the one client of this site."""

    name: str
    data: str
    folder: Path
    """Holds the site's identity, its audit log, the permits of runs, and its client's state, one folder per run."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """The federation's name for each class that has another name here."""
    device: str = "cpu"
    notify: Callable[[str], None] = lambda text: None
    """Shows a message to the site's operator."""
    policy: Policy = field(default_factory=Policy)
    terminal: TextIO | None = None
    """Where the operator can approve runs."""
    _dataset: tuple[str, Dataset] | None = field(default=None, repr=False)
    _executor: tuple[str, Executor] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.audit = AuditLog(self.folder / "audit.jsonl")
        self._permits = Permits(self.folder / "permits", self.policy, self.notify, self.terminal)

    def answer(self, request: Envelope) -> Envelope:
        """Return the answer to any request, once it is in the audit log."""
        reply = self._answer(request)
        try:
            self.audit.append(describe_exchange(request, reply))
        except (OSError, UserError) as problem:
            self.notify(f"a request was not answered: the audit log cannot be written: {problem}")
            return Envelope({"kind": "rejected", "reason": "the audit log of this site cannot be written"})
        return reply

    def _answer(self, request: Envelope) -> Envelope:
        """Return the answer to a request. A failure becomes one sentence; its details are shown only at the site."""
        handlers = {"hello": self._hello, "job": self._job, "rejected": self._show, "notice": self._show}
        try:
            check_version(request.head, "the coordinator", "this site")
            handler = handlers.get(str(request.head.get("kind")))
            if handler is None:
                raise BadReply(f"unknown request kind {str(request.head.get('kind'))[:40]!r}")
            with only(self.policy.import_paths, NOT_ALLOWED):
                return handler(request)
        except review.Refused as problem:
            self.notify(f"refused: {problem}")
            return Envelope({"kind": "rejected", "reason": redact(problem.short)})
        except (UserError, BadReply) as problem:
            self.notify(f"rejected a request: {problem}")
            return Envelope({"kind": "rejected", "reason": redact(str(problem))})
        except (Exception, SystemExit) as problem:
            # A user's own module may try to end the process; the site keeps running.
            self.notify(f"failed: {type(problem).__name__}: {problem}")
            return Envelope({"kind": "rejected", "reason": redact(f"{type(problem).__name__}: {problem}")})

    def _limited(self, work: Callable[[], Any]) -> Any:
        """Return the result of some work, if it ends within the time that the policy allows."""
        try:
            with time_limit(self.policy.max_job_seconds):
                return work()
        except TimeExceeded:
            rule = f"max_job_seconds = {self.policy.max_job_seconds:g}"
            raise review.Refused("a request that takes too long", rule) from None

    # --- identity and data ----------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        """Distinguishes this installation from another one with the same name. Created once."""
        path = self.folder / "identity.json"
        if not path.exists():
            make_folder(self.folder)
            write_atomically(path, json.dumps({"identity": uuid.uuid4().hex}).encode())
        try:
            return str(json.loads(path.read_text())["identity"])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{str(path)!r} is damaged: delete it to give this site a new identity.") from error

    def _hello(self, request: Envelope) -> Envelope:
        """Return the name, the classes, the shape and the number of samples."""
        seed = request.head.get("seed")
        if not isinstance(seed, int):
            raise BadReply("the request has no seed")
        dataset: Dataset = self._limited(lambda: self.dataset(request.head.get("data"), seed))
        present = torch.unique(torch.cat([dataset.y_train, dataset.y_test])).tolist()
        facts = SiteFacts(
            self.name,
            tuple(sorted({dataset.classes[i] for i in present})),
            len(dataset.y_train),
            dataset.input_shape,
            str(dataset.x_train.dtype).removeprefix("torch."),
        )
        self.notify("the coordinator asked for this site's name and classes")
        about = {"identity": self.identity, "torch": torch.__version__, "facts": facts.to_json()}
        return Envelope({"kind": "hello", **version_fields(), **about})

    def _show(self, request: Envelope) -> Envelope:
        """Show the operator a message from the coordinator, or why it rejected this site."""
        head = request.head
        what, key = ("rejected this site", "reason") if head["kind"] == "rejected" else ("says", "text")
        self.notify(f"the coordinator {what}: {str(head.get(key))[:500]}")
        return Envelope({"kind": "ok"})

    def dataset(self, data: Any, seed: int) -> Dataset:
        """Return this site's samples, loaded with the coordinator's settings, of the classes that may leave."""
        settings = own_settings(data, self.data)
        review.check_data(self.policy, settings)
        key = json.dumps([{setting: data.get(setting) for setting in LOADING_SETTINGS}, seed])
        if self._dataset is None or self._dataset[0] != key:
            dataset = load(settings, seed, labels=self.labels)
            self._dataset = (key, only_classes(dataset, self.policy.class_names))
        return self._dataset[1]

    # --- jobs ---------------------------------------------------------------------------------------------

    def _job(self, request: Envelope) -> Envelope:
        """Run a job on this site's data, starting from the state that the last committed round left."""
        begin = time.perf_counter()
        # The executor caches by payload. The coordinator reuses paths, so the content identifies a payload here.
        content = hashlib.blake2b(request.body, digest_size=16).hexdigest()
        job, run = replace(job_of(request.head, self.name), payload=content), run_of(request.head)
        setup = Setup.from_json(request.head.get("setup"))
        review.check_classes(self.policy, setup.roles, job.classes)
        permit = self._permit(setup, job, run)
        executor: Executor = self._limited(lambda: self.executor(setup, self.folder / "runs" / run))
        labels = executor.labels_of(self.name)
        review.check_samples(self.policy, executor.method, labels)
        review.check_privacy(self.policy, resolve(setup.config), executor.method, sum(labels.values()))
        self._permits.count(permit, job.kind, executor.rounds)
        state = None if job.state is None else self._state(executor, job)
        self.notify(clean(f"round {job.step.index + 1} ({job.step.phase}): {ACTIVITIES[job.kind]}"))
        payload, secrets = Payload.decode(request.body), executor.secrets_of(job)
        done = self._limited(lambda: executor.answer(job, payload, state, secrets))
        if done.error is not None:
            self.notify(f"failed: {done.error}\n{done.traceback}")
            return Envelope({"kind": "answer", "error": redact(done.error), **seconds_since(begin)})
        check_reply(self.policy, job, done.reply)
        # Any other job means that the round of a secure sum is over.
        executor.keep_secrets(done.secrets if job.kind in SECURE_KINDS else b"", job)
        version = job.state if done.state is None else executor.keep(done.state, job)
        prune_states(executor.states, self.name, job)
        notes = [redact(note) for note in done.notes[:MAX_NOTES]]
        return Envelope({"kind": "answer", "state": version, "notes": notes, **seconds_since(begin)}, done.reply)

    def _permit(self, setup: Setup, job: Job, run: str) -> Permit:
        """Return the permit of a run whose settings the policy allows, before its data is read."""
        config = resolve(setup.config)
        review.check_data(self.policy, config.data)
        review.check_config(self.policy, config)
        method = config.make_method()
        review.check_method(self.policy, method)
        return self._permits.admit(run, setup.config, first_index(job, config, method))

    def _state(self, executor: Executor, job: Job) -> Payload:
        try:
            return executor.kept(job)
        except OSError as error:
            raise UserError(
                f"the state of {self.name} after round {(job.state or 0) + 1} is not in the site's folder: restore it, "
                "or start a new run."
            ) from error

    def executor(self, setup: Setup, states: Path) -> Executor:
        """Return the executor of a run. The last one is kept and reused."""
        key = json.dumps([setup.to_json(), str(states)], sort_keys=True)
        if self._executor is None or self._executor[0] != key:
            self._executor = (key, self._make_executor(setup, states))
        return self._executor[1]

    def _make_executor(self, setup: Setup, states: Path) -> Executor:
        config = resolve(setup.config).with_engine(device=self.device)
        dataset = self.dataset(setup.config["data"], config.seed)
        if dataset.input_shape != setup.shape:
            raise UserError(f"this site has samples of shape {dataset.input_shape}, but the run uses {setup.shape}.")
        assert config.model is not None
        method = config.make_method()
        outputs = sum(len(names) for names in setup.roles) + 1
        review.check_network(self.policy, config, method, setup.shape, outputs)
        roles = with_remaining_unknown(setup.roles, dataset.classes, config.data)
        split = site_split(dataset, config.data, self.name, roles, setup.newcomer, config.seed)
        task = Task(setup.shape, config.model.name, config.model.params.model_dump(), usable_device(config))
        own = (states, states, config.privacy, self.policy.min_count)
        return Executor(dataset, split, config.data, method, task, config.seed, *own)


def check_reply(policy: Policy, job: Job, reply: bytes) -> None:
    """Check that what leaves the site has the form and the size that it should have."""
    if len(reply) > policy.max_reply_mb * 1e6:
        raise review.Refused(f"a reply of {len(reply)} bytes", f"max_reply_mb = {policy.max_reply_mb:g}")
    if job.kind == "validate":
        from_payload(Payload.decode(reply))
    if job.kind == "measure":
        check_report(Payload.decode(reply))


def seconds_since(begin: float) -> dict[str, float]:
    return {"seconds": round(time.perf_counter() - begin, 4)}


def prune_states(states: Path, name: str, job: Job) -> None:
    """Delete state versions that no checkpoint of the coordinator refers to any more."""
    if job.state is None:
        return
    versions = sorted(version_of(file) for file in state_file(states, name, 0).parent.glob("*"))
    committed = [version for version in versions if 0 <= version <= job.state]
    for version in committed[:-KEPT_STATES]:
        state_file(states, name, version).unlink(missing_ok=True)
