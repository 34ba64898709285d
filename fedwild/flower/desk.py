"""A site: its data, the durable state of its client, and its answers to the coordinator's letters.

A desk is told everything about a run with every letter, so that it may be closed and opened again at any time. It sends
replies, figures, class names and counts; samples stay here.
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

import fedwild
from fedwild.config import Config, resolve
from fedwild.data import ClassRoles, Dataset, DataSettings, load, site_split
from fedwild.data.sources.newcomer import renamed
from fedwild.discretion import told_outside
from fedwild.engines.base import Job
from fedwild.engines.site import Site, state_file
from fedwild.errors import BadReply, UserError
from fedwild.experiment import usable_device
from fedwild.flower.letters import PROTOCOL, Letter
from fedwild.hyper import validated
from fedwild.payload import Payload, write_atomically
from fedwild.protocol import Step
from fedwild.runs.folder import version_of
from fedwild.sites import SiteFacts
from fedwild.task import Task

LOADING = ("size", "channels", "test_fraction", "train_samples", "test_samples", "domains")
"""The settings that decide what is read from a site's files."""
KEPT_STATES = 2
"""As many versions of a client's state as a run keeps checkpoints."""


@dataclass(frozen=True)
class Setup:
    """What a site must know of a run to do its part: settings, roles of classes, and whether it is to be welcomed."""

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
class Desk:
    """Answers letters for the one client that lives here."""

    name: str
    data: str
    folder: Path
    """Holds this site's identity and, by run, its client's state."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Own name of a class = the federation's name."""
    device: str = "cpu"
    tell: Callable[[str], None] = lambda text: None
    """Says something to whoever runs the site."""
    _dataset: tuple[str, Dataset] | None = field(default=None, repr=False)
    _site: tuple[str, Site] | None = field(default=None, repr=False)

    def answer(self, letter: Letter) -> Letter:
        """The reply to any letter. Whatever goes wrong becomes one sentence in it; details are told only here."""
        kinds = {"hello": self._hello, "job": self._job, "refused": self._refused, "word": self._word}
        try:
            check_same_program(letter.head)
            kind = kinds.get(str(letter.head.get("kind")))
            if kind is None:
                raise BadReply(f"a letter of kind {str(letter.head.get('kind'))[:40]!r} is not known here")
            return kind(letter)
        except (UserError, BadReply) as problem:
            self.tell(f"refused: {problem}")
            return Letter({"kind": "refused", "reason": told_outside(str(problem))})
        except (Exception, SystemExit) as problem:
            # A module of the user's own may try to end the process; the site stays.
            self.tell(f"failed: {type(problem).__name__}: {problem}")
            return Letter({"kind": "refused", "reason": told_outside(f"{type(problem).__name__}: {problem}")})

    # --- who we are ---------------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        """Tells this installation from another of the same name; made once."""
        path = self.folder / "identity.json"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps({"identity": uuid.uuid4().hex}).encode())
        try:
            return str(json.loads(path.read_text())["identity"])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{str(path)!r} is damaged: delete it, and this site is a new one.") from error

    def _hello(self, letter: Letter) -> Letter:
        """What the coordinator must know before a run: name, classes, shape and how many samples."""
        dataset = self.dataset(letter.head["data"], int(letter.head["seed"]))
        facts = SiteFacts(
            self.name,
            tuple(sorted(set(self._classes_here(dataset)))),
            len(dataset.y_train),
            dataset.input_shape,
            str(dataset.x_train.dtype).removeprefix("torch."),
        )
        self.tell(f"{letter.head.get('coordinator', 'a coordinator')} asked who we are")
        about = {"identity": self.identity, "torch": torch.__version__, "facts": facts.to_json()}
        return Letter({"kind": "hello", **program(), **about})

    def _refused(self, letter: Letter) -> Letter:
        """The coordinator does not want this site; its operator should know why."""
        self.tell(f"the coordinator does not take us in: {str(letter.head.get('reason'))[:500]}")
        return Letter({"kind": "noted"})

    def _word(self, letter: Letter) -> Letter:
        """The coordinator lets this site's operator know something."""
        self.tell(f"the coordinator says: {str(letter.head.get('text'))[:500]}")
        return Letter({"kind": "noted"})

    @staticmethod
    def _classes_here(dataset: Dataset) -> list[str]:
        """The classes that occur."""
        ids = torch.unique(torch.cat([dataset.y_train, dataset.y_test])).tolist()
        return [dataset.classes[i] for i in ids]

    def dataset(self, data: Mapping[str, Any], seed: int) -> Dataset:
        """This site's samples, in the form that the coordinator's settings ask for."""
        key = json.dumps([{setting: data.get(setting) for setting in LOADING}, seed])
        if self._dataset is None or self._dataset[0] != key:
            settings = own_settings(data, self.data)
            dataset = load(settings, seed)
            classes = renamed(dataset.classes, dict(self.labels), f"site {self.name}")
            self._dataset = (key, replace(dataset, classes=classes))
        return self._dataset[1]

    # --- jobs ---------------------------------------------------------------------------------------------

    def _job(self, letter: Letter) -> Letter:
        """Do a job on this site's own data, going on from the state that its last committed round left."""
        begin = time.perf_counter()
        # What was made for a payload is kept under its content: paths of the coordinator's may come again.
        content = hashlib.blake2b(letter.body, digest_size=16).hexdigest()
        job, run = replace(job_of(letter.head, self.name), payload=content), run_of(letter.head)
        site = self.site(letter.head["setup"], self.folder / "runs" / run)
        state = None if job.state is None else self._state(site, job)
        self.tell(f"round {job.step.index + 1} ({job.step.phase}): {WORDS[job.kind]}")
        done = site.answer(job, Payload.decode(letter.body), state)
        if done.error is not None:
            self.tell(f"failed: {done.error}\n{done.traceback}")
            return Letter({"kind": "answer", "error": told_outside(done.error), **took(begin)})
        version = job.state if done.state is None else site.keep(done.state, job)
        prune(site.states, self.name, job)
        notes = [told_outside(note) for note in done.notes]
        return Letter({"kind": "answer", "state": version, "notes": notes, **took(begin)}, done.reply)

    def _state(self, site: Site, job: Job) -> Payload:
        try:
            return site.kept(job)
        except OSError as error:
            raise UserError(
                f"the state that {self.name} had after round {(job.state or 0) + 1} is not in its folder: put it back, "
                "or start a new run."
            ) from error

    def site(self, setup: Mapping[str, Any], states: Path) -> Site:
        """The site of a run, made once for as long as its letters say the same."""
        key = json.dumps([setup, str(states)], sort_keys=True)
        if self._site is None or self._site[0] != key:
            self._site = (key, self._made(Setup.from_json(setup), states))
        return self._site[1]

    def _made(self, setup: Setup, states: Path) -> Site:
        config = resolve(setup.config).with_engine(device=self.device)
        dataset = self.dataset(setup.config["data"], config.seed)
        if dataset.input_shape != setup.shape:
            raise UserError(f"samples have shape {dataset.input_shape} here, the run takes {setup.shape}.")
        assert config.model is not None
        roles = with_rest(setup.roles, dataset.classes, config.data)
        split = site_split(dataset, config.data, self.name, roles, setup.newcomer, config.seed)
        task = Task(setup.shape, config.model.name, config.model.params.model_dump(), usable_device(config))
        return Site(dataset, split, config.data, config.make_method(), task, config.seed, states, states)


