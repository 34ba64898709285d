"""FedPD: what it reduces to, what clients send, and what is rejected."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from fedwild.cli import main
from fedwild.contract import Replies, Server, Step
from fedwild.contract.engine import Job
from fedwild.core.bits import pack_bits, unpack_bits
from fedwild.core.classes import ClassRegistry
from fedwild.core.errors import BadReply, UserError
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.data import Dataset
from fedwild.engines.executor import Executor
from fedwild.methods.fedpd.parts import RunningMean
from fedwild.models import build
from fedwild.models.norms import measure_statistics, norm_keys
from fedwild.runs.events import read_events
from tests.tiny import even_shares, model_bytes, run_tiny, split_by, tiny_dataset, tiny_experiment

AS_FEDAVG = {
    "importance": "none",
    "align": "none",
    "average": "samples",
    "mean": "all",
    "norms": "merged",
    "calibrate": False,
}
PROSER = {"objective": {"name": "proser", "open_weight": 0.01}, "score": {"name": "proser"}}
AS_ONE = {"mean": "all", "norms": "merged"}
SAME_STEPS = {"lr": 0.01, "weight_decay": 5e-4}
NORMS = {"model": {"name": "digit-cnn", "width": 0.1}}


@pytest.fixture
def data() -> Dataset:
    return tiny_dataset(classes=3, per_class=20)


def uneven(data: Dataset) -> Any:
    rows = even_shares(data, 3, 1)[0]
    return split_by(data, 3, [rows[:12], rows[12:30], rows[30:]])


def final(folder: Path) -> dict[str, torch.Tensor]:
    return Payload.read(folder / "model.safetensors").group("model")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# --- what it reduces to ------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [{}, NORMS])
def test_without_masks_and_without_alignment_it_is_fedavg_bit_for_bit(
    model: dict[str, Any], data: Dataset, tmp_path: Path
) -> None:
    split = uneven(data)
    run_tiny(tmp_path / "fedpd", "fedpd", data, split, {**model, "method": AS_FEDAVG})
    run_tiny(tmp_path / "fedavg", "fedavg", data, split, {**model, **PROSER, "method": SAME_STEPS})
    assert same(final(tmp_path / "fedpd"), final(tmp_path / "fedavg"))


def test_whole_models_with_a_shared_start_keep_the_order_of_their_neurons(data: Dataset, tmp_path: Path) -> None:
    split = uneven(data)
    settings = {**AS_FEDAVG, "align": "exact"}
    run_tiny(tmp_path / "aligned", "fedpd", data, split, {"method": settings})
    run_tiny(tmp_path / "fedavg", "fedavg", data, split, {**PROSER, "method": SAME_STEPS})
    assert same(final(tmp_path / "aligned"), final(tmp_path / "fedavg"))


def test_without_conquer_it_differs_from_averaging_only_in_the_weights_in_neither_subnetwork(
    data: Dataset, tmp_path: Path
) -> None:
    split = uneven(data)
    for name, settings in {
        "kept": {"align": "none", "rest": "kept"},
        "zero": {"align": "none"},
        "mean": {"align": "none", "importance": "none"},
    }.items():
        run_tiny(tmp_path / name, "fedpd-paper", data, split, {"method": {**settings, "rounds": 1}})
    kept, zero, mean = (final(tmp_path / name) for name in ("kept", "zero", "mean"))
    # Finding the subnetworks takes two backward passes instead of one, which rounds differently.
    assert all(torch.allclose(kept[name], mean[name], atol=1e-6) for name in mean)
    assert not torch.equal(kept["fc1.fc.weight"], zero["fc1.fc.weight"])
    assert torch.equal(kept["fc1.fc.bias"], zero["fc1.fc.bias"])


@pytest.mark.parametrize("maps", ["one", "three", "two"])
def test_identical_clients_merge_to_themselves(maps: str, data: Dataset, tmp_path: Path) -> None:
    experiment = tiny_experiment("fedpd-paper", data, uneven(data), {**NORMS, "method": {"maps": maps, "rest": "kept"}})
    replies = same_replies(experiment, data, tmp_path, clients=3)
    server = server_of(experiment)
    training(experiment).merge(server, replies)
    sent = next(iter(replies)).payload.group("model")
    assert same(server.state.group("model"), sent)


def same_replies(experiment: Any, data: Dataset, folder: Path, clients: int) -> Any:
    """One client's reply under several names."""
    reply = one_reply(experiment, data, folder)
    return Replies({f"client-{i:02d}": (lambda: Payload.decode(reply)) for i in range(clients)})


