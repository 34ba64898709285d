"""One site: its data, the durable state of its client, and its answers to the coordinator's requests.

Every request holds everything about its run, so a site can be stopped and restarted at any time. It sends replies,
figures, class names and counts. Samples never leave it.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fedwild.contract import Step, Task
from fedwild.contract.engine import SECURE_KINDS, Job
from fedwild.core.errors import BadReply, UserError
from fedwild.core.payload import Payload
from fedwild.core.settings import validate
from fedwild.core.storage import make_folder, write_atomically
from fedwild.core.version import __version__
from fedwild.data import ClassRoles, Dataset, DataSettings, load, site_split
from fedwild.engines.executor import Executor
from fedwild.runs.at_sites import SiteFacts
from fedwild.runs.checkpoints import state_file, version_of
from fedwild.runs.config import Config, resolve
from fedwild.runs.experiment import usable_device
from fedwild.sites.envelope import PROTOCOL, Envelope
from fedwild.sites.redaction import redact

LOADING_SETTINGS = ("size", "channels", "test_fraction", "train_samples", "test_samples", "domains")
"""The settings that determine what is read from a site's files."""
KEPT_STATES = 2
"""The number of state versions that a client keeps: as many as a run keeps checkpoints."""


@dataclass(frozen=True)
class Setup:
    """What a site needs to know about a run: settings, class roles, sample shape, and whether it is a newcomer."""

    config: dict[str, Any]
    roles: ClassRoles
    shape: tuple[int, ...]
    newcomer: bool = False

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "roles": self.roles._asdict()}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Setup:
        roles = ClassRoles(*(tuple(fields["roles"][key]) for key in ClassRoles._fields))
        return cls(dict(fields["config"]), roles, tuple(fields["shape"]), bool(fields["newcomer"]))


@dataclass
class SiteServer:
    """Answers the coordinator's requests for the one client of this site."""

    name: str
    data: str
    folder: Path
    """Holds the site's identity and its client's state, one folder per run."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """The federation's name for each class that has another name here."""
    device: str = "cpu"
    notify: Callable[[str], None] = lambda text: None
    """Shows a message to the site's operator."""
    _dataset: tuple[str, Dataset] | None = field(default=None, repr=False)
    _executor: tuple[str, Executor] | None = field(default=None, repr=False)

    def answer(self, request: Envelope) -> Envelope:
        """Return the answer to any request. A failure becomes one sentence; its details are shown only at the site."""
        handlers = {"hello": self._hello, "job": self._job, "rejected": self._rejected, "notice": self._notice}
        try:
            check_version(request.head)
            handler = handlers.get(str(request.head.get("kind")))
            if handler is None:
                raise BadReply(f"unknown request kind {str(request.head.get('kind'))[:40]!r}")
            return handler(request)
        except (UserError, BadReply) as problem:
            self.notify(f"rejected a request: {problem}")
            return Envelope({"kind": "rejected", "reason": redact(str(problem))})
        except (Exception, SystemExit) as problem:
            # A user's own module may try to end the process; the site keeps running.
            self.notify(f"failed: {type(problem).__name__}: {problem}")
            return Envelope({"kind": "rejected", "reason": redact(f"{type(problem).__name__}: {problem}")})

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
        dataset = self.dataset(request.head["data"], int(request.head["seed"]))
        facts = SiteFacts(
            self.name,
            tuple(sorted(set(self._present_classes(dataset)))),
            len(dataset.y_train),
            dataset.input_shape,
            str(dataset.x_train.dtype).removeprefix("torch."),
        )
        self.notify("the coordinator asked for this site's name and classes")
        about = {"identity": self.identity, "torch": torch.__version__, "facts": facts.to_json()}
        return Envelope({"kind": "hello", **version_fields(), **about})

    def _rejected(self, request: Envelope) -> Envelope:
        """Show the operator why the coordinator rejected this site."""
        self.notify(f"the coordinator rejected this site: {str(request.head.get('reason'))[:500]}")
        return Envelope({"kind": "ok"})

    def _notice(self, request: Envelope) -> Envelope:
        """Show the operator a message from the coordinator."""
        self.notify(f"the coordinator says: {str(request.head.get('text'))[:500]}")
        return Envelope({"kind": "ok"})

    @staticmethod
    def _present_classes(dataset: Dataset) -> list[str]:
        """Return the classes that have at least one sample."""
        ids = torch.unique(torch.cat([dataset.y_train, dataset.y_test])).tolist()
        return [dataset.classes[i] for i in ids]

    def dataset(self, data: Mapping[str, Any], seed: int) -> Dataset:
        """Return this site's samples, loaded with the coordinator's settings."""
        key = json.dumps([{setting: data.get(setting) for setting in LOADING_SETTINGS}, seed])
        if self._dataset is None or self._dataset[0] != key:
            self._dataset = (key, load(own_settings(data, self.data), seed, labels=self.labels))
        return self._dataset[1]

    # --- jobs ---------------------------------------------------------------------------------------------

    def _job(self, request: Envelope) -> Envelope:
        """Run a job on this site's data, starting from the state that the last committed round left."""
        begin = time.perf_counter()
        # The executor caches by payload. The coordinator reuses paths, so the content identifies a payload here.
        content = hashlib.blake2b(request.body, digest_size=16).hexdigest()
        job, run = replace(job_of(request.head, self.name), payload=content), run_of(request.head)
        executor = self.executor(request.head["setup"], self.folder / "runs" / run)
        state = None if job.state is None else self._state(executor, job)
        self.notify(f"round {job.step.index + 1} ({job.step.phase}): {ACTIVITIES[job.kind]}")
        done = executor.answer(job, Payload.decode(request.body), state, executor.secrets_of(job))
        if done.error is not None:
            self.notify(f"failed: {done.error}\n{done.traceback}")
            return Envelope({"kind": "answer", "error": redact(done.error), **seconds_since(begin)})
        # Any other job means that the round of a secure sum is over.
        executor.keep_secrets(done.secrets if job.kind in SECURE_KINDS else b"", job)
        version = job.state if done.state is None else executor.keep(done.state, job)
        prune_states(executor.states, self.name, job)
        notes = [redact(note) for note in done.notes]
        return Envelope({"kind": "answer", "state": version, "notes": notes, **seconds_since(begin)}, done.reply)

    def _state(self, executor: Executor, job: Job) -> Payload:
        try:
            return executor.kept(job)
        except OSError as error:
            raise UserError(
                f"the state of {self.name} after round {(job.state or 0) + 1} is not in the site's folder: restore it, "
                "or start a new run."
            ) from error

    def executor(self, setup: Mapping[str, Any], states: Path) -> Executor:
        """Return the executor of a run. The last one is kept and reused."""
        key = json.dumps([setup, str(states)], sort_keys=True)
        if self._executor is None or self._executor[0] != key:
            self._executor = (key, self._make_executor(Setup.from_json(setup), states))
        return self._executor[1]

    def _make_executor(self, setup: Setup, states: Path) -> Executor:
        config = resolve(setup.config).with_engine(device=self.device)
        dataset = self.dataset(setup.config["data"], config.seed)
        if dataset.input_shape != setup.shape:
            raise UserError(f"this site has samples of shape {dataset.input_shape}, but the run uses {setup.shape}.")
        assert config.model is not None
        roles = with_remaining_unknown(setup.roles, dataset.classes, config.data)
        split = site_split(dataset, config.data, self.name, roles, setup.newcomer, config.seed)
        task = Task(setup.shape, config.model.name, config.model.params.model_dump(), usable_device(config))
        method = config.make_method()
        return Executor(dataset, split, config.data, method, task, config.seed, states, states, config.privacy)