WORDS = {"local": "training", "validate": "scoring validation samples", "measure": "measuring", "test": "measuring"}


def program() -> dict[str, Any]:
    """Which fedwild this is, in every letter that matters."""
    return {"version": fedwild.__version__, "protocol": PROTOCOL}


def check_same_program(head: Mapping[str, Any]) -> None:
    """Refuse a letter of another fedwild: its numbers would not be ours."""
    theirs, ours = {key: head.get(key) for key in program()}, program()
    if theirs != ours:
        raise UserError(
            f"the coordinator has fedwild {str(theirs['version'])[:40]} and this site {ours['version']}: "
            "install the same version on both."
        )


def own_settings(data: Mapping[str, Any], path: str) -> DataSettings:
    """The coordinator's settings of data, with this site's own files in place of its name."""
    asked = {**data, "name": path, "coordinator": None, "newcomers": {}}
    return validated(DataSettings, asked, "data")


def with_rest(roles: ClassRoles, here: tuple[str, ...], data: DataSettings) -> ClassRoles:
    """The roles, where all other classes are unknown unless the unknown ones are named."""
    if data.unknown != "rest":
        return roles
    given = {name for names in roles for name in names}
    return roles._replace(unknown=(*roles.unknown, *(name for name in here if name not in given)))


def sent_config(config: Config) -> dict[str, Any]:
    """A run's settings for its sites: without the coordinator's paths and addresses."""
    table = config.decisive()
    table["data"] = {**table["data"], "coordinator": None, "newcomers": {}}
    table["federation"] = {**table["federation"], "start_from": None}
    cleaned: dict[str, Any] = json.loads(json.dumps(table))
    return cleaned


def job_of(head: Mapping[str, Any], name: str) -> Job:
    """The job that a letter asks for, if it is ours to do."""
    try:
        fields = dict(head["job"])
        job = Job(**{**fields, "step": Step(**fields["step"]), "classes": tuple(fields["classes"])})
    except (KeyError, TypeError, ValueError) as error:
        raise BadReply(f"a letter's job cannot be read: {error!r}") from error
    if job.client != name or job.kind not in WORDS:
        raise BadReply(f"a job of kind {job.kind!r} for {job.client!r} is not for {name!r}")
    return job


def run_of(head: Mapping[str, Any]) -> str:
    """The run's id, which becomes a folder's name."""
    run = head.get("run")
    if not isinstance(run, str) or not run.isalnum() or len(run) > 64:
        raise BadReply("a letter does not say which run it is of")
    return run


def took(begin: float) -> dict[str, float]:
    return {"seconds": round(time.perf_counter() - begin, 4)}


def prune(states: Path, name: str, job: Job) -> None:
    """Let go of states that no checkpoint of the coordinator's can ask for any more."""
    if job.state is None:
        return
    versions = sorted(version_of(file) for file in state_file(states, name, 0).parent.glob("*"))
    committed = [version for version in versions if 0 <= version <= job.state]
    for version in committed[:-KEPT_STATES]:
        state_file(states, name, version).unlink(missing_ok=True)
