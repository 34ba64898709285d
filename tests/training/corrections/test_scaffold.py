"""SCAFFOLD: controls are mean gradients, steps are corrected for drift, strength 0 is plain FedAvg."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedwild.contract import Client, Replies, Server, Step
from fedwild.contract.task import Task, weights_of
from fedwild.core.classes import ClassRegistry
from fedwild.core.errors import BadReply, UserError
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.models import build
from fedwild.runs.events import read_events
from fedwild.training.corrections import ClientCorrection, Scaffold
from fedwild.training.corrections.scaffold import CHANGE, CONTROL, Control, pad_rows
from tests import sketches  # noqa: F401  (registers toy-scaffold, SCAFFOLD by option II)
from tests.tiny import even_shares, model_bytes, run_tiny, split_by, tiny_dataset, tiny_experiment

STEP = Step("train", 0, 0)
WITH_NORMS = {"name": "digit-cnn", "width": 0.1}
SCAFFOLD = {"correction": {"name": "scaffold", "strength": 1.0}}


@pytest.fixture
def data() -> Any:
    return tiny_dataset(classes=2)


@pytest.fixture
def split(data: Any) -> Any:
    return split_by(data, 2, even_shares(data, 2, 3))


def final(folder: Path) -> Payload:
    return Payload.read(folder / "model.safetensors")


def own_controls(folder: Path) -> dict[str, dict[str, Tensor]]:
    """Return the last control of every client that has one."""
    files = {path.parent.name: path for path in sorted((folder / "clients").glob("*/*.safetensors"))}
    return {name: Payload.read(path).group(CONTROL) for name, path in files.items()}


def failures(folder: Path) -> list[Any]:
    return [e["reason"] for e in read_events(folder / "events.jsonl") if e["event"] == "client-failed"]


def mean_control(folder: Path, name: str, clients: int) -> Tensor:
    """Return 1/N sum_k c_k of one parameter; a client without a control counts as zero."""
    like = final(folder).group(CONTROL)[name].double()
    total = torch.zeros_like(like)
    for controls in own_controls(folder).values():
        total[: len(controls[name])] += controls[name].double()
    return total / clients


def random_like(parameters: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: 0.1 * torch.randn(p.shape, generator=generator, dtype=torch.float64) for name, p in parameters.items()
    }


class Walk:
    """Five steps in float64 from a control c_k and a server's c, with a record of every gradient."""

    def __init__(self, optimiser: str, strength: float = 1.0, **settings: float) -> None:
        torch.manual_seed(0)
        self.model = build("mlp", (1, 8, 8), 3, params={"hidden": [5]}).double()
        self.parameters = dict(self.model.named_parameters())
        self.start = {name: p.detach().clone() for name, p in self.parameters.items()}
        self.own, self.common = random_like(self.start, 1), random_like(self.start, 2)
        self.state = Payload.of(control=self.own)
        client_correction = Control(self.parameters, self.common, self.state, strength)
        steps = getattr(torch.optim, optimiser)(self.model.parameters(), **settings)
        self.raw: dict[str, list[Tensor]] = {name: [] for name in self.parameters}
        self.corrected: dict[str, list[Tensor]] = {name: [] for name in self.parameters}
        generator = torch.Generator().manual_seed(3)
        for _ in range(5):
            x = torch.rand(4, 1, 8, 8, generator=generator, dtype=torch.float64)
            self.model.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(self.model(x), torch.tensor([0, 1, 2, 0])).backward()
            self.record(self.raw)
            client_correction.before_step()
            self.record(self.corrected)
            steps.step()
        self.change = client_correction.after_training(5, settings["lr"])[CHANGE]

    def record(self, gradients: dict[str, list[Tensor]]) -> None:
        for name, p in self.parameters.items():
            assert p.grad is not None
            gradients[name].append(p.grad.clone())

    def option_two(self, lr: float) -> dict[str, Tensor]:
        """Return c_k - c + (w_t - w_k) / (tau lr)."""
        return {
            name: self.own[name] - self.common[name] + (self.start[name] - p.detach()) / (5 * lr)
            for name, p in self.parameters.items()
        }


# --- the formulas -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strength", [1.0, 0.3])
def test_every_step_adds_the_servers_control_minus_the_clients_own(strength: float) -> None:
    walk = Walk("SGD", strength, lr=0.1)
    for name in walk.parameters:
        for raw, corrected in zip(walk.raw[name], walk.corrected[name], strict=True):
            expected = raw + strength * (walk.common[name] - walk.own[name])
            assert torch.allclose(corrected, expected, rtol=1e-12, atol=1e-14)


