"""FedMA: one layer per round, computed by hand, and its invariants."""

from __future__ import annotations

import gc
import itertools
import math
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedwild.contract import Client, Replies, Server, Step
from fedwild.contract.engine import Job
from fedwild.contract.initial import Initial
from fedwild.contract.task import Task, weights_of
from fedwild.core.classes import ClassRegistry
from fedwild.core.errors import BadReply, UserError
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.data import samples_of
from fedwild.engines.executor import Executor
from fedwild.methods.fedma import FedMA
from fedwild.methods.fedma import rounds as fedma_rounds
from fedwild.methods.fedma.bayes import match
from fedwild.methods.fedma.layers import (
    CurrentLayer,
    freeze,
    layer_of,
    neurons_of,
    norms_of,
    remap_inputs,
    resize,
    tensors_of,
)
from fedwild.methods.fedma.rounds import MatchingRounds, initial_state
from fedwild.models import LayerGraph, Network, build
from fedwild.runs.experiment import Experiment
from fedwild.training.corrections import ClientCorrection
from fedwild.training.loop import train
from tests.conftest import TINY, Refused
from tests.models.cases import inputs, make, stir_norms
from tests.tiny import even_shares, run_experiment, run_tiny, split_by, tiny_dataset, tiny_experiment

NORMED = Task((1, 8, 8), "digit-cnn", {"width": 0.04})
PLAIN = Task((1, 8, 8), "mlp", {"hidden": [8, 6]})


@pytest.fixture
def data() -> Any:
    return tiny_dataset(classes=2)


def method_of(data: Any, **settings: Any) -> FedMA:
    split = split_by(data, 2, even_shares(data, 2, 2))
    method = tiny_experiment("fedma", data, split, {"method": settings}).method
    assert isinstance(method, FedMA)
    return method


def phase_of(data: Any, **settings: Any) -> MatchingRounds:
    (phase,) = method_of(data, **settings).phases()
    assert isinstance(phase, MatchingRounds)
    return phase


def final(folder: Path) -> Payload:
    return Payload.read(folder / "model.safetensors")


def server_at(task: Task, index: int, model: dict[str, Tensor] | None = None) -> Server:
    """A server of two classes at a round, with a new model unless one is given."""
    server = Server(task, ClassRegistry.of(("a", "b")), Step("train", index, index), Rng(0))
    server.state.put("model", weights_of(task.build(2, Rng(0))) if model is None else model)
    return server


def replies_of(models: dict[str, dict[str, Tensor]], samples: dict[str, int]) -> Replies:
    """Replies that are decoded at every reading, as those of an engine are."""
    codes = {name: Payload.of({"samples": samples[name]}, model=model).encode() for name, model in models.items()}
    return Replies({name: partial(Payload.decode, code) for name, code in codes.items()})


def stirred(task: Task, seed: int) -> Network:
    torch.manual_seed(seed)
    network = task.build(2, Rng(seed))
    stir_norms(network)
    return network


# --- permuting and padding ----------------------------------------------------------------------------------


def widened(graph: LayerGraph, state: dict[str, Tensor], extra: int) -> dict[str, Tensor]:
    """A state with the neurons of every space at random places among `extra` neurons that no layer reads."""
    for layer in graph.weighted:
        if layer.outputs is None:
            continue
        width = len(state[f"{layer.name}.weight"])
        atoms = torch.randperm(width + extra)[:width]
        for name, tensor in tensors_of({layer.name, *norms_of(graph, layer)}, state).items():
            if tensor.dim():
                spread = torch.rand(width + extra, *tensor.shape[1:]) + 0.5
                spread[atoms] = tensor
                state = {**state, name: spread}
        state = remap_inputs(state, graph, layer, atoms, width + extra)
    return state


@pytest.mark.parametrize("name", ["mlp", "simple-cnn", "digit-cnn", "vgg-9"])
def test_permuted_inputs_with_zero_columns_compute_the_same_function(name: str) -> None:
    network = make(name).eval()
    stir_norms(network)
    x = inputs(network)
    with torch.no_grad():
        before = network(x)
        state = widened(network.graph(), weights_of(network), extra=3)
        after = resize(network, state)(x)
    assert before.std() > 1e-3
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("task", [NORMED, PLAIN])
def test_a_layer_is_its_neurons_and_they_are_a_copy(task: Task) -> None:
    state = weights_of(task.build(2, Rng(0)))
    for layer in task.graph(2).weighted:
        neurons = neurons_of(layer, state)
        weight = state[f"{layer.name}.weight"]
        assert neurons.shape == (len(weight), weight[0].numel() + (f"{layer.name}.bias" in state))
        assert neurons.untyped_storage().data_ptr() != weight.untyped_storage().data_ptr()
        again = layer_of(layer, neurons.double(), like=state)
        assert again.keys() == tensors_of({layer.name}, state).keys()
        assert all(torch.equal(tensor, state[name]) for name, tensor in again.items())


