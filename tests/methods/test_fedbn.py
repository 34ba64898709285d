"""FedBN: which tensors clients keep, equality with a setting of FedPD, and clients without norms yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedwild.contract import Server
from fedwild.contract.task import weights_of
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.methods.fedbn import NORMS, select_norms
from fedwild.models.norms import norm_keys
from fedwild.runs.events import read_events
from tests.methods.by_hand import (
    NORMED,
    PLAIN,
    WITH_NORMS,
    client_of,
    final,
    method_of,
    phase_of,
    replies_of,
    server_of,
    states,
)
from tests.tiny import even_shares, model_bytes, run_tiny, split_by, tiny_dataset, tiny_experiment


@pytest.fixture
def data() -> Any:
    return tiny_dataset(classes=2)


@pytest.fixture
def split(data: Any) -> Any:
    rows = even_shares(data, 2, 1)[0]
    return split_by(data, 2, [rows[:6], rows[6:14], rows[14:]])


def test_it_is_fedpd_without_subnetworks_and_alignment_bit_for_bit(data: Any, split: Any, tmp_path: Path) -> None:
    training = {"rounds": 3, "lr": 0.05, "weight_decay": 0.0}
    ours = {**WITH_NORMS, "method": training}
    plain = {"importance": "none", "align": "none", "norms": "local", "mean": "all", "calibrate": False}
    theirs = {**WITH_NORMS, "method": {**training, **plain}, "objective": {"name": "ce"}, "score": {"name": "msp"}}
    run_tiny(tmp_path / "fedbn", "fedbn", data, split, ours)
    run_tiny(tmp_path / "fedpd", "fedpd", data, split, theirs)
    fedbn, fedpd = final(tmp_path / "fedbn"), final(tmp_path / "fedpd")
    assert fedbn.group("model").keys() == fedpd.group("model").keys()
    for name, tensor in fedpd.group("model").items():
        assert torch.equal(tensor, fedbn.group("model")[name])
    own = states(tmp_path / "fedbn")
    assert len(own) == 3
    for client, state in own.items():
        norms = fedpd.group(f"norms/{client}")
        assert state.group(NORMS).keys() == norms.keys() != set()
        assert all(torch.equal(tensor, norms[name]) for name, tensor in state.group(NORMS).items())
    assert fedbn.info["thresholds"] == fedpd.info["thresholds"]


@pytest.mark.parametrize(("weights", "expected"), [("equal", 3.0), ("samples", 2.0)])
def test_the_mean_computed_by_hand(weights: str, expected: float) -> None:
    server = server_of(model={"w": torch.zeros(1)})
    replies = replies_of(
        a=Payload.of({"samples": 3}, model={"w": torch.tensor([1.0])}),
        b=Payload.of({"samples": 1}, model={"w": torch.tensor([5.0])}),
        c=Payload.of({"samples": 0}, model={"w": torch.tensor([99.0])}),
    )
    phase_of("fedbn", {"weights": weights}).merge(server, replies)
    assert server.state.group("model")["w"].tolist() == [expected]


class Mixed(nn.Module):
    """Norms of several kinds under names that do not reveal them."""

    def __init__(self) -> None:
        super().__init__()
        self.bn_free = nn.Linear(3, 3)
        self.one = nn.BatchNorm1d(3)
        self.two = nn.BatchNorm1d(3, track_running_stats=False)
        self.three = nn.LayerNorm(3)


def test_batch_norm_is_recognised_by_type_not_by_name() -> None:
    model: Any = Mixed()
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    expected = {f"one.{name}" for name in ("weight", "bias", *statistics)} | {"two.weight", "two.bias"}
    assert set(select_norms(model, weights_of(model))) == expected


def local(data: Any, split: Any, folder: Path, payload: Payload, state: Payload, name: str) -> tuple[Payload, Payload]:
    """Return a client's reply to a payload, and its durable state after it."""
    experiment = tiny_experiment("fedbn", data, split, WITH_NORMS)
    client = client_of(experiment, folder, name, state=state)
    reply = phase_of(experiment.method).local(payload, client, Rng(0))
    return reply, client.state