def test_with_plain_sgd_the_new_control_is_option_two() -> None:
    walk = Walk("SGD", lr=0.1)
    new = walk.state.group(CONTROL)
    for name, expected in walk.option_two(0.1).items():
        assert torch.allclose(new[name], expected, rtol=1e-10, atol=1e-13)
        assert torch.allclose(walk.change[name], expected - walk.own[name], rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize(
    ("optimiser", "settings"),
    [
        ("SGD", {"lr": 0.1, "momentum": 0.9}),
        ("SGD", {"lr": 0.1, "weight_decay": 0.1}),
        ("Adam", {"lr": 0.01}),
    ],
)
def test_with_any_optimiser_the_new_control_is_the_mean_gradient(optimiser: str, settings: Any) -> None:
    walk = Walk(optimiser, **settings)
    new = walk.state.group(CONTROL)
    for name, gradients in walk.raw.items():
        assert torch.allclose(new[name], torch.stack(gradients).mean(0), rtol=1e-12, atol=1e-14)
    option_two = walk.option_two(settings["lr"])
    assert max(float((new[name] - option_two[name]).abs().max()) for name in new) > 1e-3


def test_a_client_without_a_training_step_keeps_its_control() -> None:
    weight = nn.Parameter(torch.ones(2, 3))
    kept = {"weight": torch.full((2, 3), 0.5)}
    state = Payload.of(control=kept)
    up = Control({"weight": weight}, {}, state, 1.0).after_training(0, 0.1)
    assert torch.equal(up[CHANGE]["weight"], torch.zeros(2, 3))
    assert state.group(CONTROL)["weight"] is kept["weight"]


def test_a_weight_without_a_gradient_is_corrected_and_a_frozen_one_is_not() -> None:
    reached, unreached, frozen = (nn.Parameter(torch.ones(2)) for _ in range(3))
    frozen.requires_grad = False
    parameters = {"reached": reached, "unreached": unreached, "frozen": frozen}
    state = Payload.of(control={name: torch.full((2,), 0.25) for name in parameters})
    client_correction = Control(parameters, {name: torch.full((2,), 2.0) for name in parameters}, state, 1.0)
    reached.grad = torch.full((2,), 3.0)
    client_correction.before_step()
    assert reached.grad.tolist() == [4.75, 4.75]
    assert unreached.grad is not None
    assert unreached.grad.tolist() == [1.75, 1.75]
    assert frozen.grad is None
    change = client_correction.after_training(1, 0.1)[CHANGE]
    assert {name: control[0].item() for name, control in state.group(CONTROL).items()} == {
        "reached": 3.0,
        "unreached": 0.0,
        "frozen": 0.0,
    }
    assert {name: control[0].item() for name, control in change.items()} == {
        "reached": 2.75,
        "unreached": -0.25,
        "frozen": -0.25,
    }


def test_received_and_kept_controls_are_not_changed_in_place() -> None:
    weight = nn.Parameter(torch.ones(2))
    common, own = {"weight": torch.full((2,), 2.0)}, {"weight": torch.full((2,), 0.5)}
    client_correction = Control({"weight": weight}, common, Payload.of(control=own), 1.0)
    weight.grad = torch.full((2,), 3.0)
    client_correction.before_step()
    client_correction.after_training(1, 0.1)
    assert common["weight"].tolist() == [2.0, 2.0]
    assert own["weight"].tolist() == [0.5, 0.5]


def test_controls_get_zero_rows_for_new_classes() -> None:
    control = torch.arange(1.0, 7.0).view(2, 3)
    assert pad_rows(control, torch.ones(4, 3)).tolist() == [[1, 2, 3], [4, 5, 6], [0, 0, 0], [0, 0, 0]]
    assert pad_rows(torch.tensor([1.0, 2.0]), torch.ones(3)).tolist() == [1, 2, 0]
    assert torch.equal(pad_rows(control, torch.ones(2, 3)), control)
    assert pad_rows(torch.tensor(3.0), torch.tensor(1.0)).item() == 3.0
    for nothing in (None, torch.ones(2, 5), torch.ones(2), torch.tensor(1.0)):
        assert torch.equal(pad_rows(nothing, torch.ones(4, 3)), torch.zeros(4, 3))


# --- drift --------------------------------------------------------------------------------------------------


def bare_server(clients: int, **groups: dict[str, Tensor]) -> Server:
    """Return a server whose network is an mlp with two outputs."""
    names = tuple(f"client-{k}" for k in range(clients))
    task = Task((1, 8, 8), "mlp", {"hidden": [4]})
    return Server(task, ClassRegistry.of(["a", "b"]), STEP, Rng(0), names, Payload.of(**groups))


def quadratic_federation(corrected: bool, momentum: float = 0.0) -> float:
    """Return w after rounds of ten steps on f_1 = (w - 1)^2 / 2 and f_2 = 4 (w + 1)^2 / 2; the best w is -0.6."""
    curvatures, minima, lr, steps = [1.0, 4.0], [1.0, -1.0], 0.05, 10
    scaffold, server = Scaffold(Scaffold.Params()), bare_server(2)
    states = [Payload(), Payload()]
    w = torch.zeros(1, dtype=torch.float64)
    for _ in range(200):
        ends = []
        replies: dict[str, Payload] = {}
        for k in range(2):
            weight = nn.Parameter(w.clone())
            common = scaffold.to_clients(server)[CONTROL]
            client_correction = Control({"w": weight}, common, states[k], 1.0) if corrected else ClientCorrection()
            optimiser = torch.optim.SGD([weight], lr=lr, momentum=momentum)
            for _ in range(steps):
                optimiser.zero_grad()
                (curvatures[k] / 2 * (weight - minima[k]) ** 2).sum().backward()
                client_correction.before_step()
                optimiser.step()
            ends.append(weight.detach())
            replies[f"client-{k}"] = Payload.of({"samples": 1}, **client_correction.after_training(steps, lr))
        w = torch.stack(ends).mean(0)
        scaffold.merge(server, Replies({name: partial(replies.__getitem__, name) for name in replies}))
    return w.item()


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_clients_that_disagree_reach_the_common_minimum_but_fedavg_does_not(momentum: float) -> None:
    assert quadratic_federation(True, momentum) == pytest.approx(-0.6, abs=1e-9)
    assert abs(quadratic_federation(False, momentum) + 0.6) > 0.1


def test_the_fixed_point_of_fedavg_is_the_one_computed_by_hand() -> None:
    # Ten steps shrink the distance to a client's minimum by (1 - lr * curvature)^10; the mean of both ends is fixed.
    first, second = 0.95**10, 0.8**10
    expected = ((1 - first) - (1 - second)) / ((1 - first) + (1 - second))
    assert quadratic_federation(False) == pytest.approx(expected, abs=1e-9)


# --- at the server ------------------------------------------------------------------------------------------


def test_the_servers_control_moves_by_the_share_of_all_clients() -> None:
    server = bare_server(4, control={"w": torch.tensor([1.0, 1.0])})
    changes = {"client-0": torch.tensor([2.0, 0.0]), "client-2": torch.tensor([6.0, -4.0])}
    replies = {name: Payload.of({"samples": 3}, control_change={"w": changes[name]}) for name in changes}
    Scaffold(Scaffold.Params()).merge(server, Replies({name: partial(replies.__getitem__, name) for name in replies}))
    assert server.state.group(CONTROL)["w"].tolist() == [3.0, 0.0]


def test_the_servers_control_grows_with_the_head() -> None:
    server = bare_server(1, control={"w": torch.tensor([[1.0, 2.0]])})
    change = {"w": torch.tensor([[1.0, 1.0], [5.0, 6.0]])}
    Scaffold(Scaffold.Params()).merge(
        server, Replies({"client-0": lambda: Payload.of({"samples": 1}, control_change=change)})
    )
    assert server.state.group(CONTROL)["w"].tolist() == [[2.0, 3.0], [5.0, 6.0]]


@pytest.mark.parametrize("bias", [True, False])
def test_a_reply_must_have_the_parameters_and_nothing_else(bias: bool) -> None:
    task = Task((1, 8, 8), "digit-cnn", {"width": 0.1})
    network = task.build(5, Rng(0), bias)
    server = bare_server(1, model=weights_of(network))
    server.task = task
    wanted = Scaffold(Scaffold.Params()).expects(server)[CHANGE]
    assert list(wanted) == [name for name, _ in network.named_parameters()]
    assert {"head.weight", "head.bias"} - set(wanted) == (set() if bias else {"head.bias"})
    assert wanted["head.weight"].shape[0] == 5
    assert not [name for name in wanted if "running" in name or "tracked" in name]


def test_the_network_is_built_once_to_find_its_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    true_build = Task.build

    def counted(task: Task, outputs: int, rng: Rng, bias: bool = True) -> Any:
        built.append(outputs)
        return true_build(task, outputs, rng, bias)

    server = bare_server(1)
    server.state.put("model", weights_of(server.task.build(2, Rng(0))))
    monkeypatch.setattr(Task, "build", counted)
    scaffold = Scaffold(Scaffold.Params())
    for _ in range(3):
        assert scaffold.expects(server)
    assert built == [2]


def test_an_invalid_control_is_rejected(data: Any, split: Any) -> None:
    experiment = tiny_experiment("fedavg", data, split, SCAFFOLD)
    phase, server = experiment.method.phases()[0], bare_server(1)
    server.task = experiment.task
    experiment.method.start(server)
    model = server.state.group("model")
    good = {name: torch.zeros_like(tensor) for name, tensor in model.items()}
    phase.check(server, Payload.of({"samples": 1}, model=model, control_change=good))
    for bad in ({}, {**good, "more": torch.zeros(1)}, {**good, "head.bias": torch.zeros(7)}):
        with pytest.raises(BadReply, match=CHANGE):
            phase.check(server, Payload.of({"samples": 1}, model=model, control_change=bad))


def test_without_a_common_model_it_has_no_effect_and_the_log_says_so() -> None:
    scaffold, server = Scaffold(Scaffold.Params()), bare_server(1)
    model = server.task.build(2, Rng(0))
    client = Client("client-0", server.task, STEP, ("a", "b"), lambda part: None, ())  # type: ignore[arg-type, return-value]
    assert scaffold.expects(server) == {}
    assert type(scaffold.at_client(client, model, Payload.of(prototypes={"0": torch.ones(2)}))) is ClientCorrection
    scaffold.merge(server, Replies({"client-0": lambda: Payload({}, {"samples": 1})}))
    assert len(server.notes) == 1
    assert "scaffold has no effect" in server.notes[0]


# --- whole runs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_strength_0_is_plain_fedavg_bit_for_bit(optimizer: str, data: Any, split: Any, tmp_path: Path) -> None:
    method = {"method": {"optimizer": optimizer, "epochs": 2}}
    run_tiny(tmp_path / "none", "fedavg", data, split, method)
    off = {"correction": {"name": "scaffold", "strength": 0.0}}
    result = run_tiny(tmp_path / "off", "fedavg", data, split, {**method, **off})
    assert model_bytes(tmp_path / "off") == model_bytes(tmp_path / "none")
    plain = run_tiny(tmp_path / "again", "fedavg", data, split, method)
    assert (result["bytes_up"], result["bytes_down"]) == (plain["bytes_up"], plain["bytes_down"])


def test_strength_takes_effect(data: Any, split: Any, tmp_path: Path) -> None:
    run_tiny(tmp_path / "none", "fedavg", data, split)
    run_tiny(tmp_path / "whole", "fedavg", data, split, SCAFFOLD)
    run_tiny(tmp_path / "half", "fedavg", data, split, {"correction": {"name": "scaffold", "strength": 0.5}})
    heads = [final(tmp_path / name).group("model")["head.weight"] for name in ("none", "whole", "half")]
    assert not torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    assert not torch.equal(heads[1], heads[2])


def test_the_first_round_is_fedavgs(data: Any, split: Any, tmp_path: Path) -> None:
    one = {"method": {"rounds": 1}}
    run_tiny(tmp_path / "none", "fedavg", data, split, one)
    run_tiny(tmp_path / "scaffold", "fedavg", data, split, {**one, **SCAFFOLD})
    ours, plain = (final(tmp_path / name).group("model") for name in ("scaffold", "none"))
    assert all(torch.equal(ours[name], plain[name]) for name in plain)


def test_with_plain_sgd_it_agrees_with_option_two(data: Any, split: Any, tmp_path: Path) -> None:
    method = {"method": {"rounds": 4, "epochs": 2, "momentum": 0.0, "lr": 0.1}}
    for name in ("toy-scaffold", "none"):
        run_tiny(tmp_path / name, "fedavg", data, split, {**method, "correction": {"name": name}})
    run_tiny(tmp_path / "scaffold", "fedavg", data, split, {**method, **SCAFFOLD})
    ours, theirs, plain = (final(tmp_path / name).group("model") for name in ("scaffold", "toy-scaffold", "none"))
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-5) for name in ours)
    assert not all(torch.allclose(ours[name], plain[name], atol=1e-4) for name in ours)