def one_reply(
    experiment: Any, data: Dataset, folder: Path, client: str = "client-00", step: Step = Step("train", 0, 0)
) -> bytes:
    server = server_of(experiment)
    server.step = step
    down = folder / "down.safetensors"
    training(experiment).send(server, client).write(down)
    e = experiment
    executor = Executor(data, e.split, e.config.data, e.method, e.task, 0, folder, folder)
    answer = executor.execute(Job("local", server.step, str(down), client, server.classes.names))
    executor.close()
    assert answer.error is None, answer.traceback
    return answer.read().encode()


def training(experiment: Any) -> Any:
    """The training phase of an experiment's method."""
    return next(phase for phase in experiment.method.phases() if phase.name == "train")


def server_of(experiment: Any, phase: str = "train") -> Server:
    server = Server(experiment.task, ClassRegistry.of(experiment.split.known), Step(phase, 0, 0), Rng(0))
    experiment.method.start(server)
    return server


# --- what clients send -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.9])
def test_masks_keep_exactly_the_ratio_of_every_module(ratio: float, data: Dataset, tmp_path: Path) -> None:
    experiment = tiny_experiment("fedpd", data, uneven(data), {**NORMS, "method": {"ratio": ratio}})
    reply = Payload.decode(one_reply(experiment, data, tmp_path))
    weights = reply.group("model")
    for subnetwork in ("close", "open"):
        masks = unpack_bits(reply.group(subnetwork), weights)
        assert set(masks) == {name for name in weights if name.endswith("weight") and weights[name].dim() > 1}
        for mask in masks.values():
            assert int(mask.sum()) == int(ratio * mask.numel() + 0.5)
    assert reply.info["mask_bytes"] == sum(-(-2 * mask.numel() // 16) * 2 for mask in masks.values())


def test_masks_add_two_bits_for_every_weight_to_the_upload(data: Dataset, tmp_path: Path) -> None:
    sizes = {}
    for importance in ("none", "grad*weight"):
        settings = {"method": {"importance": importance}}
        result = run_tiny(tmp_path / importance[:4], "fedpd", data, uneven(data), settings)
        sizes[importance] = result["bytes_up"]
    replies = 3 * 2
    weights = sum(t.numel() for name, t in final(tmp_path / "none").items() if t.dim() > 1)
    added = (sizes["grad*weight"] - sizes["none"]) / replies
    assert weights / 4 <= added <= weights / 4 + 1200


def broken(reply: Payload, change: str) -> Payload:
    name = "close/fc1.fc.weight"
    bits = reply.tensors[name].clone()
    if change == "count":
        bits[0] = 255 if bits[0] == 0 else 0
        reply.tensors[name] = bits
    elif change == "shape":
        reply.tensors[name] = bits[:-1]
    elif change == "type":
        reply.tensors[name] = bits.float()
    elif change == "missing":
        reply.drop("open")
    elif change == "architecture":
        reply.tensors["model/fc1.fc.weight"] = reply.tensors["model/fc1.fc.weight"][:, :-1].clone()
    return reply


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("count", "close mask of 'fc1.fc.weight' keeps"),
        ("shape", "close tensor 'fc1.fc.weight' is"),
        ("type", "close tensor 'fc1.fc.weight' is"),
        ("missing", "open lacks"),
        ("architecture", "model tensor 'fc1.fc.weight' is"),
    ],
)
def test_a_reply_with_other_masks_or_another_architecture_is_rejected(
    change: str, words: str, data: Dataset, tmp_path: Path
) -> None:
    experiment = tiny_experiment("fedpd", data, uneven(data))
    reply = Payload.decode(one_reply(experiment, data, tmp_path))
    training(experiment).check(server_of(experiment), reply)
    with pytest.raises(BadReply, match=words):
        training(experiment).check(server_of(experiment), broken(reply, change))


def test_the_log_reports_the_overlap_of_the_subnetworks(data: Dataset, tmp_path: Path) -> None:
    run_tiny(tmp_path / "run", "fedpd", data, uneven(data))
    rows = [e["info"] for e in read_events(tmp_path / "run" / "events.jsonl") if e["event"] == "client"]
    overlaps = [row["overlap"] for row in rows if "overlap" in row]
    assert len(overlaps) == 3 * 2
    assert all(len(overlap) == 3 and all(0 <= share <= 0.5 for share in overlap) for overlap in overlaps)


