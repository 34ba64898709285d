"""FedOSS: what travels, what is never averaged, what an odd federation does, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedwild.core.classes import ClassRegistry
from fedwild.cli import main
from fedwild.data import Dataset, Split
from fedwild.contract.engine import Job
from fedwild.engines.executor import Executor
from fedwild.core.errors import BadReply, UserError
from fedwild.contract.initial import Initial
from fedwild.methods.fedoss.method import FINETUNE, PRETRAIN, FedOSS, told_by
from fedwild.models import build
from fedwild.statistics.gaussians import FLOOR, merge_classes
from fedwild.core.payload import Payload
from fedwild.contract import Phase, Replies, Server, Step
from fedwild.core.rng import Rng
from fedwild.runs.events import read_events
from tests.tiny import even_shares, model_bytes, run_tiny, split_by, tiny_dataset, tiny_experiment

BRIEF: dict[str, Any] = {"rounds": 1, "finetune_rounds": 2, "batch_size": 8}
EVERYTHING = {**BRIEF, "boundary": "all", "min_count": 1}


@pytest.fixture
def data() -> Dataset:
    return tiny_dataset(classes=3, per_class=24)


def uneven(data: Dataset) -> Split:
    rows = even_shares(data, 3, 1)[0]
    return split_by(data, 3, [rows[:20], rows[20:44], rows[44:]])


def by_class(data: Dataset, shares: list[dict[int, int]]) -> Split:
    """Clients with the given number of samples of each class."""
    pools = {k: (data.y_train == k).nonzero().flatten().tolist() for k in range(3)}
    return split_by(data, 3, [[pools[k].pop() for k, n in share.items() for _ in range(n)] for share in shares])


def final(folder: Path) -> Payload:
    return Payload.read(folder / "model.safetensors")


class Federation:
    """A federation by hand: clients are asked in any order, and their states are kept here."""

    def __init__(
        self, data: Dataset, split: Split, folder: Path, settings: dict[str, Any], method: str = "fedoss"
    ) -> None:
        experiment = tiny_experiment(method, data, split, settings)
        assert isinstance(experiment.method, FedOSS)
        self.method: FedOSS = experiment.method
        self.names = [client.name for client in split.clients]
        registry = ClassRegistry.of(split.known)
        self.server = Server(experiment.task, registry, Step(PRETRAIN, 0, 0), Rng(0), tuple(self.names))
        self.method.start(self.server)
        self.states = {name: Payload() for name in self.names}
        self.executor = Executor(data, split, experiment.config.data, self.method, experiment.task, 0, folder, folder)

    def replies(self, order: list[str] | None = None) -> dict[str, Payload]:
        """Every client's reply in this round; the state of each stays."""
        found = {}
        for name in order or self.names:
            step = self.server.step
            client = self.executor.client(Job("local", step, "", name, self.server.classes.names))
            client.state = self.states[name]
            rng = Rng(0).child(step.phase, step.round, name)
            reply = self.method.local(self.method.send(self.server, name), client, rng)
            self.method.check(self.server, Payload.decode(reply.encode()))
            found[name] = reply
        return found

    def merge(self, replies: dict[str, Payload]) -> None:
        self.method.merge(self.server, Replies({name: lambda reply=reply: reply for name, reply in replies.items()}))

    def go_to(self, phase: str, round_: int) -> None:
        self.server.step = Step(phase, round_, round_)


def pretrained(data: Dataset, split: Split, folder: Path, method: str = "fedoss", **settings: Any) -> Federation:
    """A federation before its first round with virtual unknown samples."""
    federation = Federation(data, split, folder, {"method": {**EVERYTHING, **settings}}, method)
    federation.merge(federation.replies())
    federation.go_to(FINETUNE, 0)
    return federation


# --- what is never averaged -------------------------------------------------------------------------------