@pytest.mark.parametrize("model", [{}, {"model": WITH_NORMS}])
def test_the_model_is_bit_equal_with_workers(model: Any, data: Any, split: Any, tmp_path: Path) -> None:
    for workers in (0, 2):
        run_tiny(tmp_path / str(workers), "fedavg", data, split, {**SCAFFOLD, **model}, workers=workers)
    assert model_bytes(tmp_path / "0") == model_bytes(tmp_path / "2")
    assert not failures(tmp_path / "0")


def test_after_a_full_round_the_servers_control_is_the_mean_of_the_clients(data: Any, tmp_path: Path) -> None:
    rows = even_shares(data, 2, 1)[0]
    # Clients of unlike sizes, one of them empty: it counts, with a control of zero.
    split = split_by(data, 2, [rows[:4], rows[4:16], rows[16:], []])
    run_tiny(tmp_path / "run", "fedavg", data, split, {**SCAFFOLD, "model": WITH_NORMS})
    control = final(tmp_path / "run").group(CONTROL)
    assert sorted(own_controls(tmp_path / "run")) == ["client-00", "client-01", "client-02"]
    # Of parameters only: the group "model" has batch-norm's statistics as well.
    assert len(control) < len(final(tmp_path / "run").group("model"))
    for name in control:
        assert torch.allclose(control[name].double(), mean_control(tmp_path / "run", name, 4), atol=1e-6)
    assert max(float(tensor.abs().max()) for tensor in control.values()) > 1e-3


