"""GAL as a whole: its phases, unusual federations, equal bytes, rejected replies, answers and metrics."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch

from fedwild import api
from fedwild.contract import Discovers, Outcome, Prediction, Server, Step
from fedwild.core.classes import ClassRegistry
from fedwild.core.errors import BadReply, UserError
from fedwild.core.rng import Rng
from fedwild.data import Dataset
from fedwild.data.samples import samples_of
from fedwild.discovery import ESTIMATORS
from fedwild.lifecycle.rounds import Federation as Running
from fedwild.methods import METHODS
from fedwild.methods.gal import GAL
from fedwild.methods.gal.describe import Describe
from fedwild.methods.gal.discover import Discover
from fedwild.methods.gal.known import Known
from fedwild.methods.gal.novel import Novel, NovelModel
from fedwild.models import build
from fedwild.openset import SCORES
from fedwild.runs.folder import RunFolder
from tests.methods.gal.federation import (
    KNOWN,
    NORMS,
    NOVEL,
    SETTINGS,
    described,
    equal,
    events,
    extractor,
    final,
    notes,
    predictor_of,
    run,
    split_of,
    tables,
)
from tests.tiny import model_bytes, run_tiny, tiny_dataset, tiny_experiment

# --- phases ---------------------------------------------------------------------------------------------------


def test_phases_follow_the_settings(data: Dataset) -> None:
    method = tiny_experiment("gal", data, split_of(data), tables(rounds=4, stages=2, novel_rounds=3)).method
    assert [(type(phase), phase.name, phase.rounds) for phase in method.phases()] == [
        (Known, "known", 4),
        (Describe, "describe", 1),
        (Discover, "discover-1", 1),
        (Novel, "novel-1", 3),
        (Describe, "describe", 1),
        (Discover, "discover-2", 1),
        (Novel, "novel-2", 3),
        (Describe, "describe", 1),
    ]
    assert [getattr(phase, "stage", 0) for phase in method.phases()] == [0, 1, 1, 1, 2, 2, 2, 3]


def test_there_is_always_a_round_in_which_clients_describe_known_samples(data: Dataset) -> None:
    method = tiny_experiment("gal", data, split_of(data), tables(rounds=0, stages=0)).method
    assert [(phase.name, phase.rounds) for phase in method.phases()] == [("known", 0), ("describe", 1)]


def test_all_clients_take_part_in_the_rounds_between_training(data: Dataset, tmp_path: Path) -> None:
    run(tmp_path / "run", data, parts={"federation": {"participation": 0.3}})
    rounds = events(tmp_path / "run", "round")
    phases = ["known", "known", "describe", "discover-1", "novel-1", "novel-1", "describe"]
    assert [event["phase"] for event in rounds] == phases
    assert [len(event["participants"]) for event in rounds] == [1, 1, 3, 3, 1, 1, 3]


def test_every_request_has_the_number_of_labelled_classes_and_the_novelty_threshold(
    data: Dataset, tmp_path: Path
) -> None:
    federation = described(data, tmp_path)
    threshold = None
    for phase in ("known", "describe", "discover-1", "novel-1"):
        federation.at(phase)
        assert federation.phase.send(federation.server, "client-00").info == {"labelled": KNOWN, "novelty": threshold}
        if phase in ("describe", "discover-1"):
            federation.merge()
            threshold = 1.0


def test_the_paper_s_variant_is_a_preset() -> None:
    paper = METHODS.get("gal-paper")
    assert issubclass(paper, GAL)
    assert issubclass(paper, Discovers)
    params: Any = paper.Params()
    assert (params.loss, params.rows, params.novelty, params.rehearse) == ("swl", "raw", "accept", False)
    assert (params.against_forgetting, params.keep_known, params.min_count) == ("ema", 0.0, 1)
    assert params.prototypes == "learnt"
    assert paper.parts["estimator"] == {"name": "ppm"}
    assert not paper.parts["objective"].get("balanced")


# --- unusual federations -------------------------------------------------------------------------------------


def test_a_client_that_arrives_at_discover_takes_part_from_then_on(data: Dataset, tmp_path: Path) -> None:
    late = {"federation": {"arrivals": {"client-02": "discover-1"}}}
    server = run(tmp_path / "run", data, parts=late)
    here = [(event["phase"], "client-02" in event["participants"]) for event in events(tmp_path / "run", "round")]
    assert here == [
        *[("known", False), ("known", False), ("describe", False)],
        *[("discover-1", True), ("novel-1", True), ("novel-1", True), ("describe", True)],
    ]
    assert sum(entry["samples"].get("client-02", 0) for entry in server.info["classes"]) == 16


def test_a_client_that_missed_the_discovery_takes_part_in_learning(data: Dataset, tmp_path: Path) -> None:
    server = run(tmp_path / "run", data, parts={"federation": {"arrivals": {"client-02": "novel-1"}}})
    assert all("client-02" not in entry["samples"] for entry in server.info["classes"])
    infos = [event["info"] for event in events(tmp_path / "run", "client") if event["phase"] == "novel-1"]
    assert [info["samples"] for info in infos] == [16] * 6


@pytest.mark.parametrize("why", ["no unlabelled samples", "no novel samples", "no cluster is large enough"])
def test_if_no_class_is_found_learning_is_skipped_and_the_run_ends(why: str, data: Dataset, tmp_path: Path) -> None:
    split = split_of(data, pools=[[], [], []]) if why == "no unlabelled samples" else split_of(data)
    choices: dict[str, dict[str, Any]] = {
        "no novel samples": {"r": -1.0},
        "no cluster is large enough": {"min_count": 1000},
    }
    server = run(tmp_path / "run", data, split, **choices.get(why, {}))
    assert any(note.startswith("no novel class found") for note in notes(tmp_path / "run"))
    assert [event["phase"] for event in events(tmp_path / "run", "skip")] == ["novel-1", "novel-1"]
    assert [entry["name"] for entry in server.info["classes"]] == list(data.classes[:KNOWN])
    metrics = api.Run(tmp_path / "run").metrics
    assert (metrics["number_found"], metrics["number_true"]) == (0.0, 2.0)
    assert metrics["novel_accuracy"] == 0.0
    assert metrics["known_accuracy"] == metrics["known_accuracy_told"] == metrics["closed_accuracy"]
    assert metrics["forgetting"] == 0.0
    answers = predictor_of(tmp_path / "run", data, split).predict(samples_of(data, split.test, "test").all()[0])
    assert answers.logits.shape == (len(split.test), KNOWN)


POOLS: dict[str, list[list[int]]] = {
    "fewer samples than clusters": [[3], [4], [9, 10]],
    "one sample in all": [[3], [], []],
    "only known samples": [[0, 1], [2, 6, 7], [8, 12]],
}


@pytest.mark.parametrize("estimator", ESTIMATORS.names())
@pytest.mark.parametrize("odd", POOLS)
def test_runs_with_unusual_pools_end(odd: str, estimator: str, data: Dataset, tmp_path: Path) -> None:
    part = {"name": estimator, **({"epochs": 3} if estimator == "macc-pim" else {})}
    server = run(tmp_path / "run", data, split_of(data, pools=POOLS[odd]), parts={"estimator": part})
    assert server.info["state"]["estimates"][0]["number"] >= 1
    assert all(torch.isfinite(tensor).all() for tensor in server.group("model").values())


@pytest.mark.parametrize("settings", [{"loss": "swl"}, {"loss": "bce"}, {"loss": "labels", "rehearse": True}], ids=str)
@pytest.mark.parametrize("model", [{}, NORMS], ids=["plain", "norms"])
def test_a_single_client_discovers_and_learns(
    model: dict[str, Any], settings: dict[str, Any], data: Dataset, tmp_path: Path
) -> None:
    server = run(tmp_path / "run", data, split_of(data, clients=1), parts=model, **settings)
    assert [entry["samples"] for entry in server.info["classes"][KNOWN:]] != [{}, {}]
    assert sum(entry["samples"].get("client-00", 0) for entry in server.info["classes"]) == 48


@pytest.mark.parametrize("estimator", ["committee", "ppm", "macc"])
def test_identical_samples_are_one_class(estimator: str, tmp_path: Path) -> None:
    data = tiny_dataset(classes=KNOWN + NOVEL, per_class=24)
    data.x_train[data.y_train >= KNOWN] = data.x_train[3].clone()
    server = run(tmp_path / "run", data, parts={"estimator": {"name": estimator}})
    assert [entry["name"] for entry in server.info["classes"][KNOWN:]] == ["novel-1"]


@pytest.mark.parametrize("phase", ["discover-1", "novel-1"])
def test_rounds_without_clients_change_nothing(phase: str, data: Dataset, tmp_path: Path) -> None:
    late = {"federation": {"arrivals": {f"client-{i:02d}": phase for i in range(3)}}}
    server = run(tmp_path / "run", data, parts=late, keep_known=0.9)
    assert len(server.info["classes"]) == (KNOWN + 2 if phase == "discover-1" else KNOWN)


def test_stages_without_data_find_nothing(data: Dataset, tmp_path: Path) -> None:
    server = run(tmp_path / "run", data, stages=2)
    assert [estimate["number"] for estimate in server.info["state"]["estimates"]] == [2, 0]


def test_without_stages_only_known_classes_are_learnt(data: Dataset, tmp_path: Path) -> None:
    server = run(tmp_path / "run", data, stages=0)
    assert [event["phase"] for event in events(tmp_path / "run", "round")] == ["known", "known", "describe"]
    assert "anchor" not in server
    assert "known_accuracy" not in api.Run(tmp_path / "run").metrics


def test_an_earlier_run_replaces_known_class_learning(tmp_path: Path) -> None:
    common: dict[str, Any] = {
        "data": {"name": "synthetic:8x8x1:5:200", "known": 3, "novel": 2},
        "model": {"name": "mlp", "hidden": [8, 6]},
        "partition": {"name": "iid"},
    }
    first = {**common, "method": {"name": "fedavg", "rounds": 2}}
    api.run(first, clients=2, workers=0, out=tmp_path / "first")
    second = {
        **common,
        "method": {"name": "gal", **SETTINGS, "rounds": 0, "novel_rounds": 0},
        "estimator": {"name": "given", "classes": 2},
        "federation": {"start_from": str(tmp_path / "first")},
    }
    api.run(second, clients=2, workers=0, out=tmp_path / "second")
    begun, ended = (final(tmp_path / name).group("model") for name in ("first", "second"))
    assert torch.equal(ended["head.weight"][:3], begun["head.weight"])
    assert len(ended["head.weight"]) == 5
    assert "head.bias" not in ended
    assert equal(extractor(begun), extractor(ended))
    assert [e["phase"] for e in events(tmp_path / "second", "round")] == ["describe", "discover-1", "describe"]


def test_an_objective_with_an_unknown_output_is_rejected(data: Dataset) -> None:
    with pytest.raises(UserError, match=r"objective\.name = 'proser' is not allowed with method 'gal'"):
        tiny_experiment("gal", data, split_of(data), tables({"objective": {"name": "proser"}}))


# --- equal bytes ---------------------------------------------------------------------------------------------


def test_the_result_is_bit_equal_with_workers_and_after_a_kill_in_every_round(data: Dataset, tmp_path: Path) -> None:
    split = split_of(data, stages=(1, 1))
    settings = tables(
        {"estimator": {"name": "committee"}, "correction": {"name": "scaffold"}}, stages=2, novel_rounds=1, rounds=1
    )

    class Killed(Exception):
        pass

    killed: list[int] = []

    def kill_once(event: dict[str, Any]) -> None:
        if event["event"] == "client" and event["index"] not in killed:
            killed.append(event["index"])
            raise Killed

    for workers in (0, 2):
        run_tiny(tmp_path / str(workers), "gal", data, split, settings, workers=workers)
    with pytest.raises(Killed):
        run_tiny(tmp_path / "killed", "gal", data, split, settings, listener=kill_once)
    for _ in range(20):
        experiment = tiny_experiment("gal", data, split, {"engine": {"workers": 0}, **settings})
        try:
            Running(experiment, RunFolder.open(tmp_path / "killed"), kill_once).run()
            break
        except Killed:
            continue
    assert killed == list(range(8))
    assert model_bytes(tmp_path / "0") == model_bytes(tmp_path / "2") == model_bytes(tmp_path / "killed")
    assert len(final(tmp_path / "0").info["classes"]) > KNOWN + 1


# --- invalid replies -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "change", "words"),
    [
        ("describe", lambda reply: reply.drop("clusters"), "clusters lacks"),
        ("describe", lambda reply: reply.drop("cosines"), "cosines lacks"),
        ("describe", lambda reply: reply.put("margins", {"novel": torch.zeros(1)}), "margins/novel"),
        ("describe", lambda reply: reply.info.update(samples=99), "of which 99"),
        ("describe", lambda reply: reply.info.update(samples=-1), "'samples'"),
        ("discover-1", lambda reply: reply.info.update(samples=2), "with 2 samples"),
        ("discover-1", lambda reply: reply.put("clusters", {}), "clusters lacks"),
        ("novel-1", lambda reply: reply.drop("model"), "model lacks"),
        (
            "novel-1",
            lambda reply: reply.add("model", {"head.weight": reply.group("model")["head.weight"][:KNOWN]}),
            "head.weight",
        ),
    ],
)
def test_invalid_replies_are_rejected(phase: str, change: Any, words: str, data: Dataset, tmp_path: Path) -> None:
    federation = described(data, tmp_path)
    for name in ("discover-1", "novel-1"):
        if federation.server.step.phase == phase:
            break
        federation.merge()
        federation.at(name)
    reply = federation.replies()["client-00"]
    change(reply)
    with pytest.raises(BadReply, match=words):
        federation.phase.check(federation.server, reply)


# --- answers -------------------------------------------------------------------------------------------------


def test_novel_classes_answer_if_they_win_by_more_than_the_bias(data: Dataset) -> None:
    model, origin = (build("mlp", (1, 8, 8), n, bias=False, params={"hidden": [8, 6]}).eval() for n in (5, 3))
    x = samples_of(data, torch.arange(40)).all()[0]
    with torch.no_grad():
        outputs, before = model(x), origin(x).argmax(1)
    score = SCORES.make("msp")
    answers = NovelModel(model, 5, score, labelled=3, bias=0.25, origin=None).predict(x)
    assert torch.allclose(answers.logits[:, :3], outputs[:, :3])
    assert torch.allclose(answers.logits[:, 3:], outputs[:, 3:] - 0.25)
    assert torch.allclose(answers.unknown.double(), -answers.logits.softmax(1).amax(1).double(), atol=1e-6)
    assert dict(answers.details) == {}
    details = NovelModel(model, 5, score, labelled=3, bias=0.25, origin=origin).predict(x).details
    assert torch.equal(details["before"], before)


def test_weights_for_another_run_have_the_bias_in_the_head(data: Dataset, tmp_path: Path) -> None:
    federation = described(data, tmp_path)
    method, state = federation.method, federation.server.state
    assert "head.bias" not in method.weights(federation.server)
    federation.merge()
    federation.at("discover-1").merge()
    state.info["bias"] = 0.5
    assert method.weights(federation.server)["head.bias"].tolist() == [0.0] * KNOWN + [-0.5] * 2
    assert "head.bias" not in state.group("model")


# --- metrics -------------------------------------------------------------------------------------------------


NAMES = ("cat", "dog")


def server_with(found: int, stages: int = 1) -> Server:
    registry = ClassRegistry.of(NAMES)
    for i in range(found):
        registry.add(f"novel-{i + 1}", "novel", since=3, stage=1)
    task: Any = None
    server = Server(task, registry, Step("describe", 1, 9), Rng(0))
    numbers = [found, *[0] * (stages - 1)] if stages else []
    server.state.info["estimates"] = [{"number": n, "low": n, "high": n, "curve": []} for n in numbers]
    return server


def outcome(server: Server, true: list[str], logits: torch.Tensor, before: list[int], novel: Any) -> Outcome:
    prediction = Prediction(logits, torch.zeros(len(true)), {"before": torch.tensor(before)})
    ids = {name: i for i, name in enumerate(server.classes.names)}
    truth = torch.tensor([ids.get(name, -1) for name in true])
    return Outcome(prediction, logits.argmax(1), truth, true, novel)


def gal_method() -> GAL:
    return GAL.__new__(GAL)


def count_best_matched(answers: list[int], truth: list[str], found: list[int], names: list[str]) -> int:
    """Return the number of hits of the best one-to-one assignment of found classes to true names, by trying all."""
    slots = [*names, *[""] * len(found)]
    return max(
        sum(dict(zip(found, chosen, strict=True)).get(a) == t for a, t in zip(answers, truth, strict=True))
        for chosen in set(permutations(slots, len(found)))
    )


@pytest.mark.parametrize("found", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(4))
def test_metrics_use_the_best_of_all_assignments(found: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    server = server_with(found)
    true = ["cat", "dog", "fox", "hen", "owl", "alien"] * 9
    logits = torch.randn(len(true), 2 + found, generator=generator)
    before = torch.randint(0, 2, (len(true),), generator=generator).tolist()
    metrics = gal_method().measure(server, outcome(server, true, logits, before, (("fox", "hen", "owl"),)))
    answers = logits.argmax(1).tolist()
    known = [i for i, name in enumerate(true) if name in NAMES]
    novel = [i for i, name in enumerate(true) if name in ("fox", "hen", "owl")]
    ids = list(range(2, 2 + found))
    old_hits = sum(answers[i] == NAMES.index(true[i]) for i in known)
    new_hits = count_best_matched([answers[i] for i in novel], [true[i] for i in novel], ids, ["fox", "hen", "owl"])
    assert metrics["known_accuracy"] == pytest.approx(old_hits / 18)
    assert metrics["novel_accuracy"] == pytest.approx(new_hits / 27)
    assert metrics["all_accuracy"] == pytest.approx((old_hits + new_hits) / 45)
    was = sum(before[i] == NAMES.index(true[i]) for i in known) / 18
    assert metrics["forgetting"] == pytest.approx(was - old_hits / 18)
    assert (metrics["number_found"], metrics["number_true"]) == (found, 3)
    # With known and novel samples told apart by the truth.
    told_old = sum(int(logits[i, :2].argmax()) == NAMES.index(true[i]) for i in known)
    apart = [2 + int(logits[i, 2:].argmax()) for i in novel]
    assert metrics["known_accuracy_told"] == pytest.approx(told_old / 18)
    told_new = count_best_matched(apart, [true[i] for i in novel], ids, ["fox", "hen", "owl"])
    assert metrics["novel_accuracy_told"] == pytest.approx(told_new / 27)
    assert metrics["novel_accuracy_told"] >= metrics["novel_accuracy"]


def test_perfect_clusters_have_metrics_of_1() -> None:
    server = server_with(2)
    true = ["cat", "dog", "hen", "fox"] * 3
    logits = 9.0 * torch.eye(4).repeat(3, 1)
    metrics = gal_method().measure(server, outcome(server, true, logits, [0, 1, 0, 0] * 3, (("fox", "hen"),)))
    for key in ("known_accuracy", "novel_accuracy", "all_accuracy", "novel_nmi", "novel_ari", "novel_accuracy_told"):
        assert metrics[key] == 1.0
    assert metrics["forgetting"] == 0.0


def test_classes_of_later_stages_do_not_count_yet() -> None:
    server = server_with(1)
    true = ["cat", "dog", "fox", "hen"]
    logits = 9.0 * torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]])
    stages = (("fox",), ("hen",))
    metrics = gal_method().measure(server, outcome(server, true, logits, [0, 1, 0, 0], stages))
    assert (metrics["novel_accuracy"], metrics["all_accuracy"], metrics["number_true"]) == (1.0, 1.0, 1.0)
    server = server_with(1, stages=2)
    metrics = gal_method().measure(server, outcome(server, true, logits, [0, 1, 0, 0], stages))
    assert (metrics["novel_accuracy"], metrics["all_accuracy"], metrics["number_true"]) == (0.5, 0.75, 2.0)
    assert (metrics["number_found"], metrics["number_found_last"]) == (1.0, 0.0)


def test_before_a_discovery_there_are_no_metrics() -> None:
    server = server_with(0, stages=0)
    assert gal_method().measure(server, outcome(server, ["cat"], torch.zeros(1, 2), [0], ())) == {}


def test_if_no_class_was_found_novel_samples_are_wrong() -> None:
    server = server_with(0)
    metrics = gal_method().measure(
        server, outcome(server, ["cat", "fox", "hen"], torch.tensor([[1.0, 0]] * 3), [0, 0, 0], (("fox", "hen"),))
    )
    assert (metrics["novel_accuracy"], metrics["number_found"]) == (0.0, 0.0)
    # With known samples told apart, novel ones are one cluster, which stands for one of two classes.
    assert metrics["novel_accuracy_told"] == 0.5


def test_discovered_classes_count_as_the_true_classes_that_they_cover() -> None:
    server = server_with(2)
    logits = 9.0 * torch.eye(4)
    seen = outcome(server, ["cat", "dog", "hen", "fox"], logits, [0] * 4, (("fox", "hen"),))
    answering = gal_method().answers(server)
    assert answering.truth(seen).tolist() == [0, 1, 2, 3]
    assert (answering.personal, answering.threshold, answering.clients) == (False, None, server.clients)