def test_personal_heads_do_not_touch_the_pretrained_model(data: Dataset, tmp_path: Path) -> None:
    models = []
    for branch in ("light", "full"):
        settings = {"method": {"rounds": 3, "finetune_rounds": 0, "branch": branch}}
        run_tiny(tmp_path / branch, "fedoss", data, uneven(data), settings)
        models.append(final(tmp_path / branch).group("model"))
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


def test_every_client_keeps_a_head_of_its_own(data: Dataset, tmp_path: Path) -> None:
    federation = pretrained(data, uneven(data), tmp_path, boundary="informed", branch="light")
    bank = federation.server.state.members("bank")
    assert list(bank) == federation.names
    for name in federation.names:
        assert torch.equal(bank[name]["head.weight"], federation.states[name].group("head")["head.weight"])
    assert not torch.equal(bank["client-00"]["head.weight"], bank["client-01"]["head.weight"])
    before = {name: state.group("head")["head.weight"].clone() for name, state in federation.states.items()}
    first = federation.replies()["client-00"].group("head")["head.weight"]
    # It goes on from where it was: a new light head would be a random one.
    assert 0 < (first - before["client-00"]).abs().max() < 0.01


def test_the_bank_is_a_snapshot_so_the_order_of_clients_does_not_matter(data: Dataset, tmp_path: Path) -> None:
    ends = []
    for turn in (1, -1):
        federation = pretrained(data, uneven(data), tmp_path, boundary="agreement")
        for round_ in range(2):
            federation.go_to(FINETUNE, round_)
            federation.merge(federation.replies(federation.names[::turn]))
        ends.append(federation.server.state.encode())
    assert ends[0] == ends[1]


def test_what_a_client_finds_depends_on_other_clients_heads(data: Dataset, tmp_path: Path) -> None:
    federation = pretrained(data, uneven(data), tmp_path, boundary="agreement", branch="light")
    for name, says in zip(federation.names, (0, 1, 2), strict=True):
        head = {key: torch.zeros_like(tensor) for key, tensor in federation.server.state.group(f"bank/{name}").items()}
        head["head.bias"][says] = 9.0
        federation.server.state.put(f"bank/{name}", head)
    # Of three heads that always say the same, one is right about every sample.
    assert federation.replies()["client-00"].info["boundary"] == 1.0
    for name in federation.names[1:]:
        federation.server.state.put(f"bank/{name}", federation.server.state.group("bank/client-00"))
    assert federation.replies()["client-00"].info["boundary"] == 0.0


def test_a_bank_has_a_limit_and_is_the_same_for_all(data: Dataset, tmp_path: Path) -> None:
    rows = even_shares(data, 3, 1)[0]
    split = split_by(data, 3, [rows[i::6] for i in range(6)])
    federation = pretrained(data, split, tmp_path, bank=2, boundary="informed")
    sent = [federation.method.send(federation.server, name) for name in federation.names]
    assert len(sent[0].members("bank")) == 2
    assert len({payload.encode() for payload in sent}) == 1
    assert list(sent[0].info["held"]) == list(sent[0].members("bank")) == list(federation.server.state.members("bank"))


def test_clients_without_samples_are_not_asked(data: Dataset, tmp_path: Path) -> None:
    split = by_class(data, [{0: 8, 1: 8, 2: 8}, {}, {0: 8, 2: 8}])
    federation = pretrained(data, split, tmp_path, boundary="informed")
    assert list(federation.server.state.members("bank")) == ["client-00", "client-02"]
    assert federation.server.state.info["held"] == {"client-00": [0, 1, 2], "client-02": [0, 2]}


@pytest.mark.parametrize("boundary", ["all", "margin", "perturbation"])
def test_rules_that_ask_nobody_send_no_heads(boundary: str, data: Dataset, tmp_path: Path) -> None:
    federation = pretrained(data, uneven(data), tmp_path, boundary=boundary)
    assert "bank" not in federation.method.send(federation.server, "client-00")