# --- which layers are frozen --------------------------------------------------------------------------------


def test_each_round_matches_one_layer_and_after_the_head_none_is_frozen() -> None:
    graph = PLAIN.graph(2)
    layers = [CurrentLayer.at(graph, Step("train", index, index)) for index in range(5)]
    assert [current.layer.name for current in layers] == ["fc1.fc", "fc2.fc", "head", "fc1.fc", "fc2.fc"]
    assert [current.frozen for current in layers] == [set(), {"fc1.fc"}, {"fc1.fc", "fc2.fc"}, set(), {"fc1.fc"}]
    assert [current.is_head for current in layers] == [False, False, True, False, False]


def test_norms_are_frozen_with_their_neurons() -> None:
    current = CurrentLayer.at(NORMED.graph(2), Step("train", 2, 2))
    assert current.frozen == {"conv1.conv", "conv1.norm", "conv2.conv", "conv2.norm"}
    assert current.norms == {"conv3.norm"}


def test_frozen_layers_and_their_statistics_do_not_change_bit_for_bit(data: Any) -> None:
    network = stirred(NORMED, 0)
    current = CurrentLayer.at(network.graph(), Step("train", 2, 2))
    before = weights_of(network)
    freeze(network, current.frozen)
    method = method_of(data, epochs=2)
    samples = samples_of(data, torch.tensor(even_shares(data, 2, 1)[0]))
    assert train(network, samples, method.params, method.objective, ClientCorrection(), Rng(0)).steps
    after = weights_of(network)
    frozen = tensors_of(current.frozen, after)
    assert len(frozen) == 2 * 6
    assert all(torch.equal(tensor, before[name]) for name, tensor in frozen.items())
    assert all(not torch.equal(tensor, before[name]) for name, tensor in current.select_trainable(after).items())


def test_frozen_norms_compute_in_training_what_they_compute_in_evaluation() -> None:
    network = stirred(NORMED, 0)
    x = inputs(network, 6)
    asked = network.eval().upto(x, "conv2")
    freeze(network, CurrentLayer.at(network.graph(), Step("train", 2, 2)).frozen)
    assert torch.equal(network.train().upto(x, "conv2"), asked)
    assert not torch.equal(network.train().upto(x, "conv3"), network.eval().upto(x, "conv3"))


def test_a_matched_layer_does_not_change_until_the_next_pass(data: Any, tmp_path: Path) -> None:
    split = split_by(data, 2, even_shares(data, 2, 3))
    models = []
    for rounds in (1, 2, 3, 4):
        run_tiny(tmp_path / str(rounds), "fedma", data, split, {"method": {"rounds": rounds}})
        models.append(final(tmp_path / str(rounds)).group("model"))
    for name in ("fc1.fc.weight", "fc1.fc.bias"):
        assert torch.equal(models[0][name], models[1][name])
        assert torch.equal(models[0][name], models[2][name])
        assert models[0][name].shape != models[3][name].shape or not torch.equal(models[0][name], models[3][name])
    assert torch.equal(models[1]["fc2.fc.weight"], models[2]["fc2.fc.weight"])
    assert not torch.equal(models[1]["head.weight"], models[2]["head.weight"])


# --- two clients and one hidden layer by hand ---------------------------------------------------------------


def two_clients(data: Any, rounds: int, **settings: Any) -> Experiment:
    """Two clients of different size and a network with one hidden layer of three neurons."""
    rows = even_shares(data, 2, 1)[0]
    split = split_by(data, 2, [rows[:8], rows[8:]])
    tables = {"method": {"rounds": rounds, "sweeps": 0, "gamma": 2.0, **settings}}
    return replace(tiny_experiment("fedma", data, split, tables), task=Task((1, 8, 8), "mlp", {"hidden": [3]}))