ACTIVITIES = {
    "local": "training",
    "validate": "scoring validation samples",
    "measure": "measuring",
    "test": "measuring",
    "advertise": "agreeing on keys for a secure sum",
    "share": "sharing keys for a secure sum",
    "masked": "training; the reply is masked",
    "unmask": "helping to unmask the sum",
}


def version_fields() -> dict[str, Any]:
    """Return the version of fedwild and of the protocol, which every request holds."""
    return {"version": __version__, "protocol": PROTOCOL}


def check_version(head: Mapping[str, Any]) -> None:
    """Reject a request from another version of fedwild, whose results may differ."""
    theirs, ours = {key: head.get(key) for key in version_fields()}, version_fields()
    if theirs != ours:
        raise UserError(
            f"the coordinator has fedwild {str(theirs['version'])[:40]} and this site {ours['version']}: "
            "install the same version on both."
        )


def own_settings(data: Mapping[str, Any], path: str) -> DataSettings:
    """Return the coordinator's data settings, with this site's data in place of its own."""
    settings = {**data, "name": path, "coordinator": None, "newcomers": {}}
    return validate(DataSettings, settings, "data")


def with_remaining_unknown(roles: ClassRoles, classes: tuple[str, ...], data: DataSettings) -> ClassRoles:
    """Return the roles, with all other classes of this site as unknown unless `data.unknown` lists them."""
    if data.unknown != "rest":
        return roles
    given = {name for names in roles for name in names}
    return roles._replace(unknown=(*roles.unknown, *(name for name in classes if name not in given)))


def sent_config(config: Config) -> dict[str, Any]:
    """Return a run's settings for its sites, without the coordinator's paths and addresses."""
    table = config.decisive()
    table["data"] = {**table["data"], "coordinator": None, "newcomers": {}}
    table["federation"] = {**table["federation"], "start_from": None}
    cleaned: dict[str, Any] = json.loads(json.dumps(table))
    return cleaned


def job_of(head: Mapping[str, Any], name: str) -> Job:
    """Return the job of a request. Reject a job for another client."""
    try:
        fields = dict(head["job"])
        job = Job(**{**fields, "step": Step(**fields["step"]), "classes": tuple(fields["classes"])})
    except (KeyError, TypeError, ValueError) as error:
        raise BadReply(f"the job is malformed: {error!r}") from error
    if job.client != name or job.kind not in ACTIVITIES:
        raise BadReply(f"a job of kind {job.kind!r} for {job.client!r} was sent to {name!r}")
    return job


def run_of(head: Mapping[str, Any]) -> str:
    """Return the run's id, which becomes the name of a folder."""
    run = head.get("run")
    if not isinstance(run, str) or not run.isalnum() or len(run) > 64:
        raise BadReply("the request has no valid run id")
    return run


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