def test_heads_are_dropped_when_nobody_will_ask_them_again(data: Dataset, tmp_path: Path) -> None:
    run_tiny(tmp_path / "run", "fedoss", data, uneven(data), {"method": BRIEF})
    assert "bank" not in final(tmp_path / "run")


def test_a_head_is_asked_about_the_classes_of_its_own_client(data: Dataset, tmp_path: Path) -> None:
    """Client 0 has no class 2: its head, which always says 2, is taken to say the better of 0 and 1."""
    split = by_class(data, [{0: 12, 1: 12}, {0: 8, 1: 4, 2: 12}])
    federation = pretrained(data, split, tmp_path, boundary="informed", branch="light")
    for name, biases in (("client-00", [1.0, 0.0, 9.0]), ("client-01", [9.0, 0.0, 0.0])):
        head = {key: torch.zeros_like(tensor) for key, tensor in federation.server.state.group(f"bank/{name}").items()}
        head["head.bias"] = torch.tensor(biases)
        federation.server.state.put(f"bank/{name}", head)
    # Both heads are right about 0 and wrong about 1; one head alone knows class 2.
    assert federation.replies()["client-01"].info["boundary"] == 0.0
    federation.server.state.info["held"] = {"client-00": [0, 1, 2], "client-01": [0, 1, 2]}
    # If client 0 had class 2, heads would disagree about 0 and 2.
    assert federation.replies()["client-01"].info["boundary"] > 0.5


# --- what travels -----------------------------------------------------------------------------------------


def test_the_server_merges_statistics_as_theorem_1_says(data: Dataset, tmp_path: Path) -> None:
    federation = pretrained(data, uneven(data), tmp_path)
    replies = federation.replies()
    federation.merge(replies)
    merged = merge_classes(told_by(reply) for reply in replies.values())
    gaussians = federation.server.state.members("gaussians")
    assert list(gaussians) == ["0", "1", "2"]
    for k, found in merged.items():
        told = [told_by(reply)[k] for reply in replies.values()]
        mean = sum(part.count * part.mean for part in told) / sum(part.count for part in told)
        assert torch.allclose(gaussians[str(k)]["mean"], mean.float(), atol=1e-5)
        scatter = sum(part.scatter() + part.count * torch.outer(part.mean - mean, part.mean - mean) for part in told)
        root = gaussians[str(k)]["root"].double()
        assert torch.allclose(root @ root.T, scatter / (found.count - 1) + FLOOR * torch.eye(len(mean)), atol=1e-5)
        assert found.count == sum(part.count for part in told)


def test_statistics_count_every_pushed_sample_once(data: Dataset, tmp_path: Path) -> None:
    federation = pretrained(data, uneven(data), tmp_path, epochs=3)
    reply = federation.replies()["client-01"]
    assert sum(reply.info["counts"].values()) == reply.info["samples"]
    assert reply.info["boundary"] == 1.0
    # Samples without any gradient stay where they are.
    assert 0 < reply.info["displacement"] <= 1.001 * federation.method.params.step_size
    assert reply.info["statistics_bytes"] == sum(t.nbytes for t in reply.group("statistics").values()) > 0


def test_small_counts_are_not_told(data: Dataset, tmp_path: Path) -> None:
    split = by_class(data, [{0: 16, 1: 4}, {0: 8, 2: 12}])
    federation = pretrained(data, split, tmp_path, min_count=6)
    replies = federation.replies()
    assert list(replies["client-00"].info["counts"]) == ["0"]
    assert list(replies["client-00"].members("statistics")) == ["0"]
    assert list(replies["client-01"].info["counts"]) == ["0", "2"]


def test_own_gaussians_stay_at_the_client(data: Dataset, tmp_path: Path) -> None:
    federation = pretrained(data, by_class(data, [{0: 20, 1: 4}, {1: 20, 2: 20}]), tmp_path, aggregate=False)
    replies = federation.replies()
    federation.merge(replies)
    assert all("statistics" not in reply for reply in replies.values())
    assert "gaussians" not in federation.server.state
    assert [list(state.members("gaussians")) for state in federation.states.values()] == [["0"], ["1", "2"]]