# --- alignment ---------------------------------------------------------------------------------------------


def test_with_own_starts_clients_begin_with_different_weights(data: Dataset, tmp_path: Path) -> None:
    settings = {"method": {"start": "own", "epochs": 0}}
    experiment = tiny_experiment("fedpd", data, uneven(data), settings)
    first, second = (
        Payload.decode(one_reply(experiment, data, tmp_path, name)).group("model")
        for name in ("client-00", "client-01")
    )
    assert not torch.equal(first["fc1.fc.weight"], second["fc1.fc.weight"])
    assert not torch.equal(first["fc1.fc.weight"], server_of(experiment).state.group("model")["fc1.fc.weight"])


def test_aligned_models_with_own_starts_are_closer_to_their_mean_than_unaligned_ones(
    data: Dataset, tmp_path: Path
) -> None:
    """Averaging shrinks weights that do not match, so the mean of aligned models has larger weights."""
    norms = {}
    for align in ("none", "exact"):
        settings = {"method": {"start": "own", "rounds": 1, "align": align}}
        run_tiny(tmp_path / align, "fedpd", data, uneven(data), settings)
        norms[align] = float(final(tmp_path / align)["fc1.fc.weight"].norm())
    assert norms["exact"] > 1.05 * norms["none"]


def test_moved_neurons_are_measured_by_the_map_that_moved_them(data: Dataset, tmp_path: Path) -> None:
    split = uneven(data)
    own_starts = {"method": {"start": "own", "rounds": 1}}
    paper = run_tiny(tmp_path / "paper", "fedpd-paper", data, split, own_starts)["metrics"]
    ours = run_tiny(tmp_path / "ours", "fedpd", data, split, own_starts)["metrics"]
    shared = run_tiny(tmp_path / "shared", "fedpd", data, split)["metrics"]
    assert min(paper[f"moved_{part}"] for part in ("whole", "close", "open", "share")) > 0
    assert ours["moved_whole"] > 0
    assert "moved_open" not in ours
    assert shared["moved_whole"] == 0


def test_sinkhorn_merges_by_plans(data: Dataset, tmp_path: Path) -> None:
    pytest.importorskip("ot")
    split = uneven(data)
    for name, align in {"exact": "exact", "soft": 0.05}.items():
        settings = {"method": {"start": "own", "rounds": 1, "align": align, "mean": "all"}}
        run_tiny(tmp_path / name, "fedpd", data, split, settings)
    exact, soft = final(tmp_path / "exact"), final(tmp_path / "soft")
    assert not torch.equal(exact["fc1.fc.weight"], soft["fc1.fc.weight"])
    assert torch.isfinite(soft["fc1.fc.weight"]).all()


def test_a_running_mean_is_the_mean_of_what_was_added() -> None:
    mean = RunningMean()
    states = [{"w": torch.randn(3, generator=torch.Generator().manual_seed(i))} for i in range(4)]
    for state in states:
        mean.add(state)
    assert torch.allclose(mean.mean()["w"], torch.stack([s["w"] for s in states]).mean(0))
    assert torch.equal(states[0]["w"], torch.randn(3, generator=torch.Generator().manual_seed(0)))


# --- one model, or one per client --------------------------------------------------------------------------


def test_clients_with_different_labels_share_one_model_and_the_log_gives_the_reason(
    data: Dataset, tmp_path: Path
) -> None:
    rows = even_shares(data, 3, 1)[0]
    by_class = [[row for row in rows if int(data.y_train[row]) == label] for label in range(3)]
    results = {}
    for name, split in {"alike": uneven(data), "skewed": split_by(data, 3, by_class)}.items():
        results[name] = run_tiny(tmp_path / name, "fedpd", data, split, NORMS)
    assert set(results["alike"]["thresholds"]) == {"client-00", "client-01", "client-02"}
    assert set(results["skewed"]["thresholds"]) == {"*"}
    notes = [e["text"] for e in read_events(tmp_path / "skewed" / "events.jsonl") if e["event"] == "note"]
    distances = "(distance 0.67, by chance 0.12)"
    expected = f"the clients' label distributions are different {distances}: all clients get the same model"
    assert notes.count(expected) == 1


