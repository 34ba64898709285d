"""FedBN: which tensors are whose, against FedPD's way to the same, and clients without norms of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedwild.contract.engine import Job
from fedwild.engines.executor import Executor
from fedwild.methods.fedbn import NORMS, of_norms
from fedwild.models.norms import norm_keys
from fedwild.core.payload import Payload
from fedwild.contract import Server, Step
from fedwild.core.rng import Rng
from fedwild.runs.events import read_events
from fedwild.contract.task import weights_of
from tests.methods.by_hand import NORMED, PLAIN, WITH_NORMS, final, method_of, replies_of, server_of, states
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
def test_the_mean_by_hand(weights: str, expected: float) -> None:
    server = server_of(model={"w": torch.zeros(1)})
    replies = replies_of(
        a=Payload.of({"samples": 3}, model={"w": torch.tensor([1.0])}),
        b=Payload.of({"samples": 1}, model={"w": torch.tensor([5.0])}),
        c=Payload.of({"samples": 0}, model={"w": torch.tensor([99.0])}),
    )
    method_of("fedbn", {"weights": weights}).merge(server, replies)
    assert server.state.group("model")["w"].tolist() == [expected]


class Mixed(nn.Module):
    """Norms of several kinds, the names of which tell nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.bn_free = nn.Linear(3, 3)
        self.one = nn.BatchNorm1d(3)
        self.two = nn.BatchNorm1d(3, track_running_stats=False)
        self.three = nn.LayerNorm(3)


def test_what_is_batch_norm_goes_by_type_not_by_name() -> None:
    model: Any = Mixed()
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    expected = {f"one.{name}" for name in ("weight", "bias", *statistics)} | {"two.weight", "two.bias"}
    assert set(of_norms(model, weights_of(model))) == expected


def local(data: Any, split: Any, folder: Path, payload: Payload, state: Payload, name: str) -> tuple[Payload, Payload]:
    """One client's reply to a payload, and what it keeps."""
    experiment = tiny_experiment("fedbn", data, split, WITH_NORMS)
    executor = Executor(data, split, experiment.config.data, experiment.method, experiment.task, 0, folder, folder)
    client = executor.client(Job("local", Step("train", 0, 0), "", name, split.known))
    client.state = state
    reply = experiment.method.local(payload, client, Rng(0))
    return reply, client.state


def test_a_client_trains_on_from_its_own_norms(data: Any, split: Any, tmp_path: Path) -> None:
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


def test_a_client_that_took_no_step_has_no_norms_of_its_own(data: Any, tmp_path: Path) -> None:
    rows = even_shares(data, 2, 1)[0]
    split = split_by(data, 2, [rows, rows[:1], []])
    run_tiny(tmp_path / "run", "fedbn", data, split, WITH_NORMS)
    assert list(states(tmp_path / "run")) == ["client-00"]


def predictions(folder: Path, data: Any, split: Any, name: str, state: Payload) -> Tensor:
    experiment = tiny_experiment("fedbn", data, split, WITH_NORMS)
    server = Server.from_payload(final(folder), experiment.task, Rng(0))
    executor = Executor(data, split, experiment.config.data, experiment.method, experiment.task, 0, folder, folder)
    client = executor.client(Job("test", server.step, "", name, split.known))
    client.state = state
    assert experiment.method.is_personal(server)
    return (
        experiment.method.predictor(server, client)
        .predict(torch.rand(4, 1, 8, 8, generator=torch.manual_seed(0)))
        .logits
    )


def test_everyone_answers_with_its_own_norms_and_a_newcomer_with_the_mean_of_all(
    data: Any, split: Any, tmp_path: Path
) -> None:
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


def test_without_batch_norm_it_is_fedavg_with_one_model_and_says_so(data: Any, split: Any, tmp_path: Path) -> None:
    result = run_tiny(tmp_path / "fedbn", "fedbn", data, split, {"method": {"weights": "samples"}})
    run_tiny(tmp_path / "fedavg", "fedavg", data, split)
    fedbn, fedavg = final(tmp_path / "fedbn"), final(tmp_path / "fedavg")
    assert all(torch.equal(tensor, fedbn.tensors[name]) for name, tensor in fedavg.tensors.items())
    assert list(result["thresholds"]) == ["*"]
    notes = [e["text"] for e in read_events(tmp_path / "fedbn" / "events.jsonl") if e["event"] == "note"]
    assert len([text for text in notes if "no batch-norm" in text]) == 1
    assert not method_of("fedbn").is_personal(started(PLAIN))
    assert method_of("fedbn").is_personal(started(NORMED))
    run_tiny(tmp_path / "equal", "fedbn", data, split)
    assert model_bytes(tmp_path / "equal") != model_bytes(tmp_path / "fedbn")


def started(task: Any) -> Server:
    server = server_of(task=task)
    method_of("fedbn").start(server)
    return server