def test_clients_without_common_gaussians_draw_from_their_own(data: Dataset, tmp_path: Path) -> None:
    federation = pretrained(data, by_class(data, [{0: 20, 1: 4}, {1: 20, 2: 20}]), tmp_path, aggregate=False, foss=1.0)
    federation.merge(federation.replies())
    payload = federation.method.send(federation.server, "client-00")
    model = federation.server.task.network(federation.server.state.group("model"), 4)
    grid = federation.method.layout(federation.server.task, 3).grid
    assert federation.method.sampler(payload, grid, model, Rng(0)) is None
    sample = federation.method.sampler(federation.states["client-01"], grid, model, Rng(0))
    assert sample is not None
    drawn, near = sample()
    assert near.tolist() == [1] * 6 + [2] * 6
    means = federation.states["client-01"].members("gaussians")
    for k in (1, 2):
        distances = {
            other: float((drawn[near == k] - means[str(other)]["mean"]).norm(dim=1).mean()) for other in (1, 2)
        }
        assert min(distances, key=lambda other: distances[other]) == k


def test_statistics_are_refreshed_as_often_as_asked(data: Dataset, tmp_path: Path) -> None:
    federation = pretrained(data, uneven(data), tmp_path, refresh=2)
    told = []
    for round_ in range(3):
        federation.go_to(FINETUNE, round_)
        replies = federation.replies()
        told.append("statistics" in replies["client-00"])
        federation.merge(replies)
    assert told == [True, False, True]


def test_events_tell_the_share_of_boundary_samples_their_displacement_and_the_bytes(
    data: Dataset, tmp_path: Path
) -> None:
    result = run_tiny(tmp_path / "run", "fedoss", data, uneven(data), {"method": EVERYTHING})
    infos = [event["info"] for event in read_events(tmp_path / "run" / "events.jsonl") if event["event"] == "client"]
    last = infos[-1]
    assert last["boundary"] == 1.0
    assert last["displacement"] > 0
    assert last["statistics_bytes"] > 0
    assert last["head_bytes"] > 0
    assert last["model_bytes"] > last["head_bytes"]
    assert result["metrics"]["boundary"] == 1.0
    assert result["metrics"]["displacement"] == pytest.approx(last["displacement"], rel=0.1)


def test_statistics_that_nobody_asked_for_are_refused(data: Dataset, tmp_path: Path) -> None:
    federation = pretrained(data, uneven(data), tmp_path, refresh=2)
    reply = federation.replies()["client-00"]
    federation.go_to(FINETUNE, 1)
    with pytest.raises(BadReply, match="asks for none"):
        federation.method.check(federation.server, reply)


# --- odd federations --------------------------------------------------------------------------------------

ODD: dict[str, list[dict[int, int]]] = {
    "a client of one class": [{0: 12}, {0: 6, 1: 12, 2: 12}],
    "every client of one class": [{0: 12}, {1: 12}, {2: 12}],
    "a client without samples": [{0: 8, 1: 8, 2: 8}, {}],
    "a client of one sample": [{0: 8, 1: 8, 2: 8}, {1: 1}],
    "one client": [{0: 8, 1: 8, 2: 8}],
    "a class nobody has": [{0: 12, 1: 12}, {0: 8, 1: 4}],
}
MODELS = [{"name": "mlp", "hidden": [8, 6]}, {"name": "digit-cnn", "width": 0.05}]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model["name"])
@pytest.mark.parametrize("boundary", ["informed", "agreement", "all"])
def test_odd_federations_run_to_the_end(
    odd: str, model: dict[str, Any], boundary: str, data: Dataset, tmp_path: Path
) -> None:
    # Batch-norm has no variance of one sample.
    batch = 1 if model["name"] == "mlp" else 2
    settings = {"method": {**EVERYTHING, "boundary": boundary, "batch_size": batch}, "model": model}
    run_tiny(tmp_path / "run", "fedoss", data, by_class(data, ODD[odd]), settings)
    infos = [e["info"] for e in read_events(tmp_path / "run" / "events.jsonl") if e["event"] == "client"]
    assert all(info["steps"] > 0 for info in infos if info["samples"] > 1)
    assert all(bool(torch.isfinite(t).all()) for t in final(tmp_path / "run").group("model").values())