def test_auto_is_part_and_local_with_similar_labels_and_all_and_merged_otherwise(data: Dataset, tmp_path: Path) -> None:
    rows = even_shares(data, 3, 1)[0]
    skewed = split_by(data, 3, [[row for row in rows if int(data.y_train[row]) == label] for label in range(3)])
    for split, settings in ((uneven(data), {"mean": "part", "norms": "local"}), (skewed, AS_ONE)):
        run_tiny(tmp_path / f"auto-{settings['mean']}", "fedpd", data, split, NORMS)
        run_tiny(tmp_path / settings["mean"], "fedpd", data, split, {**NORMS, "method": settings})
        assert model_bytes(tmp_path / settings["mean"]) == model_bytes(tmp_path / f"auto-{settings['mean']}")


def test_the_decision_follows_all_clients_that_have_taken_part(data: Dataset, tmp_path: Path) -> None:
    experiment = tiny_experiment("fedpd", data, uneven(data), NORMS)
    method: Any = experiment.method
    reply = Payload.decode(one_reply(experiment, data, tmp_path))
    samples = reply.info["samples"]

    def merge(**labels: list[int]) -> None:
        replies = {
            name: Payload({**reply.tensors}, {**reply.info, "labels": counts}) for name, counts in labels.items()
        }
        training(experiment).merge(server, Replies({name: partial(replies.__getitem__, name) for name in replies}))

    server = server_of(experiment)
    merge(a=[samples, 0, 0], b=[samples, 0, 0])
    assert method.has_own_weights(server) and method.has_own_norms(server)
    assert {"norms/a", "norms/b", "masks/a", "masks/b", "parts"} <= set(groups_of(server))
    merge(c=[0, samples, 0])
    assert not method.has_own_weights(server) and not method.has_own_norms(server)
    assert not [group for group in groups_of(server) if group.startswith(("norms", "masks", "parts"))]
    merge(a=[samples, 0, 0])
    assert [note.split(" (")[0].rpartition(" ")[2] for note in server.notes] == ["similar", "different"]


def groups_of(server: Server) -> set[str]:
    """The groups of a server's state, with the client where a group has one."""
    names = [name.split("/") for name in server.state.tensors]
    return {"/".join(parts[:2]) if parts[0] in ("norms", "masks") else parts[0] for parts in names}


@pytest.mark.parametrize("labels", [None, [3, 3], [1.0, 2.0, 3.0], [-1, 5, 5], [True, 2, 3], [1, 1, 1]])
def test_a_reply_with_impossible_label_counts_is_rejected(labels: Any, data: Dataset, tmp_path: Path) -> None:
    experiment = tiny_experiment("fedpd", data, uneven(data))
    reply = Payload.decode(one_reply(experiment, data, tmp_path))
    reply.info["labels"] = labels
    with pytest.raises(BadReply, match="info 'labels' must have a count for each class"):
        training(experiment).check(server_of(experiment), reply)


# --- averaging within parts --------------------------------------------------------------------------------


def test_a_weight_is_averaged_over_the_clients_for_which_it_is_in_the_same_part(data: Dataset, tmp_path: Path) -> None:
    experiment = tiny_experiment("fedpd", data, uneven(data), {"method": {"average": "samples"}})
    method: Any = experiment.method
    server = server_of(experiment)
    names = [client.name for client in experiment.split.clients]
    replies = {name: Payload.decode(one_reply(experiment, data, tmp_path, name)) for name in names}
    training(experiment).merge(server, Replies({name: partial(replies.__getitem__, name) for name in names}))
    name = "fc1.fc.weight"
    codes = {}
    for client, reply in replies.items():
        close, open_ = (unpack_bits(reply.group(s), reply.group("model"))[name] for s in ("close", "open"))
        codes[client] = close.long() + 2 * open_.long()
    for client, code in codes.items():
        ours = method.client_weights(server, client)[name]
        for place in [(0, 0), (3, 17), (7, 63), (5, 30)]:
            alike = [other for other in codes if codes[other][place] == code[place]]
            samples = [replies[other].info["samples"] for other in alike]
            values = [float(replies[other].group("model")[name][place]) for other in alike]
            expected = sum(n * v for n, v in zip(samples, values, strict=True)) / sum(samples)
            assert float(ours[place]) == pytest.approx(expected, abs=1e-7)
    assert (
        len({len([o for o in codes if codes[o][p] == codes[c][p]]) for c in codes for p in [(0, 0), (3, 17), (5, 30)]})
        > 1
    )