def test_a_client_that_does_not_take_part_keeps_its_control(data: Any, tmp_path: Path) -> None:
    split = split_by(data, 2, even_shares(data, 2, 4))
    settings = {**SCAFFOLD, "federation": {"participation": 0.5}, "method": {"rounds": 4}}
    run_tiny(tmp_path / "run", "fedavg", data, split, settings)
    asked = [set(e["participants"]) for e in read_events(tmp_path / "run" / "events.jsonl") if e["event"] == "round"]
    # Some client has a control from a round before the last, or the test shows nothing.
    assert set().union(*asked) - asked[-1]
    assert set(own_controls(tmp_path / "run")) == set().union(*asked)
    control = final(tmp_path / "run").group(CONTROL)
    for name in control:
        assert torch.allclose(control[name].double(), mean_control(tmp_path / "run", name, 4), atol=1e-6)


def test_controls_grow_with_the_head(tmp_path: Path) -> None:
    data = tiny_dataset(classes=3)
    split = split_by(data, 2, even_shares(data, 2, 3), unlabelled=[2, 6, 10, 14])
    for name in ("GrowingHead", "Newcomer"):
        rows = {c: [i for i, y in enumerate(data.y_train.tolist()) if y == c] for c in range(3)}
        shares = [rows[0][:6] + rows[1][:6], rows[0][6:] + rows[1][6:], rows[1][:3] + rows[2]]
        own = split if name == "GrowingHead" else split_by(data, 2, shares)
        arrivals = {} if name == "GrowingHead" else {"federation": {"arrivals": {"client-02": 2}}}
        folder = tmp_path / name
        run_tiny(folder, f"tests.sketches:{name}", data, own, {**SCAFFOLD, **arrivals})
        assert not failures(folder)
        control = final(folder).group(CONTROL)
        assert control["head.weight"].shape[0] == 3
        assert control["head.weight"][2].abs().max() > 0
        # Also where a client came late: it had no part in the mean of the first rounds.
        for key in control:
            assert torch.allclose(control[key].double(), mean_control(folder, key, 3), atol=1e-6)