def test_a_round_without_any_boundary_sample_is_said_and_trains_on_known_ones(data: Dataset, tmp_path: Path) -> None:
    federation = pretrained(data, uneven(data), tmp_path, boundary="margin", width=1e-9)
    before = federation.server.state.group("model")["head.weight"].clone()
    federation.merge(federation.replies())
    assert "no client found a boundary sample in this round" in federation.server.notes
    assert "gaussians" not in federation.server.state
    assert not torch.equal(before, federation.server.state.group("model")["head.weight"])


def test_a_class_without_new_statistics_keeps_its_gaussian(data: Dataset, tmp_path: Path) -> None:
    federation = pretrained(data, uneven(data), tmp_path)
    federation.merge(federation.replies())
    kept = federation.server.state.group("gaussians/1")["mean"].clone()
    replies = federation.replies()
    for reply in replies.values():
        reply.drop("statistics/1")
        del reply.info["counts"]["1"]
    federation.merge(replies)
    assert torch.equal(federation.server.state.group("gaussians/1")["mean"], kept)


def test_a_class_with_ten_samples_in_all_is_not_drawn_from(data: Dataset, tmp_path: Path) -> None:
    split = by_class(data, [{0: 16, 1: 7}, {0: 8, 1: 6, 2: 16}])
    federation = pretrained(data, split, tmp_path)
    replies = federation.replies()
    assert sum(reply.info["counts"].get("1", 0) for reply in replies.values()) == 10
    federation.merge(replies)
    assert list(federation.server.state.members("gaussians")) == ["0", "2"]


def test_the_unknown_output_begins_as_the_mean_of_the_classes(data: Dataset, tmp_path: Path) -> None:
    federation = pretrained(data, uneven(data), tmp_path)
    for tensor in (federation.server.state.group("model")[name] for name in ("head.weight", "head.bias")):
        assert torch.allclose(tensor[3], tensor[:3].mean(0), atol=1e-7)


@pytest.mark.parametrize("rounds", [0, 1])
def test_an_unknown_output_that_was_trained_before_is_kept(rounds: int, data: Dataset, tmp_path: Path) -> None:
    settings = {"method": {**EVERYTHING, "rounds": rounds}}
    federation = Federation(data, uneven(data), tmp_path, settings)
    weights = {name: torch.randn_like(t) for name, t in federation.server.state.group("model").items()}
    federation.server.initial = Initial(weights, federation.server.classes, "an earlier run")
    federation.method.start(federation.server)
    if rounds:
        federation.merge(federation.replies())
    assert torch.equal(federation.server.state.group("model")["head.weight"][3], weights["head.weight"][3])


def test_method_a_takes_samples_whose_answer_a_shake_changes(data: Dataset, tmp_path: Path) -> None:
    shares = []
    for width in (1e-6, 50.0):
        federation = pretrained(data, uneven(data), tmp_path, boundary="perturbation", width=width)
        shares.append(federation.replies()["client-00"].info["boundary"])
    assert shares[0] == 0.0
    assert shares[1] > 0.2