def test_clients_agree_on_biases_and_differ_in_weights_of_different_parts(data: Dataset, tmp_path: Path) -> None:
    experiment = tiny_experiment("fedpd", data, uneven(data))
    run_tiny(tmp_path / "run", "fedpd", data, uneven(data))
    method: Any = experiment.method
    server = Server.from_payload(Payload.read(tmp_path / "run" / "model.safetensors"), experiment.task, Rng(0))
    first, second = (method.client_weights(server, name) for name in ("client-00", "client-01"))
    assert torch.equal(first["fc1.fc.bias"], second["fc1.fc.bias"])
    assert not torch.equal(first["fc1.fc.weight"], second["fc1.fc.weight"])


def test_parts_follow_their_neurons(data: Dataset, tmp_path: Path) -> None:
    """A client that is a permuted copy of another has the same parts once its neurons are aligned."""
    experiment = tiny_experiment("fedpd", data, uneven(data), {"method": {"average": "equal"}})
    method: Any = experiment.method
    server = server_of(experiment)
    graph = method.graph(server)
    reply = Payload.decode(one_reply(experiment, data, tmp_path))
    orders = {
        space: torch.randperm(width, generator=torch.Generator().manual_seed(1))
        for space, width in graph.spaces.items()
    }
    shuffled = Payload.of(reply.info, model=graph.permute(reply.group("model"), orders))
    for subnetwork in ("close", "open"):
        masks = unpack_bits(reply.group(subnetwork), reply.group("model"))
        shuffled.put(subnetwork, pack_bits(graph.permute(masks, orders)))
    training(experiment).merge(server, Replies({"client-00": lambda: reply, "client-01": lambda: shuffled}))
    for client in ("client-00", "client-01"):
        assert same(method.client_weights(server, client), reply.group("model"))


# --- batch-norm --------------------------------------------------------------------------------------------


def test_every_client_has_its_own_norms_in_the_common_order_of_neurons(data: Dataset, tmp_path: Path) -> None:
    experiment = tiny_experiment("fedpd", data, uneven(data), {**NORMS, "method": {"mean": "all"}})
    method: Any = experiment.method
    server = server_of(experiment)
    graph = method.graph(server)
    reply = Payload.decode(one_reply(experiment, data, tmp_path))
    draws = torch.Generator().manual_seed(1)
    orders = {space: torch.randperm(width, generator=draws) for space, width in graph.spaces.items()}
    scales = {name: 1.1 for name in norm_keys(reply.group("model")) if name.endswith(".weight")}
    theirs = {name: tensor * scales.get(name, 1) for name, tensor in reply.group("model").items()}
    shuffled = Payload.of(reply.info, model=graph.permute(theirs, orders))
    for subnetwork in ("close", "open"):
        masks = unpack_bits(reply.group(subnetwork), reply.group("model"))
        shuffled.put(subnetwork, pack_bits(graph.permute(masks, orders)))
    training(experiment).merge(server, Replies({"client-00": lambda: reply, "client-01": lambda: shuffled}))
    for client, expected in {"client-00": reply.group("model"), "client-01": theirs}.items():
        assert same(method.client_weights(server, client), expected)


def test_calibrated_statistics_are_those_of_the_merged_weights_on_the_clients_samples(
    data: Dataset, tmp_path: Path
) -> None:
    split = uneven(data)
    run_tiny(tmp_path / "run", "fedpd", data, split, NORMS)
    experiment = tiny_experiment("fedpd", data, split, NORMS)
    server = Server.from_payload(Payload.read(tmp_path / "run" / "model.safetensors"), experiment.task, Rng(0))
    method: Any = experiment.method
    weights = method.client_weights(server, "client-01")
    model = build("digit-cnn", (1, 8, 8), 4, params={"width": 0.1})
    model.load_state_dict(weights)
    executor = Executor(data, split, experiment.config.data, experiment.method, experiment.task, 0, tmp_path, tmp_path)
    samples = executor.client(Job("local", Step("calibrate", 0, 2), "", "client-01", split.known)).train
    measure_statistics(model, (x for x, _ in samples.batches(64)))
    for name, tensor in model.state_dict().items():
        if "running" in name:
            assert torch.allclose(tensor, weights[name], atol=1e-6), name


