"""A client's steps of a secure sum, from jobs to answers: what it refuses, and how long it keeps secrets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedwild.aggregation.secure.vectors import Layout
from fedwild.contract import Payload, Server, Step
from fedwild.contract.engine import Answer, Job, Kind
from fedwild.contract.sums import Summable, sums_of
from fedwild.core.rng import Rng
from fedwild.engines.executor import Executor
from fedwild.engines.secret_files import read_secrets, secrets_file, write_secrets
from fedwild.engines.secure_jobs import to_rows
from fedwild.lifecycle.first_server import first_classes
from tests.methods.by_hand import executor_of
from tests.tiny import even_shares, split_by, tiny_dataset, tiny_experiment

NAMES = ["client-00", "client-01", "client-02"]
ROUND = "round-1"


class Exchanged:
    """An executor with three clients, and the requests of a round to them."""

    def __init__(self, folder: Path) -> None:
        data = tiny_dataset(classes=3)
        self.experiment = tiny_experiment("fedavg", data, split_by(data, 2, even_shares(data, 2, len(NAMES))))
        self.executor: Executor = executor_of(self.experiment, folder)
        self.folder = folder
        step = Step("train", 0, 0)
        classes = first_classes(self.experiment, None, 0)
        self.server = Server(self.experiment.task, classes, step, Rng(0), tuple(NAMES))
        self.experiment.method.start(self.server)
        self.written = 0

    def send(self, kind: Kind, name: str, about: dict[str, Any], **tensors: torch.Tensor) -> Answer:
        """Send one request to a client."""
        self.written += 1
        path = self.folder / f"request-{self.written}"
        payload = Payload(dict(tensors), {"secure": {"round": ROUND, **about}})
        if kind == "masked":
            payload.put("model", self.server.state.group("model"))
        payload.write(path)
        return self.executor.execute(Job(kind, self.server.step, str(path), name, self.server.classes.names))

    def advertise(self) -> None:
        replies = [self.send("advertise", name, {}).read() for name in NAMES]
        self.keys = torch.cat([reply.tensors["keys"] for reply in replies])

    def share(self, names: list[str] = NAMES) -> None:
        about = {"members": NAMES, "threshold": 2}
        self.sealed = {name: self.send("share", name, about, keys=self.keys).read().tensors["sealed"] for name in names}

    def mask(self, name: str, **changes: Any) -> Answer:
        phase = self.experiment.method.phases()[0]
        assert isinstance(phase, Summable)
        layout = Layout.of(sums_of(phase), phase.summed_groups(self.server))
        about = {"sharers": NAMES, "layout": layout.digest(), "limit": 1e6, "clients": 3, **changes}
        return self.send("masked", name, about)

    def unmask(self, name: str, survivors: list[str]) -> Answer:
        senders = [sender for sender in NAMES if sender != name]
        rows = [self.sealed[s][NAMES.index(name) - (NAMES.index(name) > NAMES.index(s))] for s in senders]
        return self.send("unmask", name, {"survivors": survivors, "senders": senders}, sealed=torch.stack(rows))


@pytest.fixture
def exchanged(tmp_path: Path) -> Exchanged:
    return Exchanged(tmp_path)


def test_a_client_answers_every_step_and_then_has_no_secrets(exchanged: Exchanged, tmp_path: Path) -> None:
    exchanged.advertise()
    exchanged.share()
    answer = exchanged.mask("client-00")
    assert answer.error is None
    assert answer.read().tensors.keys() == {"masked"} and answer.read().info == {} and answer.notes == []
    assert secrets_file(tmp_path, "client-00").exists()
    answer = exchanged.unmask("client-00", ["client-00", "client-02"])
    assert answer.read().info == {"names": NAMES}
    assert not secrets_file(tmp_path, "client-00").exists()


def test_the_server_never_gets_both_shares_of_one_client(exchanged: Exchanged) -> None:
    """The second request says that another client survived; it is refused, as is the repetition of the first."""
    exchanged.advertise()
    exchanged.share()
    exchanged.mask("client-00")
    first = ["client-00", "client-01"]
    assert exchanged.unmask("client-00", first).error is None
    for survivors in (["client-00", "client-02"], first):
        error = exchanged.unmask("client-00", survivors).error
        assert error is not None and "has no secrets of this round" in error


def test_a_second_vector_under_the_same_masks_is_refused(exchanged: Exchanged) -> None:
    exchanged.advertise()
    exchanged.share()
    assert exchanged.mask("client-00").error is None
    assert "client-00 has masked already" in str(exchanged.mask("client-00").error)


def test_a_vector_that_could_not_be_made_leaves_the_masks_unused(exchanged: Exchanged) -> None:
    exchanged.advertise()
    exchanged.share()
    assert "raise federation.secure_range" in str(exchanged.mask("client-00", limit=1e-3).error)
    assert "no room for the sum" in str(exchanged.mask("client-00", clients=2).error)
    assert "other tensors than the server expects" in str(exchanged.mask("client-00", layout="x").error)
    assert exchanged.mask("client-00").error is None


def test_messages_of_an_earlier_round_are_refused(exchanged: Exchanged, monkeypatch: pytest.MonkeyPatch) -> None:
    exchanged.advertise()
    exchanged.share()
    monkeypatch.setattr("tests.engines.test_secure_jobs.ROUND", "round-2")
    assert "a message of another round" in str(exchanged.mask("client-00").error)
    exchanged.advertise()
    monkeypatch.setattr("tests.engines.test_secure_jobs.ROUND", "round-1")
    assert "a message of another round" in str(exchanged.mask("client-00").error)


def test_steps_without_keys_are_refused(exchanged: Exchanged) -> None:
    assert "has no secrets of this round" in str(exchanged.mask("client-00").error)


def test_keys_are_new_in_every_round(exchanged: Exchanged) -> None:
    exchanged.advertise()
    first = to_rows(exchanged.keys)
    exchanged.advertise()
    assert not set(first) & set(to_rows(exchanged.keys))


@pytest.mark.parametrize("info", [{}, {"secure": {}}, {"secure": 3}])
def test_malformed_requests_are_failures_of_the_job(info: dict[str, Any], exchanged: Exchanged) -> None:
    path = exchanged.folder / "request"
    Payload(info=info).write(path)
    job = Job("advertise", exchanged.server.step, str(path), "client-00")
    for kind in ("advertise", "share", "unmask"):
        assert exchanged.executor.execute(replace(job, kind=kind)).error is not None


def test_secrets_are_replaced_and_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    assert read_secrets(folder, "a") is None
    for text in (b"one", b"two"):
        write_secrets(folder, "a", text)
        assert read_secrets(folder, "a") == text
    assert [file.stat().st_mode & 0o777 for file in folder.iterdir()] == [0o600]
    write_secrets(folder, "a", b"")
    write_secrets(folder, "a", b"")
    assert read_secrets(folder, "a") is None
