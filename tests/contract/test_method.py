"""The contract supports what published methods need: each sketch is one requirement, run by the real engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedwild.contract import Method, Phase, Server, Step
from fedwild.contract.task import Task
from fedwild.core.classes import ClassRegistry
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.runs.events import read_events
from tests import sketches  # noqa: F401  (registers toy-prox and toy-scaffold)
from tests.methods.by_hand import client_of, final
from tests.tiny import even_shares, model_bytes, run_tiny, split_by, tiny_dataset, tiny_experiment

SKETCHES = ["GrowingHead", "HeadBank", "PrototypesOnly", "Newcomer", "Masked"]


@pytest.fixture
def data() -> Any:
    return tiny_dataset(classes=3)


def members_of(cls: type) -> set[str]:
    """Return the public members and annotations of a class and of its bases."""
    names = {name for base in cls.__mro__ for name in (*vars(base), *vars(base).get("__annotations__", {}))}
    return {name for name in names if not name.startswith("_")}


def test_the_contract_is_small() -> None:
    assert len(members_of(Method) - {"params"}) <= 11, members_of(Method)
    assert len(members_of(Phase) | {"name", "rounds"}) <= 10, members_of(Phase)


@pytest.mark.parametrize("sketch", SKETCHES)
def test_every_sketch_is_bit_equal_for_any_number_of_workers(sketch: str, data: Any, tmp_path: Path) -> None:
    split = split_by(data, 2, even_shares(data, 2, 3), unlabelled=[2, 6, 10, 14])
    for workers in (0, 2):
        run_tiny(tmp_path / str(workers), f"tests.sketches:{sketch}", data, split, workers=workers)
    assert model_bytes(tmp_path / "0") == model_bytes(tmp_path / "2")


@pytest.mark.parametrize("correction", ["toy-prox", "toy-scaffold"])
def test_a_correction_changes_fedavg_and_keeps_its_state(correction: str, data: Any, tmp_path: Path) -> None:
    split = split_by(data, 3, even_shares(data, 3, 3))
    run_tiny(tmp_path / "plain", "fedavg", data, split, {"method": {"rounds": 3}})
    for workers in (0, 2):
        settings = {"correction": {"name": correction}, "method": {"rounds": 3}}
        run_tiny(tmp_path / str(workers), "fedavg", data, split, settings, workers=workers)
    assert model_bytes(tmp_path / "0") == model_bytes(tmp_path / "2")
    assert model_bytes(tmp_path / "0") != model_bytes(tmp_path / "plain")
    states = list((tmp_path / "0" / "clients").glob("*/*.safetensors"))
    assert bool(states) == (correction == "toy-scaffold")


def test_a_proximal_term_of_zero_is_fedavg_bit_for_bit(data: Any, tmp_path: Path) -> None:
    split = split_by(data, 3, even_shares(data, 3, 2))
    run_tiny(tmp_path / "plain", "fedavg", data, split)
    run_tiny(tmp_path / "prox", "fedavg", data, split, {"correction": {"name": "toy-prox", "mu": 0.0}})
    assert final(tmp_path / "plain").tensors.keys() == final(tmp_path / "prox").tensors.keys()
    for name, tensor in final(tmp_path / "plain").tensors.items():
        assert torch.equal(tensor, final(tmp_path / "prox").tensors[name])


def test_a_head_grows_after_an_exchange_and_the_registry_records_it(data: Any, tmp_path: Path) -> None:
    split = split_by(data, 2, even_shares(data, 2, 2), unlabelled=[2, 6, 10])
    result = run_tiny(tmp_path / "run", "tests.sketches:GrowingHead", data, split)
    assert result["classes"] == ["class-0", "class-1", "novel-1"]
    assert final(tmp_path / "run").group("model")["head.weight"].shape[0] == 3
    entry = final(tmp_path / "run").info["classes"][2]
    assert entry == {"name": "novel-1", "origin": "discovered", "since": 2, "stage": 0, "samples": {}}


def test_personal_heads_are_kept_at_clients_and_the_bank_is_a_snapshot(data: Any, tmp_path: Path) -> None:
    split = split_by(data, 2, even_shares(data, 2, 3))
    run_tiny(tmp_path / "run", "tests.sketches:HeadBank", data, split, {"method": {"rounds": 3}})
    seen = [e["info"]["bank"] for e in read_events(tmp_path / "run" / "events.jsonl") if e["event"] == "client"]
    everyone = ["client-00", "client-01", "client-02"]
    assert seen[:3] == [[], [], []]
    assert seen[3:] == [everyone] * 6
    assert final(tmp_path / "run").group("bank/client-01")["weight"].tolist() == [2.0, 2.0]


def test_prototypes_are_enough_for_a_personal_predictor(data: Any, tmp_path: Path) -> None:
    split = split_by(data, 3, even_shares(data, 3, 2))
    result = run_tiny(tmp_path / "run", "tests.sketches:PrototypesOnly", data, split)
    assert set(result["by"]) == {"client-00", "client-01"}
    assert result["metrics"]["closed_accuracy"] == 1.0


def test_a_late_client_declares_labels_by_name(data: Any, tmp_path: Path) -> None:
    rows = {c: [i for i, y in enumerate(data.y_train.tolist()) if y == c] for c in range(3)}
    split = split_by(data, 2, [rows[0][:6] + rows[1][:6], rows[0][6:] + rows[1][6:], rows[1][:3] + rows[2]])
    settings = {"federation": {"arrivals": {"client-02": 2}}}
    result = run_tiny(tmp_path / "run", "tests.sketches:Newcomer", data, split, settings)
    assert result["classes"] == ["class-0", "class-1", "class-2"]
    events = [e for e in read_events(tmp_path / "run" / "events.jsonl") if e["event"] == "round"]
    assert [e["participants"] for e in events][:3] == [["client-00", "client-01"]] * 2 + [["client-02"]]
    info = [e["info"] for e in read_events(tmp_path / "run" / "events.jsonl") if e.get("client") == "client-02"]
    assert [i["samples"] for i in info] == [3, 12, 12]  # new labels count once the server knows their names


def test_packed_bits_are_sent_beside_the_weights(data: Any, tmp_path: Path) -> None:
    split = split_by(data, 2, even_shares(data, 2, 2))
    run_tiny(tmp_path / "run", "tests.sketches:Masked", data, split)
    run_tiny(tmp_path / "plain", "fedavg", data, split)
    masked = final(tmp_path / "run")
    assert masked.group("mask")["client-00"].dtype == torch.uint8
    for name, tensor in final(tmp_path / "plain").group("model").items():
        assert torch.equal(tensor, masked.group("model")[name])


def test_labels_are_numbered_by_the_servers_class_names() -> None:
    data = tiny_dataset(classes=3)
    order = np.array([2, 0, 3, 1])
    ids = torch.as_tensor(np.argsort(order))
    names = tuple(data.classes[i] for i in order)
    renumbered = replace(data, classes=names, y_train=ids[data.y_train], y_test=ids[data.y_test])
    assert not torch.equal(data.y_train, renumbered.y_train)
    split = split_by(data, 3, even_shares(data, 3, 2))
    labels = []
    for dataset in (data, renumbered):
        labels.append(client_of(tiny_experiment("fedavg", dataset, split), Path()).train.y)
    assert torch.equal(labels[0], labels[1])


def test_a_server_survives_its_payload() -> None:
    server = Server(Task((4,), "mlp"), ClassRegistry.of(["a", "b"]), Step("x", 1, 3), Rng(5), ("c1", "c2"))
    server.state = Payload.of(model={"w": torch.ones(2)}, info={"lambda": [0.5]})
    server.thresholds = {"*": -0.25}
    copy = Server.from_payload(Payload.decode(server.to_payload().encode()), server.task, server.rng)
    assert copy.classes == server.classes
    assert copy.clients == server.clients
    assert copy.thresholds == server.thresholds
    assert copy.state.info == server.state.info
    assert torch.equal(copy.state.group("model")["w"], torch.ones(2))


def test_the_log_keeps_samples_and_loss_of_a_reply_with_many_keys() -> None:
    from fedwild.lifecycle.exchange import loggable

    info = {f"key-{i}": i for i in range(150)} | {"samples": 7, "loss": 0.5}
    logged = loggable(info)
    assert (logged["samples"], logged["loss"], len(logged)) == (7, 0.5, 100)