@pytest.mark.parametrize(
    ("shape", "model"),
    [((3, 16, 16), {"name": "resnet-18", "width": 2}), ((1, 8, 8, 8), {"name": "resnet-18-3d", "width": 2})],
)
@pytest.mark.parametrize("branch", ["light", "full"])
def test_images_and_volumes_with_residual_networks(
    shape: tuple[int, ...], model: dict[str, Any], branch: str, tmp_path: Path
) -> None:
    data = tiny_dataset(classes=2, per_class=20)
    generator = torch.Generator().manual_seed(0)
    for part in ("train", "test"):
        count = len(getattr(data, f"y_{part}"))
        object.__setattr__(
            data, f"x_{part}", torch.randint(0, 255, (count, *shape), generator=generator, dtype=torch.uint8)
        )
    split = split_by(data, 2, even_shares(data, 2, 2))
    settings = {"method": {**EVERYTHING, "branch": branch, "dims": 8}, "model": model}
    result = run_tiny(tmp_path / "run", "fedoss", data, split, settings)
    assert final(tmp_path / "run").group("gaussians")
    assert result["metrics"]["boundary"] == 1.0


# --- decisions and refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "cut"),
    [
        ("simple-cnn", (1, 28, 28), "conv2"),
        ("digit-cnn", (1, 16, 16), "conv3"),
        ("resnet-18", (3, 16, 16), "layer3"),
        ("mlp", (9,), "fc1"),
    ],
)
def test_the_cut_is_before_dense_layers_or_the_last_stage(
    name: str, shape: tuple[int, ...], cut: str, data: Dataset
) -> None:
    method = tiny_experiment("fedoss", data, uneven(data)).method
    assert isinstance(method, FedOSS)
    assert method.cut(build(name, shape, 3)) == cut


def test_unknown_is_where_its_output_is_the_largest(data: Dataset, tmp_path: Path) -> None:
    settings = {"method": {**EVERYTHING, "decision": "argmax"}}
    federation = Federation(data, uneven(data), tmp_path, settings)
    x = torch.rand(200, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    weights = federation.server.state.group("model")
    outputs = federation.server.task.network(weights, 4).eval()(x).detach()
    weights["head.bias"][3] -= (outputs[:, 3] - outputs[:, :3].amax(1)).median()
    answers = federation.method.predictor(federation.server).predict(x)
    largest = federation.server.task.network(weights, 4).eval()(x).argmax(1) == 3
    assert federation.method.threshold() == 0.0
    assert 0 < int(largest.sum()) < 200
    assert torch.equal(answers.unknown > 0, largest)


def test_a_calibrated_decision_leaves_the_threshold_to_the_engine(data: Dataset) -> None:
    settings = {"method": {"decision": "calibrated"}}
    assert tiny_experiment("fedoss", data, uneven(data), settings).method.threshold() is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": {"cut": "layer9"}}, "method.cut"),
        ({"method": {"low": 0.9, "high": 0.5}}, "method.low = 0.9 must be below method.high = 0.5"),
        ({"method": {"decision": "argmax"}, "score": {"name": "msp"}}, "score.name = 'msp' is not allowed"),
        ({"method": {"select": "density"}}, "method.log_density"),
        ({"method": {"keep": 9, "draws": 3}}, "method.keep = 9 is not allowed"),
        ({"method": {"rounds": 0, "finetune_rounds": 0}}, "method.rounds = 0 and method.finetune_rounds = 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], words: str, data: Dataset) -> None:
    method = tiny_experiment("fedoss", data, uneven(data), settings).method
    with pytest.raises(UserError, match=words):
        method.check_network(build("mlp", (1, 8, 8), 3))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda reply: reply.info.update(held=[7]), "'held'"),
        (lambda reply: reply.info.update(boundary="many"), "'boundary'"),
        (lambda reply: reply.info.update(displacement=-1.0), "'displacement'"),
        (lambda reply: reply.info["counts"].update({"0": 0}), "count of class 0"),
        (lambda reply: reply.info["counts"].pop("0"), "'counts'"),
        (lambda reply: reply.info.update(held=[1, 0]), "'held'"),
        (lambda reply: reply.info.update(held=[0] * 1000), "'held'"),
        (lambda reply: reply.info.update(boundary=1.5), "'boundary'"),
        (lambda reply: reply.info["counts"].update({"0": 3000}), "count of class 0"),
        (lambda reply: reply.info["counts"].update({"0": 1}), "statistics of class 0"),
        (lambda reply: reply.put("statistics/0", {"mean": torch.zeros(8)}), "statistics of class 0 lacks"),
        (lambda reply: reply.add("statistics/0", {"mean": torch.zeros(8, dtype=torch.float64)}), "float64"),
        (lambda reply: reply.put("head", {"head.weight": torch.zeros(3, 8)}), "head lacks"),
        (
            lambda reply: (
                reply.put("statistics/9", reply.group("statistics/0")),
                reply.info["counts"].update({"9": 3}),
            ),
            "no class",
        ),
    ],
)
def test_replies_that_do_not_fit_are_refused(change: Any, words: str, data: Dataset, tmp_path: Path) -> None:
    federation = pretrained(data, uneven(data), tmp_path)
    reply = federation.replies()["client-00"]
    change(reply)
    with pytest.raises(BadReply, match=words):
        federation.method.check(federation.server, reply)


