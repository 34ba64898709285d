"""Gains: what newcomers bring, what the model becomes, who is asked, who fails, what is taken back, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedwild.aggregation.means import weighted_mean
from fedwild.core.classes import ClassRegistry
from fedwild.data import Dataset, Samples, Split
from fedwild.methods.gains.method import Gains, typical_largest
from fedwild.core.payload import Payload
from fedwild.contract import Client, Server, Step
from fedwild.core.rng import Rng
from fedwild.runs.events import read_events
from fedwild.contract.task import weights_of
from tests.methods.by_hand import PLAIN, final, method_of, replies_of, states
from tests.tiny import joined_by, model_bytes, run_tiny, split_by, tiny_dataset

KNOWN, ROUNDS = 3, 5
SETTINGS: dict[str, Any] = {
    "rounds": ROUNDS,
    "epochs": 2,
    "batch_size": 8,
    "optimizer": "sgd",
    "lr": 0.1,
    "momentum": 0.5,
    "weight_decay": 0.0,
    "stages": 1,
    "adapt_rounds": 4,
    "discover_epochs": 3,
    "rule": "federation",
    "yardstick": "within",
    "least_shift": 0.1,
    "times": 2.0,
    "t_f": 0.0,
    "t_c": 0.0,
    "probes": 32,
    "min_count": 5,
    "synonym": 0.05,
    "sources": "samples",
    "new_rows": "both",
    "target_weight": "share",
    "keep": 0.001,
    "tail": "mean",
    "calibrate": True,
}
"""All of Gains' settings, so that its defaults may change; the ones that differ in a test are named there."""
MODEL = {"name": "mlp", "hidden": [16, 8]}


@pytest.fixture(scope="module")
def data() -> Dataset:
    """Six classes of 64 samples; class-5 is dark on bright."""
    data = tiny_dataset(classes=6, per_class=64, unknown=0)
    inverted = [255 - part[y == 5] for part, y in ((data.x_train, data.y_train), (data.x_test, data.y_test))]
    data.x_train[data.y_train == 5], data.x_test[data.y_test == 5] = inverted
    return data


def rows_of(data: Dataset, *classes: int) -> list[int]:
    return [i for i, label in enumerate(data.y_train.tolist()) if label in classes]


def dealt(data: Dataset, public: bool = False, clients: int = 4, **newcomers: list[int]) -> Split:
    """Most samples of known classes dealt to members, and these clients that are none yet."""
    rows = rows_of(data, *range(KNOWN))[:160]
    split = split_by(data, KNOWN, [rows[i::clients] for i in range(clients)])
    if not public:
        split = replace(split, public=split.public[:0])
    for name, own in newcomers.items():
        split = joined_by(split, data, own, name)
    return split


def held_out(data: Dataset) -> list[int]:
    return rows_of(data, *range(KNOWN))[160:]


def run(
    folder: Path, data: Dataset, split: Split, method: str = "gains", parts: dict[str, Any] | None = None, **given: Any
) -> Payload:
    """Run to the end; returns the final server."""
    run_tiny(folder, method, data, split, {"model": MODEL, **(parts or {}), "method": {**SETTINGS, **given}})
    return final(folder)


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_events(folder / "events.jsonl") if event["event"] == kind]


def findings(folder: Path, what: str) -> list[dict[str, Any]]:
    return [event for event in events(folder, "finding") if event["what"] == what]


def notes(folder: Path) -> str:
    return "\n".join(event["text"] for event in events(folder, "note"))


def phases(folder: Path) -> list[str]:
    """The phases of rounds that took place, once each, in order."""
    return list(dict.fromkeys(event["phase"] for event in events(folder, "round")))


def names(server: Payload) -> list[str]:
    return [entry["name"] for entry in server.info["classes"]]