def test_a_client_continues_with_its_own_norms(data: Any, split: Any, tmp_path: Path) -> None:
    received = weights_of(NORMED.build(2, Rng(0)))
    norms = {name: received[name] for name in norm_keys(received)}
    changed = {name: tensor + 0.5 if tensor.is_floating_point() else tensor for name, tensor in norms.items()}
    payload, whole = Payload.of(model=received), Payload.of(model={**received, **changed})
    reply, kept = local(data, split, tmp_path, payload, Payload.of(norms=changed), "client-02")
    # As if the server had sent them.
    expected, _ = local(data, split, tmp_path, whole, Payload(), "client-02")
    other, _ = local(data, split, tmp_path, payload, Payload(), "client-02")
    assert all(torch.equal(tensor, expected.group("model")[name]) for name, tensor in reply.group("model").items())
    assert not torch.equal(reply.group("model")["head.weight"], other.group("model")["head.weight"])
    assert kept.group(NORMS).keys() == norms.keys()
    assert all(torch.equal(tensor, reply.group("model")[name]) for name, tensor in kept.group(NORMS).items())


def test_a_client_without_a_training_step_keeps_no_norms(data: Any, tmp_path: Path) -> None:
    rows = even_shares(data, 2, 1)[0]
    split = split_by(data, 2, [rows, rows[:1], []])
    run_tiny(tmp_path / "run", "fedbn", data, split, WITH_NORMS)
    assert list(states(tmp_path / "run")) == ["client-00"]


def predictions(folder: Path, data: Any, split: Any, name: str, state: Payload) -> Tensor:
    experiment = tiny_experiment("fedbn", data, split, WITH_NORMS)
    server = Server.from_payload(final(folder), experiment.task, Rng(0))
    client = client_of(experiment, folder, name, server.step.index, state)
    answering = experiment.method.answers(server)
    assert answering.personal
    return answering.predictor(client).predict(torch.rand(4, 1, 8, 8, generator=torch.manual_seed(0))).logits


def test_clients_answer_with_their_own_norms_and_newcomers_with_the_mean(data: Any, split: Any, tmp_path: Path) -> None:
    late = {**WITH_NORMS, "method": {"rounds": 3}, "federation": {"arrivals": {"client-02": 2}}}
    run_tiny(tmp_path / "run", "fedbn", data, split, late)
    own = states(tmp_path / "run")
    assert set(own) == {"client-00", "client-01", "client-02"}
    mine, yours = (predictions(tmp_path / "run", data, split, "client-00", own[f"client-0{k}"]) for k in (0, 1))
    assert not torch.allclose(mine, yours, atol=1e-4)
    model = final(tmp_path / "run").group("model")
    assert all(
        torch.allclose(model[name], torch.stack([s.group(NORMS)[name] for s in own.values()]).mean(0), atol=1e-6)
        for name in norm_keys(model)
        if model[name].is_floating_point()
    )
    fallback = predictions(tmp_path / "run", data, split, "client-00", Payload())
    network = NORMED.network(model, 2).eval()
    with torch.no_grad():
        expected = network(torch.rand(4, 1, 8, 8, generator=torch.manual_seed(0)))
    torch.testing.assert_close(fallback, expected)


def test_without_batch_norm_it_is_fedavg_and_the_log_says_so(data: Any, split: Any, tmp_path: Path) -> None:
    result = run_tiny(tmp_path / "fedbn", "fedbn", data, split, {"method": {"weights": "samples"}})
    run_tiny(tmp_path / "fedavg", "fedavg", data, split)
    fedbn, fedavg = final(tmp_path / "fedbn"), final(tmp_path / "fedavg")
    assert all(torch.equal(tensor, fedbn.tensors[name]) for name, tensor in fedavg.tensors.items())
    assert list(result["thresholds"]) == ["*"]
    notes = [e["text"] for e in read_events(tmp_path / "fedbn" / "events.jsonl") if e["event"] == "note"]
    assert len([text for text in notes if "no batch-norm" in text]) == 1
    method = method_of("fedbn")
    assert not method.answers(started(method, PLAIN)).personal
    assert method.answers(started(method, NORMED)).personal
    run_tiny(tmp_path / "equal", "fedbn", data, split)
    assert model_bytes(tmp_path / "equal") != model_bytes(tmp_path / "fedbn")


def started(method: Any, task: Any) -> Server:
    server = server_of(task=task)
    method.start(server)
    return server