def test_merged_norms_can_be_calibrated_too(data: Dataset, tmp_path: Path) -> None:
    split = uneven(data)
    for name, calibrate in {"before": False, "after": True}.items():
        settings = {**NORMS, "method": {"norms": "merged", "calibrate": calibrate}}
        run_tiny(tmp_path / name, "fedpd", data, split, settings)
    before, after = final(tmp_path / "before"), final(tmp_path / "after")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if name.endswith(("running_mean", "running_var"))}


def test_local_norms_make_a_predictor_for_each_client_only_where_there_are_norms(data: Dataset, tmp_path: Path) -> None:
    split = uneven(data)
    with_norms = run_tiny(tmp_path / "norms", "fedpd", data, split, {**NORMS, "method": {"mean": "all"}})
    without = run_tiny(tmp_path / "plain", "fedpd", data, split, {"method": {"mean": "all"}})
    assert set(with_norms["thresholds"]) == {"client-00", "client-01", "client-02"}
    assert set(without["thresholds"]) == {"*"}


def test_a_client_that_never_trained_answers_with_the_merged_norms(data: Dataset, tmp_path: Path) -> None:
    split = uneven(data)
    settings = {**NORMS, "federation": {"arrivals": {"client-02": 9}}}
    result = run_tiny(tmp_path / "run", "fedpd", data, split, settings)
    assert 0 <= result["metrics"]["closed_accuracy"] <= 1
    experiment = tiny_experiment("fedpd", data, split, settings)
    server = Server.from_payload(Payload.read(tmp_path / "run" / "model.safetensors"), experiment.task, Rng(0))
    executor = Executor(data, split, experiment.config.data, experiment.method, experiment.task, 0, tmp_path, tmp_path)
    newcomer = executor.client(Job("test", server.step, "", "client-02", split.known))
    x = torch.rand(3, 1, 8, 8)
    predictor = experiment.method.answers(server).predictor
    answer = predictor(newcomer).predict(x)
    assert torch.equal(answer.logits, predictor(None).predict(x).logits)


# --- what is rejected --------------------------------------------------------------------------------------


def rejected(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str) -> str:
    with pytest.raises(SystemExit) as exit_:
        main(["run", "--method", "fedpd", "--out", str(folder / "run"), *arguments])
    assert exit_.value.code == 2
    assert not (folder / "run").exists()
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "objective.name=ce", "--set", "score.name=msp"], "objective.name = 'ce' is not allowed with"),
        (["--model", "tests.models.own_modules:PlainNet"], "'features.module.conv'"),
        (["--set", "method.maps=three"], "method.target = 'mean' is not allowed with"),
        (
            ["--model", "tests.models.own_modules:FrozenFirst", "--set", "method.rest=zero"],
            "method.rest = 'zero' is not allowed with a network that freezes 'fc1.1.weight'",
        ),
        (
            ["--set", "method.maps=two", "--set", "method.target=1", "--set", "method.mean=part"],
            "method.mean = 'part' is not allowed",
        ),
        (["--set", "method.align=0.1", "--set", "method.mean=part"], "and method.align = 0.1"),
        (["--set", "method.ratio=1.0"], "method.ratio"),
        (["--set", "method.align=sometimes"], "method.align"),
        (["--set", "method.align=0"], "method.align = 0 is not allowed"),
    ],
)
def test_what_cannot_be_aligned_or_divided_is_rejected_before_anything_is_written(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = rejected(capsys, tmp_path, *arguments)
    assert words in error
    assert "Traceback" not in error


def test_sinkhorn_without_pot_names_the_extra(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = tiny_experiment("fedpd", data, uneven(data), {"method": {"align": 0.1, "mean": "all"}})
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"fedwild\[ot\]"):
        experiment.method.check(None, None)


def test_the_preset_of_the_paper_has_its_settings(data: Dataset, tmp_path: Path) -> None:
    split = uneven(data)
    literal = {
        "stages": "two",
        "mean": "all",
        "maps": "three",
        "sweeps": 0,
        "target": 0,
        "rest": "zero",
        "norms": "merged",
        "calibrate": False,
    }
    run_tiny(tmp_path / "named", "fedpd-paper", data, split)
    run_tiny(tmp_path / "spelt", "fedpd", data, split, {"method": literal})
    assert model_bytes(tmp_path / "named") == model_bytes(tmp_path / "spelt")