def assigned_by_hand(first: Tensor, second: Tensor, gamma: float) -> list[int]:
    """The atoms of the second client's neurons (3, d), by trying all assignments; atoms 0, 1, 2 are the first's."""
    scores = torch.zeros(3, 6, dtype=torch.float64)
    for j, v in enumerate(second):
        for i, s in enumerate(first):
            scores[j, i] = (v + s).square().sum() / 3 - s.square().sum() / 2 + math.log(1 / (2 - 1))
        for rank in (1, 2, 3):
            scores[j, 2 + rank] = v.square().sum() / 2 + 2 * math.log(gamma / 2) - 2 * math.log(rank)
    columns = itertools.permutations(range(6), 3)
    return list(max(columns, key=lambda atoms: float(scores[[0, 1, 2], list(atoms)].sum())))


@pytest.mark.parametrize("start", ["shared", "own"])
def test_two_clients_with_one_hidden_layer_are_as_computed_by_hand(start: str, data: Any, tmp_path: Path) -> None:
    experiment = two_clients(data, 2, start=start)
    run_experiment(tmp_path / "run", experiment)
    method: Any = experiment.method
    executor = Executor(data, experiment.split, experiment.config.data, method, experiment.task, 0, tmp_path, tmp_path)
    names = ("client-00", "client-01")

    def trained(name: str, index: int, network: Network) -> dict[str, Tensor]:
        client = executor.client(Job("local", Step("train", index, index), "", name, experiment.split.known))
        counts[name] = len(client.train)
        train(network, client.train, method.params, method.objective, ClientCorrection(), rng_of(name, index))
        return weights_of(network)

    def rng_of(name: str, index: int) -> Rng:
        return Rng(0).child("train", index, "client", name)

    # Round 0: all clients train all layers, and the server matches the hidden one.
    counts: dict[str, int] = {}
    begin = {name: Rng(0).child("start") if start == "shared" else rng_of(name, 0) for name in names}
    models = {name: trained(name, 0, experiment.task.build(2, begin[name])) for name in names}
    assert counts["client-00"] != counts["client-01"]
    neurons = {
        name: torch.cat([model["fc1.fc.weight"], model["fc1.fc.bias"][:, None]], dim=1).double()
        for name, model in models.items()
    }
    atoms = {
        "client-00": [0, 1, 2],
        "client-01": assigned_by_hand(neurons["client-00"], neurons["client-01"], gamma=2.0),
    }
    width = 1 + max(atoms["client-01"])
    means = torch.zeros(width, 65, dtype=torch.float64)
    for i in range(width):
        users = [neurons[name][atoms[name].index(i)] for name in names if i in atoms[name]]
        means[i] = sum(users) / (len(users) + 1)
    # Round 1: the hidden layer is frozen; each client trains its own head, with its columns moved to their atoms.
    total = torch.zeros(2, width, dtype=torch.float64)
    for name in names:
        torch.manual_seed(0)
        network = build("mlp", (1, 8, 8), 2, params={"hidden": [width]})
        columns = torch.zeros(2, width)
        for j, i in enumerate(atoms[name]):
            columns[:, i] = models[name]["head.weight"][:, j]
        hidden = {"fc1.fc.weight": means[:, :64].float(), "fc1.fc.bias": means[:, 64].float()}
        network.load_state_dict({**hidden, "head.weight": columns, "head.bias": models[name]["head.bias"]})
        network.get_submodule("fc1").requires_grad_(False)
        total += counts[name] * trained(name, 1, network)["head.weight"].double()

    found = final(tmp_path / "run").group("model")
    torch.testing.assert_close(found["fc1.fc.weight"], means[:, :64].float(), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(found["fc1.fc.bias"], means[:, 64].float(), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(found["head.weight"], (total / sum(counts.values())).float(), rtol=1e-6, atol=1e-7)


# --- the server's half --------------------------------------------------------------------------------------


def test_norms_follow_their_neurons_and_are_averaged_over_the_users_of_the_atom(data: Any) -> None:
    server = server_at(NORMED, 0)
    ours = weights_of(stirred(NORMED, 1))
    ours["conv1.conv.weight"] *= 50  # so far apart that equal neurons are matched
    order = torch.tensor([2, 0, 1])
    theirs = NORMED.graph(2).permute(ours, {"conv1.conv": order})
    shift = {name: 2.0 for name in tensors_of({"conv1.norm"}, ours) if ours[name].dim()}
    theirs = {name: tensor + shift.get(name, 0) for name, tensor in theirs.items()}
    ours["conv1.norm.num_batches_tracked"], theirs["conv1.norm.num_batches_tracked"] = torch.tensor(7), torch.tensor(9)
    phase_of(data).merge(server, replies_of({"a": ours, "b": theirs}, {"a": 10, "b": 30}))
    found = server.state.group("model")
    atoms = server.state.group("atoms")
    assert torch.equal(atoms["a"][order], atoms["b"])
    torch.testing.assert_close(found["conv1.conv.weight"][atoms["a"]], 2 / 3 * ours["conv1.conv.weight"])
    assert len(shift) == 4
    for name in shift:
        # The plain mean, although one of them has three times as many samples; statistics shrink with the neurons.
        shrunk = {"running_mean": 2 / 3, "running_var": 4 / 9}.get(name.rpartition(".")[2], 1.0)
        torch.testing.assert_close(found[name][atoms["a"]], shrunk * (ours[name] + 1.0))
    assert int(found["conv1.norm.num_batches_tracked"]) == 7
    torch.testing.assert_close(found["conv2.conv.weight"][:, atoms["a"]], ours["conv2.conv.weight"])
    torch.testing.assert_close(found["head.weight"], ours["head.weight"])


def test_a_matched_layer_of_equal_clients_answers_as_they_do_though_its_weights_are_smaller(data: Any) -> None:
    server = server_at(NORMED, 0)
    network = stirred(NORMED, 1).eval()
    with torch.no_grad():
        network.get_parameter("conv1.conv.weight").mul_(50)  # so far apart that equal neurons are matched
        network.get_buffer("conv1.norm.running_mean").mul_(50)
        network.get_buffer("conv1.norm.running_var").mul_(50**2)
    ours = weights_of(network)
    phase_of(data).merge(server, replies_of({"a": ours, "b": ours}, {"a": 10, "b": 30}))
    merged = server.state.group("model")
    x = inputs(network)
    with torch.no_grad():
        before = network(x)
        after = resize(NORMED.build(2, Rng(0)), merged).eval()(x)
    assert merged["conv1.conv.weight"].norm() < 0.7 * ours["conv1.conv.weight"].norm()
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)


class Buffer(bytearray):
    """The bytes of a reply, whose release can be observed."""


def test_no_more_than_one_reply_is_in_memory_while_a_layer_is_matched(
    data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = Payload.of({"samples": 3}, model=weights_of(NORMED.build(2, Rng(0)))).encode()
    read: list[weakref.ref[Buffer]] = []
    alive: list[int] = []

    def reader() -> Payload:
        buffer = Buffer(code)
        read.append(weakref.ref(buffer))
        return Payload.decode(buffer)

    def watched(*arguments: Any) -> Any:
        gc.collect()
        alive.append(sum(buffer() is not None for buffer in read))
        return match(*arguments)

    monkeypatch.setattr(fedma_rounds, "match", watched)
    phase_of(data).merge(server_at(NORMED, 0), Replies(dict.fromkeys("abcd", reader)))
    assert len(read) == 8
    assert alive in ([0], [1])


def test_layers_after_the_matched_one_are_the_sample_weighted_mean_of_the_permuted_ones(data: Any) -> None:
    server = server_at(PLAIN, 0)
    models = {name: weights_of(PLAIN.build(2, Rng(seed))) for seed, name in enumerate("ab")}
    phase_of(data).merge(server, replies_of(models, {"a": 1, "b": 3}))
    found, atoms = server.state.group("model"), server.state.group("atoms")
    width = len(found["fc1.fc.weight"])
    assert width > 8
    expected = torch.zeros(6, width)
    for name, share in (("a", 0.25), ("b", 0.75)):
        for j, i in enumerate(atoms[name].tolist()):
            expected[:, i] += share * models[name]["fc2.fc.weight"][:, j]
    torch.testing.assert_close(found["fc2.fc.weight"], expected)
    mean = 0.25 * models["a"]["head.weight"] + 0.75 * models["b"]["head.weight"]
    torch.testing.assert_close(found["head.weight"], mean)


def test_the_head_is_the_mean_by_samples_and_classes_keep_their_places(data: Any) -> None:
    server = server_at(PLAIN, 2)
    before = server.state.group("model")
    heads = {name: {"head.weight": torch.rand(2, 6), "head.bias": torch.rand(2)} for name in ("a", "b")}
    phase_of(data).merge(server, replies_of(heads, {"a": 1, "b": 3}))
    found = server.state.group("model")
    for name in ("head.weight", "head.bias"):
        torch.testing.assert_close(found[name], (heads["a"][name] + 3 * heads["b"][name]) / 4)
    assert all(torch.equal(found[name], before[name]) for name in before if not name.startswith("head"))
    assert "atoms" not in server.state


def test_nothing_changes_if_no_client_has_a_sample(data: Any) -> None:
    for index in (0, 2):
        server = server_at(PLAIN, index)
        server.state.put("atoms", {"a": torch.arange(8)})
        before = server.state.group("model")
        reply = CurrentLayer.at(PLAIN.graph(2), server.step).select_trainable(weights_of(PLAIN.build(2, Rng(5))))
        phase_of(data).merge(server, replies_of({"a": reply}, {"a": 0}))
        found = server.state.group("model")
        assert all(torch.equal(found[name], before[name]) for name in before)
        assert server.notes == ["no client has a training sample: the model does not change"]
        assert "atoms" not in server.state


def test_clients_without_samples_make_no_difference(data: Any, tmp_path: Path) -> None:
    shares = even_shares(data, 2, 2)
    for name, shares_used in (("with", [*shares, []]), ("without", shares)):
        run_tiny(tmp_path / name, "fedma", data, split_by(data, 2, shares_used), {"method": {"rounds": 4}})
    one, two = final(tmp_path / "with"), final(tmp_path / "without")
    assert one.group("model").keys() == two.group("model").keys()
    assert all(torch.equal(tensor, two.group("model")[name]) for name, tensor in one.group("model").items())


def test_replies_must_have_what_was_trained_in_the_present_widths(data: Any, tmp_path: Path) -> None:
    split = split_by(data, 2, even_shares(data, 2, 3))
    run_tiny(tmp_path / "run", "fedma", data, split, {"method": {"rounds": 1}})
    experiment = tiny_experiment("fedma", data, split)
    server = Server.from_payload(final(tmp_path / "run"), experiment.task, Rng(0))
    width = len(server.state.group("model")["fc1.fc.weight"])
    assert width > 8
    server.step = Step("train", 1, 1)
    (phase,) = experiment.method.phases()
    shapes = {name: tuple(t.shape) for name, t in phase.expects(server)["model"].items()}
    body = {"fc2.fc.weight": (6, width), "fc2.fc.bias": (6,)}
    assert shapes == {**body, "head.weight": (2, 6), "head.bias": (2,)}
    good = {name: torch.zeros(shape) for name, shape in shapes.items()}
    phase.check(server, Payload.of({"samples": 3}, model=good))
    with pytest.raises(BadReply, match=r"'fc2.fc.weight' is .* \(6, 8\)"):
        narrow = {**good, "fc2.fc.weight": torch.zeros(6, 8)}
        phase.check(server, Payload.of({"samples": 3}, model=narrow))


# --- which weights a client continues with ------------------------------------------------------------------


def client_at(index: int, state: Payload) -> Client:
    return Client("a", PLAIN, Step("train", index, index), ("a", "b"), view=lambda part: None, labels={}, state=state)  # type: ignore[arg-type,return-value]


def test_only_a_client_matched_in_the_previous_round_that_still_has_its_model_continues_with_it(data: Any) -> None:
    server = server_at(PLAIN, 0)
    own = {name: weights_of(PLAIN.build(2, Rng(seed))) for seed, name in enumerate("ab")}
    phase = phase_of(data)
    phase.merge(server, replies_of(own, {"a": 1, "b": 3}))
    model = server.state.group("model")
    current = CurrentLayer.at(PLAIN.graph(2), Step("train", 1, 1))

    def begins(index: int, sent: Payload, kept_from: int | None) -> dict[str, Tensor]:
        state = Payload() if kept_from is None else Payload.of({"round": kept_from}, model=own["a"])
        return initial_state(sent, client_at(index, state), current)

    server.step = Step("train", 1, 1)
    sent = phase.send(server, "a")
    continued = begins(1, sent, kept_from=0)
    atoms = server.state.group("atoms")["a"]
    assert torch.equal(continued["fc1.fc.weight"], model["fc1.fc.weight"])
    assert torch.equal(continued["fc2.fc.weight"][:, atoms], own["a"]["fc2.fc.weight"])
    assert torch.equal(continued["head.weight"], own["a"]["head.weight"])
    resize(PLAIN.build(2, Rng(0)), continued)

    absent, lost, late = phase.send(server, "newcomer"), None, -1
    for payload, kept in ((absent, 0), (sent, lost), (sent, late)):
        from_server = begins(1, payload, kept)
        assert all(torch.equal(from_server[name], tensor) for name, tensor in model.items())
    server.step = Step("train", 2, 2)
    assert "own" not in phase.send(server, "a")


def test_a_client_keeps_what_it_trained_and_which_round_it_is_from(data: Any) -> None:
    split = split_by(data, 2, even_shares(data, 2, 2))
    experiment = tiny_experiment("fedma", data, split)
    executor = Executor(data, split, experiment.config.data, experiment.method, experiment.task, 0, Path(), Path())
    client = executor.client(Job("local", Step("train", 1, 1), "", "client-00", split.known))
    reply = experiment.method.phases()[0].local(Payload.of(model=weights_of(PLAIN.build(2, Rng(0)))), client, Rng(0))
    assert client.state.info == {"round": 1}
    kept, sent = client.state.group("model"), reply.group("model")
    assert kept.keys() == sent.keys() == {"fc2.fc.weight", "fc2.fc.bias", "head.weight", "head.bias"}
    assert all(torch.equal(kept[name], tensor) for name, tensor in sent.items())


def test_clients_that_miss_a_round_do_not_stop_the_others(data: Any, tmp_path: Path) -> None:
    split = split_by(data, 2, even_shares(data, 2, 4))
    events: list[dict[str, Any]] = []
    settings = {
        "federation": {"participation": 0.5, "arrivals": {"client-03": 2}},
        "method": {"rounds": 7},
    }
    run_tiny(tmp_path / "run", "fedma", data, split, settings, listener=events.append)
    rounds = [event for event in events if event["event"] == "round"]
    assert len(rounds) == 7
    assert len({tuple(event["participants"]) for event in rounds}) > 2
    assert not [event for event in events if event["event"] == "client-failed"]


def test_own_starts_differ_and_a_shared_one_is_the_servers(data: Any) -> None:
    shared, own = phase_of(data), phase_of(data, start="own")
    server = server_at(PLAIN, 0)
    assert "model" in shared.send(server, "a")
    assert not own.send(server, "a").tensors
    server.step = Step("train", 1, 1)
    assert "model" in own.send(server, "a")


# --- learning, and what is rejected -------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["shared", "own"])
def test_fedma_learns_and_reports_its_width(start: str, data: Any, tmp_path: Path) -> None:
    split = split_by(data, 2, even_shares(data, 2, 3))
    settings = {"method": {"rounds": 6, "epochs": 10, "start": start}}
    metrics = run_tiny(tmp_path / "run", "fedma", data, split, settings)["metrics"]
    model = final(tmp_path / "run").group("model")
    assert metrics["closed_accuracy"] == 1.0
    assert metrics["width"] == (len(model["fc1.fc.weight"]) + len(model["fc2.fc.weight"])) / (8 + 6)


@pytest.mark.parametrize(("name", "layer"), [("resnet-18", "layer1.0.body.conv2"), ("wrn-16-4", "block1.0.shortcut")])
def test_a_residual_network_is_rejected_and_the_error_names_the_layer(name: str, layer: str, data: Any) -> None:
    with pytest.raises(UserError, match=f"cannot match the layer '{layer}' of '{name}'"):
        method_of(data).check(make(name), None)


@pytest.mark.parametrize("name", ["mlp", "simple-cnn", "digit-cnn", "vgg-9"])
def test_networks_without_branches_are_accepted(name: str, data: Any) -> None:
    method_of(data).check(make(name), None)


def test_a_residual_network_is_rejected_before_anything_is_written(refused: Refused) -> None:
    arguments = [word for word in TINY if word not in ("--model", "mlp", "model.hidden=[4]")]
    arguments.remove("--set")
    error = refused("run", "--method", "fedma", "--model", "resnet-18", "--out", "run", *arguments)
    assert "cannot match the layer 'layer1.0.body.conv2'" in error


def test_it_can_begin_with_another_runs_model(data: Any) -> None:
    server = server_at(PLAIN, 0)
    server.initial = Initial(weights_of(PLAIN.build(2, Rng(9))), ClassRegistry.of(("a", "b")), "elsewhere")
    method_of(data).start(server)
    assert torch.equal(server.state.group("model")["head.weight"], server.initial.weights["head.weight"])