@pytest.mark.parametrize("method", ["fedoss", "fedoss-paper", "fedpd", "fedpd-paper"])
def test_it_works_with_other_methods(method: str, data: Any, split: Any, tmp_path: Path) -> None:
    run_tiny(tmp_path / "none", method, data, split)
    run_tiny(tmp_path / "scaffold", method, data, split, SCAFFOLD)
    assert not failures(tmp_path / "scaffold")
    control = final(tmp_path / "scaffold").group(CONTROL)
    for name in control:
        assert torch.allclose(control[name].double(), mean_control(tmp_path / "scaffold", name, 3), atol=1e-6)
    ours, plain = (final(tmp_path / name).group("model")["head.weight"] for name in ("scaffold", "none"))
    assert not torch.equal(ours, plain)


def test_it_works_with_an_objective_that_adds_an_output(data: Any, split: Any, tmp_path: Path) -> None:
    run_tiny(tmp_path / "run", "fedavg", data, split, {**SCAFFOLD, "objective": {"name": "proser"}})
    assert not failures(tmp_path / "run")
    assert final(tmp_path / "run").group(CONTROL)["head.weight"].shape[0] == 3


@pytest.mark.parametrize("strength", [-0.1, 1.1, "much"])
def test_an_invalid_strength_is_rejected_by_name(strength: Any, data: Any, split: Any) -> None:
    with pytest.raises(UserError, match=r"correction\.strength = "):
        tiny_experiment("fedavg", data, split, {"correction": {"name": "scaffold", "strength": strength}})