def test_a_spread_that_is_no_covariance_does_not_stop_the_server(data: Dataset, tmp_path: Path) -> None:
    federation = pretrained(data, uneven(data), tmp_path)
    replies = federation.replies()
    spread = replies["client-02"].group("statistics/0")["spread"]
    replies["client-02"].group("statistics/0")["spread"].copy_(torch.full_like(spread, -1e6))
    federation.merge(replies)
    assert any("class-0" in note for note in federation.server.notes)
    assert list(federation.server.state.members("gaussians")) == ["1", "2"]


def test_phases_follow_the_settings(data: Dataset) -> None:
    method = tiny_experiment("fedoss", data, uneven(data), {"method": {"rounds": 4, "finetune_rounds": 3}}).method
    assert method.phases() == [Phase(PRETRAIN, 4), Phase(FINETUNE, 3)]


def test_the_learning_rate_is_halved_in_pretraining_and_fixed_afterwards(data: Dataset) -> None:
    settings = {"method": {"lr": 0.4, "halve_after": 2, "finetune_lr": 0.03}}
    method = tiny_experiment("fedoss", data, uneven(data), settings).method
    assert isinstance(method, FedOSS)
    assert [method.settings(PRETRAIN, n).lr for n in range(5)] == [0.4, 0.4, 0.2, 0.2, 0.1]
    assert [method.settings(FINETUNE, n).lr for n in range(2)] == [0.03, 0.03]
    assert [method.settings(phase, 0).optimizer for phase in (PRETRAIN, FINETUNE)] == ["sgd", "adam"]


def test_the_literal_variant_differs_in_its_defaults_only(data: Dataset, tmp_path: Path) -> None:
    ours = tiny_experiment("fedoss", data, uneven(data)).method.params.model_dump()
    paper = tiny_experiment("fedoss-paper", data, uneven(data)).method.params.model_dump()
    changed = {key: value for key, value in paper.items() if ours[key] != value}
    run_tiny(tmp_path / "paper", "fedoss-paper", data, uneven(data), {"method": BRIEF})
    run_tiny(tmp_path / "ours", "fedoss", data, uneven(data), {"method": {**BRIEF, **changed}})
    assert model_bytes(tmp_path / "paper") == model_bytes(tmp_path / "ours")


def test_pretraining_may_be_another_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick = ["--quiet", "--workers", "0", "--set", "method.epochs=1"]
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    finetuning = ["--method", "fedoss", "--start-from", first, "--rounds", "0", "--set", "method.finetune_rounds=1"]
    for arguments in (["run", "--rounds", "1", "--out", first, *quick], ["run", *finetuning, "--out", second, *quick]):
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
        assert exit_.value.code == 0, capsys.readouterr()
    begun, finished = (final(Path(folder)).group("model")["head.weight"] for folder in (first, second))
    assert len(begun) + 1 == len(finished)