@pytest.fixture(scope="module")
def alone(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same federation, before anybody came."""
    folder = tmp_path_factory.mktemp("gains") / "alone"
    run(folder, data, dealt(data), stages=0)
    return folder


@pytest.fixture(scope="module")
def grown(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A newcomer brought class-3 and class-4."""
    folder = tmp_path_factory.mktemp("gains") / "grown"
    run(folder, data, dealt(data, ann=rows_of(data, 3, 4)))
    return folder


# --- what is found ------------------------------------------------------------------------------------------


def test_new_classes_are_found_named_and_learnt(grown: Path) -> None:
    (found,) = findings(grown, "discovery")
    assert (found["client"], found["kind"], found["classes"]) == ("ann", "classes", ["class-3", "class-4"])
    # It has no class in common with the sources, so that there is no shift to tell.
    assert found["shift"] is None
    assert "ann brings new classes (class-3, class-4)" in notes(grown)
    assert phases(grown) == ["source", "declare-1", "discover-1", "adapt-1", "judge-1"]
    result = events(grown, "end")[0]["metrics"]
    assert result["target_accuracy"] > 0.9
    assert result["source_accuracy"] > 0.9


def test_the_registry_grows_at_its_end_and_says_who_brought_what(grown: Path) -> None:
    server = final(grown)
    assert names(server) == [f"class-{i}" for i in range(5)]
    assert [entry["origin"] for entry in server.info["classes"]] == ["known"] * 3 + ["ann"] * 2
    assert [entry["since"] for entry in server.info["classes"]] == [0] * 3 + [ROUNDS + 1] * 2
    assert len(server.group("model")["head.weight"]) == 5
    assert server.info["state"]["welcomed"] == ["ann"]
    # Nothing of the stage is left.
    assert {name.split("/")[0] for name in server.tensors} == {"model"}


def test_a_newcomer_with_old_and_new_classes_brings_the_new_ones(data: Dataset, tmp_path: Path) -> None:
    server = run(tmp_path / "run", data, dealt(data, ann=[*rows_of(data, 4), *held_out(data)]))
    (found,) = findings(tmp_path / "run", "discovery")
    assert (found["kind"], found["classes"]) == ("classes", ["class-4"])
    assert found["shift"] < found["limit"]
    assert names(server) == ["class-0", "class-1", "class-2", "class-4"]


def test_a_held_out_part_of_the_source_brings_nothing_and_leaves_the_model_as_it_was(
    data: Dataset, alone: Path, tmp_path: Path
) -> None:
    server = run(tmp_path / "run", data, dealt(data, ann=held_out(data)))
    (found,) = findings(tmp_path / "run", "discovery")
    assert (found["kind"], found["classes"], found["rows"]) == ("nothing", [], {})
    assert phases(tmp_path / "run") == ["source", "declare-1", "discover-1"]
    before = final(alone)
    assert server.tensors.keys() == before.tensors.keys()
    assert all(torch.equal(server.tensors[name], tensor) for name, tensor in before.tensors.items())
    assert server.info["classes"] == before.info["classes"]
    assert server.info["state"]["welcomed"] == ["ann"]


def domain_of(data: Dataset) -> Dataset:
    """Samples of class-5, dark on bright, are called class-1."""
    return replace(data, y_train=data.y_train.where(data.y_train != 5, 1))


def test_statistics_go_with_their_classes_whatever_the_order_of_names(data: Dataset, tmp_path: Path) -> None:
    other = replace(data, classes=("ten", "Seven", "9", "four", "3", "two"))
    run(tmp_path / "run", other, dealt(other, ann=[*held_out(data), *rows_of(data, 3)]), adapt_rounds=1)
    (found,) = findings(tmp_path / "run", "discovery")
    assert found["classes"] == ["four"]
    assert found["shift"] < found["limit"]


@pytest.mark.parametrize("method", ["gains", "gains-paper"])
def test_a_clear_change_of_domain_is_found_and_the_model_keeps_its_classes(
    method: str, data: Dataset, tmp_path: Path
) -> None:
    server = run(tmp_path / "run", domain_of(data), dealt(data, ann=rows_of(data, 5)), method)
    (found,) = findings(tmp_path / "run", "discovery")
    assert found["kind"] == "domain"
    assert found["shift"] > 3 * found["limit"]
    assert names(server) == ["class-0", "class-1", "class-2"]
    assert phases(tmp_path / "run")[-2:] == ["adapt-1", "judge-1"]
    (judgement,) = findings(tmp_path / "run", "judgement")
    assert judgement["bias"] == 0.0
    assert judgement["newcomer"]["now"] > judgement["newcomer"]["before"]


def test_the_paper_s_rule_goes_by_its_fixed_limits(data: Dataset, tmp_path: Path) -> None:
    split = dealt(data, ann=rows_of(data, 3))
    for name, limits, kind in (
        ("nothing", {"t_f": 1e9}, "nothing"),
        ("domain", {"t_c": 1e9}, "domain"),
        ("classes", {}, "classes"),
    ):
        server = run(tmp_path / name, data, split, rule="fixed", adapt_rounds=1, **limits)
        (found,) = findings(tmp_path / name, "discovery")
        assert found["kind"] == kind
        # A domain has no new classes, whatever was declared.
        assert len(server.info["classes"]) == (4 if kind == "classes" else 3)


def test_a_class_that_looks_like_a_known_one_is_asked_about(data: Dataset, tmp_path: Path) -> None:
    other_name = replace(data, y_train=torch.where(torch.arange(len(data.y_train)) >= 300, 3, data.y_train))
    own = [row for row in rows_of(data, 1) if row >= 300]
    run(tmp_path / "run", other_name, dealt(data, ann=own), adapt_rounds=1, synonym=5.0)
    assert "its class 'class-3' looks like 'class-1'" in notes(tmp_path / "run")
    assert "--label class-3=class-1" in notes(tmp_path / "run")


# --- probes --------------------------------------------------------------------------------------------------


def test_without_public_data_sources_offer_class_means_and_with_it_they_do_not(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered: list[tuple[str, bool]] = []
    declare = Gains.declare

    def listening(self: Gains, payload: Payload, client: Client, *rest: Any) -> Payload:
        reply = declare(self, payload, client, *rest)
        offered.append((client.name, "moments" in reply))
        return reply

    monkeypatch.setattr(Gains, "declare", listening)
    models = []
    for public in (False, True):
        offered.clear()
        run(tmp_path / str(public), data, dealt(data, public, ann=rows_of(data, 3)))
        assert dict(offered) == {**{f"client-0{i}": not public for i in range(4)}, "ann": False}
        assert findings(tmp_path / str(public), "discovery")[0]["kind"] == "classes"
        models.append(model_bytes(tmp_path / str(public)))
    assert models[0] != models[1]


def test_where_nobody_may_offer_anything_probes_are_noise(data: Dataset, tmp_path: Path) -> None:
    server = run(tmp_path / "run", data, dealt(data, ann=rows_of(data, 3)), min_count=1000)
    assert findings(tmp_path / "run", "discovery")[0]["classes"] == ["class-3"]
    assert names(server)[-1] == "class-3"


def test_public_probes_are_public_samples_and_drawn_ones_are_the_same_in_every_round(data: Dataset) -> None:
    from fedwild.data import samples_of

    method = method_of("gains", {"probes": 7})
    server = Server(PLAIN, ClassRegistry.of(("a", "b")), Step("discover-1", 0, 3), Rng(0))
    server.public = samples_of(data, np.arange(20, 40))
    found = method.probe_samples(server)
    public = {x.numpy().tobytes() for x in server.public.all()[0]}
    assert len(found) == 7
    assert {x.numpy().tobytes() for x in found} <= public
    server.public = None
    server.state.put("moments", {"mean": torch.rand(2, 1, 8, 8), "deviation": torch.rand(2, 1, 8, 8)})
    first = method.probe_samples(server)
    server.step, server.rng = Step("adapt-1", 1, 5), Rng(0).child("adapt-1", 1, "server")
    assert torch.equal(method.probe_samples(server), first)
    server.step = Step("adapt-2", 1, 9)
    assert not torch.equal(method.probe_samples(server), first)


# --- weights and models --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["classes", "domain"])
@pytest.mark.parametrize("method", ["gains", "gains-paper", "gains-released"])
def test_all_weights_of_an_aggregation_add_up(method: str, kind: str, data: Dataset, tmp_path: Path) -> None:
    """To 1; in the released program to the sources' share and their number."""
    own = rows_of(data, 3 if kind == "classes" else 5)
    given = {"target_weight": "released"} if method == "gains-released" else {}
    given |= {"sources": "samples" if method == "gains" else "equal"}
    split = dealt(data, ann=own)
    run(tmp_path / "run", domain_of(data), split, method, **given, adapt_rounds=2, t_c=0.0)
    found = findings(tmp_path / "run", "weights")
    # The first joint model is made by the server of the one model that all sources still have.
    assert [event["phase"] for event in found] == ["discover-1", "adapt-1", "adapt-1"]
    held = {client.name: len(client.train) for client in split.clients}
    share = 1 - held["ann"] / sum(held.values())
    for event in found:
        for part in ("encoder", "classifier") if kind == "domain" else ("encoder",):
            weights = event[part]
            others = sum(value for name, value in weights.items() if name != "ann")
            assert others == pytest.approx(share, abs=1e-6)
            # Four sources, also where the server computes with the one model that they have in common.
            released = method == "gains-released"
            assert sum(weights.values()) == pytest.approx(share + 4 if released else 1, abs=1e-6)
            assert weights["ann"] == pytest.approx(4 if released else 1 - share, abs=1e-6)
        assert ("classifier" in event) == (kind == "domain")


def heads(seed: int, samples: dict[str, int], rows: int = 3) -> dict[str, Payload]:
    """Networks of clients that differ."""
    found = {}
    for number, (name, count) in enumerate(samples.items()):
        model = weights_of(PLAIN.build(rows, Rng(seed + number)))
        found[name] = Payload.of({"samples": count}, model=model)
    return found


def adapting(kind: str, **groups: Any) -> Server:
    """A server in the middle of a stage of ann's: two classes before, and a third one if she brings classes."""
    classes = ClassRegistry.of(("a", "b"))
    server = Server(PLAIN, ClassRegistry.of(("a", "b")), Step("adapt-1", 0, 4), Rng(0), ("bob", "cyd", "ann"))
    server.newcomers = ("ann",)
    declared = ["c"] if kind == "classes" else []
    for name in declared:
        server.classes.add(name, "ann", 3)
    server.state.info["arrival"] = {"kind": kind, "before": classes.to_json(), "declared": declared, "samples": 9}
    server.state = Payload({**server.state.tensors, **Payload.of(**groups).tensors}, server.state.info)
    return server


@pytest.mark.parametrize(
    ("sources", "sizes"),
    [("samples", {"ann": 30, "bob": 7, "cyd": 50}), ("equal", {"ann": 30, "bob": 20, "cyd": 20})],
)
def test_a_domain_s_model_is_fedavg_s_where_sources_are_equally_near(sources: str, sizes: dict[str, int]) -> None:
    method = method_of("gains", {"sources": sources, "keep": 0.0})
    replies = replies_of(**heads(0, sizes, rows=2))
    server = adapting("domain")
    equally = {"bob": 0.4, "cyd": 0.4}
    method.put_together(server, replies, equally, equally, 2)
    mean = weighted_mean(replies, "model")
    assert mean is not None
    for name, tensor in server.state.group("model").items():
        assert torch.allclose(tensor, mean[name], atol=1e-6), name


def test_old_rows_are_the_sources_mean_and_new_ones_the_newcomer_s_bit_for_bit() -> None:
    method = method_of("gains", {"new_rows": "newcomer"})
    payloads = heads(0, {"ann": 30, "bob": 7, "cyd": 50})
    replies = replies_of(**payloads)
    server = adapting("classes", model=payloads["bob"].group("model"))
    method.put_together(server, replies, {"bob": 0.3, "cyd": 0.9}, {"bob": 0.0, "cyd": 5.0}, 2)
    mean = weighted_mean((reply for reply in replies if reply.client != "ann"), "model")
    assert mean is not None
    model, own = server.state.group("model"), payloads["ann"].group("model")
    for name in ("head.weight", "head.bias"):
        assert torch.equal(model[name][:2], mean[name][:2])
        assert torch.equal(model[name][2], own[name][2])


def test_new_rows_also_learn_from_sources_what_is_none() -> None:
    payloads = heads(0, {"ann": 30, "bob": 10, "cyd": 30})
    server = adapting("classes")
    method = method_of("gains", {"new_rows": "both"})
    method.put_together(server, replies_of(**payloads), {"bob": 0, "cyd": 0}, {}, 2)
    bias = {name: float(payload.group("model")["head.bias"][2]) for name, payload in payloads.items()}
    expected = (bias["ann"] + 0.25 * bias["bob"] + 0.75 * bias["cyd"]) / 2
    assert float(server.state.group("model")["head.bias"][2]) == pytest.approx(expected, abs=1e-6)


def test_sources_are_weighed_by_their_own_difference_from_the_newcomer() -> None:
    method = method_of("gains", {"sources": "equal", "probes": 5, "new_rows": "newcomer"})
    payloads = heads(0, {"ann": 20, "bob": 10, "cyd": 10})
    server = adapting("domain", moments={"mean": torch.rand(2, 1, 8, 8), "deviation": torch.rand(2, 1, 8, 8)})
    server.classes.add("c", "known", 0)
    method.aggregate(server, replies_of(**payloads))
    (found,) = server.findings
    probes = method.probe_samples(server)
    embedded = {}
    for name, payload in payloads.items():
        network = PLAIN.build(3, Rng(0))
        network.load_state_dict(payload.group("model"))
        with torch.no_grad():
            embedded[name] = network.eval().embed(probes).double()
    for part in ("encoder", "classifier"):
        near = {}
        for name in ("bob", "cyd"):
            own, theirs = payloads["ann"].group("model"), payloads[name].group("model")
            if part == "encoder":
                difference = float((embedded[name] - embedded["ann"]).abs().sum()) / embedded["ann"].numel()
            else:
                weight, bias = (own[key].double() - theirs[key].double() for key in ("head.weight", "head.bias"))
                difference = float(weight.square().sum().sqrt() + bias.square().sum().sqrt()) / 2
            near[name] = 1 / (1 + difference)
        expected = {name: value / sum(near.values()) * 20 / 40 for name, value in near.items()}
        assert found[part] == pytest.approx({**expected, "ann": 0.5}, rel=1e-5)


def test_a_stage_ends_with_the_mean_of_the_last_half_of_its_models(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[torch.Tensor] = []
    together = Gains.put_together

    def listening(self: Gains, server: Server, *rest: Any) -> None:
        together(self, server, *rest)
        made.append(server.state.group("model")["head.weight"].clone())

    monkeypatch.setattr(Gains, "put_together", listening)
    for tail in ("mean", "last"):
        made.clear()
        server = run(tmp_path / tail, data, dealt(data, ann=rows_of(data, 3)), tail=tail, calibrate=False)
        # One of the discovery, then four rounds.
        assert len(made) == 5
        expected = made[-1] if tail == "last" else (made[3].double() + made[4].double()).div(2).float()
        assert torch.allclose(server.group("model")["head.weight"], expected, atol=1e-6)
    assert not torch.allclose(made[3], made[4], atol=1e-4)


def test_source_clients_keep_their_anchor_only_where_it_is_asked_for(data: Dataset, tmp_path: Path) -> None:
    split = dealt(data, ann=rows_of(data, 3))
    server = run(tmp_path / "kept", data, split)
    kept = states(tmp_path / "kept")
    assert set(kept) == {f"client-0{i}" for i in range(4)}
    # What they had before ann came: three rows.
    assert {len(state.group("anchor")["head.weight"]) for state in kept.values()} == {3}
    run(tmp_path / "free", data, split, keep=0.0)
    assert states(tmp_path / "free") == {}
    assert not torch.equal(final(tmp_path / "free").group("model")["head.bias"], server.group("model")["head.bias"])


def test_a_strong_anchor_holds_the_sources_where_they_were(data: Dataset, alone: Path, tmp_path: Path) -> None:
    before = final(alone).group("model")["head.weight"]
    moved = []
    for keep in (0.0, 2.0):
        own = {"new_rows": "newcomer", "tail": "last", "keep": keep}
        model = run(tmp_path / str(keep), data, dealt(data, ann=rows_of(data, 3)), **own).group("model")
        moved.append(float((model["head.weight"][:3] - before).norm()))
    assert moved[1] < 0.3 * moved[0]


# --- an output for unknown ----------------------------------------------------------------------------------


def test_an_output_for_unknown_stays_the_last_row(data: Dataset, tmp_path: Path) -> None:
    """Nobody but the newcomer trains, once, so that all rows can be followed."""
    proser = {"objective": {"name": "proser"}}
    still = {"rounds": 1, "epochs": 0, "new_rows": "newcomer", "rule": "fixed"}
    split = dealt(data, ann=rows_of(data, 3, 4))
    before = run(tmp_path / "alone", data, dealt(data), parts=proser, **still, stages=0).group("model")["head.weight"]
    after = run(tmp_path / "run", data, split, parts=proser, **still).group("model")["head.weight"]
    assert (len(before), len(after)) == (4, 6)
    assert torch.equal(after[[0, 1, 2, 5]], before)
    assert not torch.equal(after[3], after[4])
    trained = run(tmp_path / "trained", data, split, parts=proser)
    assert names(trained)[-1] == "class-4"
    assert events(tmp_path / "trained", "end")[0]["metrics"]["target_accuracy"] > 0.8


def test_rows_of_declared_classes_go_between_the_known_ones_and_unknown() -> None:
    method = method_of("gains", objective={"name": "proser"})
    server = Server(PLAIN, ClassRegistry.of(("a", "b", "c")), Step("declare-1", 0, 0), Rng(0))
    weights = weights_of(PLAIN.build(3, Rng(4)))
    grown = method.refitted(server, weights, ClassRegistry.of(("a", "b")))
    for name in ("head.weight", "head.bias"):
        assert torch.equal(grown[name][[0, 1, 3]], weights[name])
    assert grown["head.weight"][2].any()


def client_of(name: str, step: Step, state: Payload | None = None, y: list[int] | None = None) -> Client:
    """A client of three classes by hand, whose samples are all alike."""
    labels = torch.tensor(y or [], dtype=torch.int64)
    samples = Samples(torch.rand(1, 1, 8, 8).expand(len(labels), -1, -1, -1), labels, torch.arange(len(labels)))
    return Client(name, PLAIN, step, ("a", "b", "c"), lambda part: samples, {}, state or Payload())


def test_the_anchor_of_an_output_for_unknown_stays_the_last_row() -> None:
    method = method_of("gains", {"keep": 0.1}, objective={"name": "proser"})
    kept, model = weights_of(PLAIN.build(3, Rng(1))), weights_of(PLAIN.build(4, Rng(2)))
    bob = client_of("bob", Step("adapt-1", 0, 4), Payload.of({"stage": 1}, anchor=kept))
    found = method.anchor(Payload.of({"newcomer": "ann", "known": 2}, model=model), bob)
    for name in ("head.weight", "head.bias"):
        assert torch.equal(found[name][[0, 1, 3]], kept[name])
        assert torch.equal(found[name][2], model[name][2])
    later = client_of("bob", Step("adapt-2", 0, 9), Payload.of({"stage": 1}, anchor=kept))
    # What it had in an earlier stage is no anchor in this one.
    again = method.anchor(Payload.of({"newcomer": "ben", "known": 2}, model=model), later)
    assert all(torch.equal(again[name], tensor) for name, tensor in model.items())


@pytest.mark.parametrize(("name", "judged"), [("bob", 2), ("ann", 4)])
def test_sources_are_judged_by_what_they_knew_and_the_newcomer_by_all_it_has(name: str, judged: int) -> None:
    method = method_of("gains")
    groups = {"before": weights_of(PLAIN.build(2, Rng(1))), "model": weights_of(PLAIN.build(3, Rng(2)))}
    payload = Payload.of({"newcomer": "ann", "known": 2}, **groups)
    reply = method.judge(payload, client_of(name, Step("judge-1", 0, 9), y=[0, 2, 1, 2]))
    assert reply.info["samples"] == judged
    assert len(reply.group("model")["margin"]) == len(reply.group("before")["margin"]) == judged


# --- who is asked --------------------------------------------------------------------------------------------


def test_a_share_of_the_members_trains_but_everybody_is_asked_when_a_newcomer_comes(
    data: Dataset, tmp_path: Path
) -> None:
    parts = {"federation": {"participation": 0.5}}
    run(tmp_path / "run", data, dealt(data, ann=rows_of(data, 3)), parts=parts)
    asked: dict[str, set[int]] = {}
    for event in events(tmp_path / "run", "round"):
        asked.setdefault(event["phase"], set()).add(len(event["participants"]))
        assert ("ann" in event["participants"]) == (event["phase"] != "source")
    assert asked == {"source": {2}, "declare-1": {5}, "discover-1": {1}, "adapt-1": {3}, "judge-1": {5}}


def test_a_newcomer_that_is_not_there_is_not_waited_for(data: Dataset, alone: Path, tmp_path: Path) -> None:
    parts = {"federation": {"arrivals": {"ann": 99}}}
    server = run(tmp_path / "run", data, dealt(data, ann=rows_of(data, 3)), parts=parts)
    assert "ann is not welcomed: it did not answer" in notes(tmp_path / "run")
    assert phases(tmp_path / "run") == ["source", "declare-1"]
    assert torch.equal(server.group("model")["head.weight"], final(alone).group("model")["head.weight"])
    assert "welcomed" not in server.info["state"]


def test_a_stage_without_a_newcomer_is_skipped_and_said(data: Dataset, tmp_path: Path) -> None:
    run(tmp_path / "run", data, dealt(data), rounds=1)
    assert phases(tmp_path / "run") == ["source"]
    assert "stage 1: there is no newcomer to welcome" in notes(tmp_path / "run")


def test_newcomers_without_a_stage_of_their_own_wait(data: Dataset, tmp_path: Path) -> None:
    split = dealt(data, ann=rows_of(data, 3), ben=rows_of(data, 4))
    server = run(tmp_path / "run", data, split, adapt_rounds=1)
    taking_part = {name for event in events(tmp_path / "run", "round") for name in event["participants"]}
    # A phase that never comes is none to arrive in, but nobody asks ben.
    assert "ben" not in taking_part
    assert server.info["state"]["welcomed"] == ["ann"]


# --- one after the other -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def in_turn(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ann brings class-3; then ben brings class-3 as well, and class-4."""
    folder = tmp_path_factory.mktemp("gains") / "in-turn"
    threes = rows_of(data, 3)
    split = dealt(data, ann=threes[:32], ben=[*threes[32:], *rows_of(data, 4)])
    run(folder, data, split, stages=2)
    return folder


def test_two_newcomers_meet_in_one_class_of_the_same_name(in_turn: Path) -> None:
    server = final(in_turn)
    assert names(server) == ["class-0", "class-1", "class-2", "class-3", "class-4"]
    assert [entry["origin"] for entry in server.info["classes"]][3:] == ["ann", "ben"]
    assert [found["classes"] for found in findings(in_turn, "discovery")] == [["class-3"], ["class-4"]]
    assert server.info["state"]["welcomed"] == ["ann", "ben"]
    metrics = events(in_turn, "end")[0]["metrics"]
    assert metrics["target_accuracy"] > 0.9
    assert metrics["source_accuracy"] > 0.9


def test_the_first_newcomer_is_a_member_when_the_second_comes(in_turn: Path) -> None:
    members = [f"client-0{i}" for i in range(4)]
    taking_part = {event["phase"]: set(event["participants"]) for event in events(in_turn, "round")}
    assert taking_part["adapt-1"] == {*members, "ann"}
    assert taking_part["declare-2"] == taking_part["adapt-2"] == {*members, "ann", "ben"}
    # She is a source now, and held near what she had: four rows.
    assert {len(state.group("anchor")["head.weight"]) for state in states(in_turn).values()} == {4}
    assert set(states(in_turn)) == {*members, "ann"}


# --- who fails -----------------------------------------------------------------------------------------------

Change = Callable[[Payload], Payload]


def failing(monkeypatch: pytest.MonkeyPatch, phase: str, change: Change, who: str = "ann", rounds: int = 99) -> None:
    """Have a client's replies of a phase's first rounds changed on their way."""
    local = Gains.local

    def changed(self: Gains, payload: Payload, client: Client, rng: Rng) -> Payload:
        reply = local(self, payload, client, rng)
        if (client.step.phase, client.name) == (phase, who) and client.step.round < rounds:
            return change(reply)
        return reply

    monkeypatch.setattr(Gains, "local", changed)


def lost(reply: Payload) -> Payload:
    raise OSError("the line is dead")


@pytest.mark.parametrize("phase", ["declare-1", "discover-1"])
def test_a_newcomer_that_fails_before_the_decision_is_not_welcomed(
    phase: str, data: Dataset, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, phase, lost)
    server = run(tmp_path / "run", data, dealt(data, ann=rows_of(data, 3)))
    assert "ann is not welcomed" in notes(tmp_path / "run")
    assert phases(tmp_path / "run")[-1] == phase
    before = final(alone)
    assert all(torch.equal(server.tensors[name], tensor) for name, tensor in before.tensors.items())
    assert server.tensors.keys() == before.tensors.keys()
    assert server.info["classes"] == before.info["classes"]
    assert "welcomed" not in server.info["state"]


def test_a_round_without_the_newcomer_leaves_the_model_as_it_is(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, "adapt-1", lost, rounds=2)
    server = run(tmp_path / "run", data, dealt(data, ann=rows_of(data, 3)))
    assert notes(tmp_path / "run").count("ann is missing: the model stays as it is") == 2
    assert len(findings(tmp_path / "run", "weights")) == 3
    assert server.info["state"]["welcomed"] == ["ann"]
    assert events(tmp_path / "run", "end")[0]["metrics"]["target_accuracy"] > 0.9


def test_a_newcomer_that_never_answers_again_is_still_judged(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, "adapt-1", lost)
    server = run(tmp_path / "run", data, dealt(data, ann=rows_of(data, 3)))
    assert len(findings(tmp_path / "run", "judgement")) == 1
    assert names(server)[-1] == "class-3"


def test_a_source_that_fails_when_the_newcomer_comes_is_held_near_the_first_model_it_gets(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, "declare-1", lost, who="client-01")
    run(tmp_path / "run", data, dealt(data, ann=rows_of(data, 3)))
    rows = {name: len(state.group("anchor")["head.weight"]) for name, state in states(tmp_path / "run").items()}
    assert rows == {"client-00": 3, "client-01": 4, "client-02": 3, "client-03": 3}
    assert not [event for event in events(tmp_path / "run", "client-failed") if event["phase"] != "declare-1"]


# --- replies that cannot be ---------------------------------------------------------------------------------


def told(**info: Any) -> Change:
    def change(reply: Payload) -> Payload:
        reply.info.update(info)
        return reply

    return change


def measured(group: str, **tensors: torch.Tensor) -> Change:
    def change(reply: Payload) -> Payload:
        reply.add(group, tensors)
        return reply

    return change


def of_two(reply: Payload, labels: dict[str, int]) -> Payload:
    """A declaration of two classes, with statistics that go with it."""
    reply.info["labels"] = labels
    counts = torch.tensor(list(labels.values()))
    return measured("classes", count=counts, mean=torch.zeros(2, 8), variance=torch.zeros(2))(reply)


COUNT = 48  # training samples of ann's class-3
DECLARATIONS: dict[str, tuple[Change, str]] = {
    "negative": (told(labels={"class-3": -COUNT}), "expected a whole number from 1 on"),
    "half": (told(labels={"class-3": COUNT + 0.5}), "expected a whole number from 1 on"),
    "true": (told(labels={"class-3": True}), "expected a whole number from 1 on"),
    "many": (told(labels={f"c{i}": 1 for i in range(2000)}), "at most 1000 classes"),
    "list": (told(labels=["class-3"]), "must be a table"),
    "long": (told(labels={"x" * 101: COUNT}), "one line of at most 100"),
    "lines": (told(labels={"two\nlines": COUNT}), "one line"),
    "blank": (told(labels={"  ": COUNT}), "one line"),
    "case of a known one": (told(labels={"Class-0": COUNT}), "differs from 'class-0' only by case"),
    "unknown": (told(labels={"UnKnown": COUNT}), "is not allowed"),
    "case of its own": (lambda reply: of_two(reply, {"Cat": 8, "cat": COUNT - 8}), "only by case"),
    "sum": (told(labels={"class-3": COUNT + 1}), "do not add up"),
    "samples": (told(samples=-3), "info 'samples'"),
    "statistics of more classes": (told(labels={"class-3": 8, "class-4": COUNT - 8}), "class statistics"),
    "width": (measured("classes", mean=torch.zeros(1, 9)), "class statistics 'mean'"),
    "nan": (measured("classes", mean=torch.full((1, 8), float("nan"))), "NaN"),
    "infinite": (measured("classes", variance=torch.tensor([float("inf")])), "NaN or infinite"),
    "negative variance": (measured("classes", variance=torch.tensor([-1.0])), "below 0"),
    "counts": (measured("classes", count=torch.tensor([COUNT + 1])), "do not fit"),
    "types": (measured("classes", count=torch.tensor([1.0])), "torch.int64"),
    "moments": (measured("moments", mean=torch.zeros(3)), "moments"),
    "shift": (told(own_shift="wide"), "own_shift"),
    "endless shift": (told(own_shift=10**400), "bad reply"),
}


@pytest.mark.parametrize("what", DECLARATIONS)
def test_a_declaration_that_cannot_be_is_refused_and_the_run_goes_on(
    what: str, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, words = DECLARATIONS[what]
    failing(monkeypatch, "declare-1", change)
    server = run(tmp_path / "run", data, dealt(data, ann=rows_of(data, 3)), rounds=1, epochs=0)
    (failed,) = events(tmp_path / "run", "client-failed")
    assert failed["client"] == "ann"
    assert failed["reason"].startswith("bad reply: ")
    assert words in failed["reason"]
    assert names(server) == ["class-0", "class-1", "class-2"]
    assert "ann is not welcomed" in notes(tmp_path / "run")


SOURCES: dict[str, Change] = {
    "declares": lambda reply: of_two(reply, {"his": 1, "mine": reply.info["samples"] - 1}),
    "counts": measured("classes", count=torch.tensor([-1, 0, 0])),
    "classes": measured("classes", count=torch.zeros(2, dtype=torch.int64)),
    "moments": measured("moments", mean=torch.zeros(3, 1, 8, 9)),
    "more moments": measured("moments", extra=torch.zeros(3)),
    "many": measured("moments", count=torch.tensor([999, 0, 0])),
    "nan": measured("classes", variance=torch.full((3,), float("nan"))),
}


@pytest.mark.parametrize("what", SOURCES)
def test_a_source_that_tells_nonsense_is_left_out_and_the_newcomer_welcomed(
    what: str, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, "declare-1", SOURCES[what], who="client-02")
    server = run(tmp_path / "run", data, dealt(data, ann=rows_of(data, 3)), rounds=1, epochs=1, adapt_rounds=1)
    assert names(server) == ["class-0", "class-1", "class-2", "class-3"]
    assert "mine" not in names(server)


@pytest.mark.parametrize("who", ["ann", "client-02"])
@pytest.mark.parametrize(
    "tensors",
    [
        {"margin": torch.zeros(1)},
        {"new": torch.zeros(0, dtype=torch.uint8)},
        {"right": torch.zeros(3)},
        {"margin": torch.full((12,), float("nan"))},
    ],
)
def test_a_judgement_that_cannot_be_is_left_out(
    who: str, tensors: dict[str, torch.Tensor], data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, "judge-1", measured("model", **tensors), who=who)
    split = dealt(data, ann=rows_of(data, 3))
    run(tmp_path / "run", data, split, rounds=1, epochs=1, adapt_rounds=1)
    (failed,) = events(tmp_path / "run", "client-failed")
    assert failed["reason"].startswith("bad reply: ")
    (judgement,) = findings(tmp_path / "run", "judgement")
    held = {client.name: len(client.validation) for client in split.clients}
    others = sum(count for name, count in held.items() if name not in ("ann", who))
    assert judgement["sources"]["samples"] == others
    assert judgement["newcomer"]["samples"] == (0 if who == "ann" else held["ann"])


def test_a_newcomer_has_no_say_in_the_limit_for_itself(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, "declare-1", told(own_shift=1e9))
    run(tmp_path / "run", domain_of(data), dealt(data, ann=rows_of(data, 5)), adapt_rounds=1)
    assert findings(tmp_path / "run", "discovery")[0]["kind"] == "domain"


def test_samples_of_new_classes_where_there_are_none_are_no_trouble(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def all_new(reply: Payload) -> Payload:
        wild = torch.linspace(-3e38, 3e38, reply.info["samples"])
        return measured("model", new=torch.ones(len(wild), dtype=torch.uint8), margin=wild)(reply)

    failing(monkeypatch, "judge-1", all_new, who="client-01")
    for name, own in (("domain", 5), ("classes", 3)):
        given = {"rounds": 1, "epochs": 1, "adapt_rounds": 1}
        run(tmp_path / name, domain_of(data), dealt(data, ann=rows_of(data, own)), **given)
        (judgement,) = findings(tmp_path / name, "judgement")
        assert np.isfinite(judgement["bias"])


@pytest.mark.parametrize("phase", ["discover-1", "adapt-1"])
def test_a_model_of_another_shape_is_refused(
    phase: str, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, phase, measured("model", **{"head.weight": torch.zeros(9, 8)}))
    run(tmp_path / "run", data, dealt(data, ann=rows_of(data, 3)), rounds=1, epochs=1, adapt_rounds=1)
    assert {event["phase"] for event in events(tmp_path / "run", "client-failed")} == {phase}


# --- judgement -----------------------------------------------------------------------------------------------


def test_what_new_rows_must_win_by_is_in_the_model_that_answers(data: Dataset, tmp_path: Path) -> None:
    given = {"adapt_rounds": 1, "lr": 0.02}
    split = dealt(data, ann=rows_of(data, 3, 4))
    plain = run(tmp_path / "plain", data, split, **given, calibrate=False).group("model")
    moved = run(tmp_path / "moved", data, split, **given).group("model")
    (judgement,) = findings(tmp_path / "moved", "judgement")
    assert judgement["bias"] != 0
    assert findings(tmp_path / "plain", "judgement")[0]["bias"] == 0
    change = moved["head.bias"].double() - plain["head.bias"].double()
    assert change.tolist() == pytest.approx([0, 0, 0, -judgement["bias"], -judgement["bias"]], abs=1e-6)
    assert torch.equal(moved["head.weight"], plain["head.weight"])


def test_the_judgement_s_figures_are_those_of_the_models_on_validation_samples(
    data: Dataset, grown: Path, alone: Path
) -> None:
    split = dealt(data, ann=rows_of(data, 3, 4))
    (judgement,) = findings(grown, "judgement")
    for folder, when in ((alone, "before"), (grown, "now")):
        weights = final(folder).group("model")
        network = replace(PLAIN, model_params={"hidden": [16, 8]}).build(len(weights["head.bias"]), Rng(0))
        network.load_state_dict(weights)
        for whose in ("sources", "newcomer"):
            theirs = [c.validation for c in split.clients if (c.name == "ann") == (whose == "newcomer")]
            rows = np.concatenate(theirs)
            with torch.no_grad():
                answers = network.eval()(data.x_train[rows].float() / 255).argmax(1)
            right = (answers == data.y_train[rows]).double().mean()
            assert judgement[whose][when] == pytest.approx(float(right))
            assert judgement[whose]["samples"] == len(rows)
    assert judgement["forgotten"] == judgement["sources"]["before"] - judgement["sources"]["now"]
    assert judgement["refused"] is False


FORGETFUL = {"adapt_rounds": 0, "discover_epochs": 9, "new_rows": "newcomer", "calibrate": False}
"""Only the newcomer trains, for long, and its rows are as it made them."""


def test_a_federation_that_would_forget_goes_back_bit_for_bit(data: Dataset, tmp_path: Path) -> None:
    before = run(tmp_path / "alone", data, dealt(data), **FORGETFUL, stages=0)
    split = dealt(data, ann=rows_of(data, 3))
    kept = run(tmp_path / "kept", data, split, **FORGETFUL)
    assert findings(tmp_path / "kept", "judgement")[0]["forgotten"] > 0
    assert len(kept.info["classes"]) == 4
    server = run(tmp_path / "back", data, split, **FORGETFUL, max_forgetting=0.0)
    (judgement,) = findings(tmp_path / "back", "judgement")
    assert judgement["refused"] is True
    assert "back to before ann came" in notes(tmp_path / "back")
    assert server.tensors.keys() == before.tensors.keys()
    assert all(torch.equal(server.tensors[name], tensor) for name, tensor in before.tensors.items())
    assert server.info["classes"] == before.info["classes"]
    assert server.info["thresholds"] == before.info["thresholds"]
    assert server.info["state"]["outside"] == ["ann"]
    assert "welcomed" not in server.info["state"]


def test_who_was_refused_has_no_say_in_the_threshold() -> None:
    server = adapting("classes")
    assert list(method_of("gains").members(server)) == ["bob", "cyd", "ann"]
    server.state.info["outside"] = ["ann"]
    assert list(method_of("gains").members(server)) == ["bob", "cyd"]


def test_all_that_a_correction_keeps_goes_back_too(data: Dataset, tmp_path: Path) -> None:
    scaffold = {"correction": {"name": "scaffold"}}
    given = {**FORGETFUL, "adapt_rounds": 1, "new_rows": "newcomer", "momentum": 0.0}
    before = run(tmp_path / "alone", data, dealt(data), parts=scaffold, **given, stages=0)
    split = dealt(data, ann=rows_of(data, 3))
    server = run(tmp_path / "back", data, split, parts=scaffold, **given, max_forgetting=0.0)
    assert len(before.tensors) > len(before.group("model"))
    assert findings(tmp_path / "back", "judgement")[0]["refused"]
    assert server.tensors.keys() == before.tensors.keys()
    assert all(torch.equal(server.tensors[name], tensor) for name, tensor in before.tensors.items())


def test_where_nobody_can_say_how_much_is_forgotten_a_limit_refuses(data: Dataset, tmp_path: Path) -> None:
    split = dealt(data, ann=rows_of(data, 3))
    blind = replace(split, clients=tuple(replace(c, validation=c.validation[:0]) for c in split.clients))
    for name, limit in (("limited", {"max_forgetting": 1.0}), ("free", {})):
        server = run(tmp_path / name, data, blind, adapt_rounds=1, **limit)
        (judgement,) = findings(tmp_path / name, "judgement")
        assert judgement["forgotten"] is None
        assert judgement["refused"] is bool(limit)
        assert len(server.info["classes"]) == (3 if limit else 4)


def test_a_joint_model_that_is_not_finite_is_not_taken() -> None:
    payloads = heads(0, {"ann": 30, "bob": 10, "cyd": 30}, rows=2)
    huge = payloads["bob"].group("model")
    huge["head.bias"] = torch.tensor([3e38, 3e38])
    payloads["bob"].put("model", huge)
    payloads["cyd"].put("model", huge)
    payloads["ann"].put("model", huge)
    server = adapting("domain", model=weights_of(PLAIN.build(2, Rng(9))))
    before = server.state.group("model")
    method = method_of("gains", {"target_weight": "released"})
    method.put_together(server, replies_of(**payloads), {"bob": 0.0, "cyd": 0.0}, {"bob": 0.0, "cyd": 0.0}, 2)
    assert "not finite" in server.notes[0]
    assert all(torch.equal(tensor, before[name]) for name, tensor in server.state.group("model").items())


@pytest.mark.parametrize(
    ("spreads", "largest"),
    [([], 0.0), ([0.3], 0.3), ([0.1, 0.2, 0.3], 0.3), ([0.1] * 5 + [1e9], 0.1), ([0.1] * 9 + [0.2, 1e9], 0.2)],
)
def test_no_single_source_of_six_and_more_sets_the_limit(spreads: list[float], largest: float) -> None:
    assert typical_largest(spreads) == largest


def test_who_was_refused_takes_no_part_when_the_next_one_comes(data: Dataset, tmp_path: Path) -> None:
    split = dealt(data, ann=rows_of(data, 3), ben=rows_of(data, 4))
    given = {**FORGETFUL, "max_forgetting": 0.0, "stages": 2}
    run(tmp_path / "run", data, split, **given)
    taking_part = {event["phase"]: event["participants"] for event in events(tmp_path / "run", "round")}
    assert findings(tmp_path / "run", "judgement")[0]["refused"]
    assert [name for name in taking_part["declare-2"] if not name.startswith("client")] == ["ben"]


def test_what_is_not_forgotten_is_kept_whatever_the_limit(data: Dataset, tmp_path: Path) -> None:
    server = run(tmp_path / "run", data, dealt(data, ann=rows_of(data, 3)), max_forgetting=1.0)
    assert server.info["state"]["welcomed"] == ["ann"]
    assert "outside" not in server.info["state"]
