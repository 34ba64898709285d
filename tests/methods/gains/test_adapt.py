"""Adapt: clients' weights, the joint model, anti-forgetting, and clients that fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedwild.aggregation.means import weighted_mean
from fedwild.contract import Server, Step
from fedwild.contract.task import weights_of
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.data import Dataset
from fedwild.methods.gains.probes import probe_samples
from fedwild.methods.gains.stage import Stage
from tests.methods.by_hand import PLAIN, final, method_of, replies_of, states
from tests.methods.gains.federation import (
    adapting,
    client_of,
    domain_of,
    events,
    failing,
    findings,
    heads,
    lost,
    names,
    notes,
    phase_of,
    rows_of,
    run,
    split_of,
)

# --- weights and models ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["classes", "domain"])
@pytest.mark.parametrize("method", ["gains", "gains-paper", "gains-released"])
def test_all_weights_of_an_aggregation_add_up(method: str, kind: str, data: Dataset, tmp_path: Path) -> None:
    """To 1, or in the released program to the source clients' share plus their number."""
    own = rows_of(data, 3 if kind == "classes" else 5)
    given: dict[str, Any] = {"target_weight": "released"} if method == "gains-released" else {}
    given |= {"sources": "samples" if method == "gains" else "equal"}
    split = split_of(data, ann=own)
    run(tmp_path / "run", domain_of(data), split, method, **given, adapt_rounds=2, t_c=0.0)
    found = findings(tmp_path / "run", "weights")
    # The server makes the first joint model from the one model that all source clients still have.
    assert [event["phase"] for event in found] == ["discover-1", "adapt-1", "adapt-1"]
    held = {client.name: len(client.train) for client in split.clients}
    share = 1 - held["ann"] / sum(held.values())
    for event in found:
        for part in ("encoder", "classifier") if kind == "domain" else ("encoder",):
            weights = event[part]
            others = sum(value for name, value in weights.items() if name != "ann")
            assert others == pytest.approx(share, abs=1e-6)
            # There are four source clients, also where one model stands for all of them.
            released = method == "gains-released"
            assert sum(weights.values()) == pytest.approx(share + 4 if released else 1, abs=1e-6)
            assert weights["ann"] == pytest.approx(4 if released else 1 - share, abs=1e-6)
        assert ("classifier" in event) == (kind == "domain")


@pytest.mark.parametrize(
    ("sources", "sizes"),
    [("samples", {"ann": 30, "bob": 7, "cyd": 50}), ("equal", {"ann": 30, "bob": 20, "cyd": 20})],
)
def test_a_domain_s_model_is_fedavg_s_if_source_clients_are_equally_similar(
    sources: str, sizes: dict[str, int]
) -> None:
    phase = phase_of("adapt-1", {"sources": sources, "keep": 0.0})
    replies = replies_of(**heads(0, sizes, rows=2))
    server = adapting("domain")
    phase.combine(server, replies, {"bob": (0.4, 0.4), "cyd": (0.4, 0.4)}, 2, "domain")
    mean = weighted_mean(replies, "model")
    assert mean is not None
    for name, tensor in server.state.group("model").items():
        assert torch.allclose(tensor, mean[name], atol=1e-6), name


def test_old_rows_are_the_source_clients_mean_and_new_ones_the_newcomer_s_bit_for_bit() -> None:
    phase = phase_of("adapt-1", {"new_rows": "newcomer"})
    payloads = heads(0, {"ann": 30, "bob": 7, "cyd": 50})
    replies = replies_of(**payloads)
    server = adapting("classes", model=payloads["bob"].group("model"))
    phase.combine(server, replies, {"bob": (0.3, 0.0), "cyd": (0.9, 5.0)}, 2, "classes")
    mean = weighted_mean((reply for reply in replies if reply.client != "ann"), "model")
    assert mean is not None
    model, own = server.state.group("model"), payloads["ann"].group("model")
    for name in ("head.weight", "head.bias"):
        assert torch.equal(model[name][:2], mean[name][:2])
        assert torch.equal(model[name][2], own[name][2])


def test_new_rows_are_averaged_with_those_of_source_clients() -> None:
    payloads = heads(0, {"ann": 30, "bob": 10, "cyd": 30})
    server = adapting("classes")
    phase = phase_of("adapt-1", {"new_rows": "both"})
    phase.combine(server, replies_of(**payloads), {"bob": (0, 9), "cyd": (0, 0)}, 2, "classes")
    bias = {name: float(payload.group("model")["head.bias"][2]) for name, payload in payloads.items()}
    expected = (bias["ann"] + 0.25 * bias["bob"] + 0.75 * bias["cyd"]) / 2
    assert float(server.state.group("model")["head.bias"][2]) == pytest.approx(expected, abs=1e-6)


def test_source_clients_are_weighted_by_their_own_difference_from_the_newcomer() -> None:
    phase = phase_of("adapt-1", {"sources": "equal", "probes": 5, "new_rows": "newcomer"})
    payloads = heads(0, {"ann": 20, "bob": 10, "cyd": 10})
    server = adapting("domain", moments={"mean": torch.rand(2, 1, 8, 8), "deviation": torch.rand(2, 1, 8, 8)})
    server.classes.add("c", "known", 0)
    phase.aggregate(server, replies_of(**payloads))
    (found,) = server.findings
    probes = probe_samples(server, 1, 5)
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


def test_relative_contributions_of_near_and_far_sources_by_hand() -> None:
    payloads = heads(0, {"ann": 20, "bob": 10, "cyd": 10}, rows=2)
    server = adapting("domain")
    phase = phase_of("adapt-1", {"scale": "mean"})
    phase.combine(server, replies_of(**payloads), {"bob": (0.01, 0.4), "cyd": (0.03, 0.4)}, 2, "domain")
    (found,) = server.findings
    # a = 1/(1+0.5) and 1/(1+1.5): 5/8 and 3/8 of the half that is the source clients' share.
    assert found["encoder"] == pytest.approx({"bob": 5 / 16, "cyd": 3 / 16, "ann": 1 / 2})
    assert found["classifier"] == pytest.approx({"bob": 1 / 4, "cyd": 1 / 4, "ann": 1 / 2})


# --- the released program -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bob", "cyd", "kind"),
    [
        ((9e9, 9e9), (999.0, 9.0), "nothing"),
        ((0.0, 0.0), (1000.0, 0.2), "domain"),
        ((0.0, 0.0), (1000.0, 0.25), "classes"),
    ],
)
def test_the_last_source_client_decides_the_kind_of_shift_in_every_round(
    bob: tuple[float, float], cyd: tuple[float, float], kind: str
) -> None:
    phase = method_of("gains-released", {"t_f": 1000.0, "t_c": 0.25}).phases()[3]
    server = adapting("classes")
    assert phase.kind_of_round(server, {"bob": bob, "cyd": cyd}) == kind
    assert server.notes[0].endswith("from cyd)")
    # Decided once, it is what discovery found.
    assert phase_of("adapt-1").kind_of_round(server, {"bob": bob, "cyd": cyd}) == "classes"


def test_where_there_is_no_shift_clients_are_weighted_by_samples() -> None:
    payloads = heads(0, {"ann": 20, "bob": 10, "cyd": 50})
    server = adapting("classes")
    phase = method_of("gains-released").phases()[3]
    phase.combine(server, replies_of(**payloads), {"bob": (0.3, 0.1), "cyd": (9.0, 5.0)}, 2, "nothing")
    (found,) = server.findings
    expected = {"ann": 0.25, "bob": 0.125, "cyd": 0.625}
    assert found["encoder"] == found["classifier"] == expected
    for name, tensor in server.state.group("model").items():
        total = sum(share * payloads[client].group("model")[name].double() for client, share in expected.items())
        assert torch.allclose(tensor.double(), torch.as_tensor(total), atol=1e-6), name


def test_the_newcomer_trains_an_extra_epoch_in_every_round() -> None:
    payload = Payload.of({"newcomer": "ann", "known": 2, "undone": []}, model=heads(0, {"x": 1})["x"].group("model"))
    steps = {}
    for extra in (0, 1):
        phase = phase_of("adapt-1", {"epochs": 2, "batch_size": 2, "extra_epochs": extra})
        for name in ("ann", "bob"):
            client = client_of(name, Step("adapt-1", 0, 4), y=[0, 1, 2, 0])
            steps[name, extra] = phase.local(payload, client, Rng(0)).info["steps"]
    assert steps == {("ann", 0): 4, ("bob", 0): 4, ("ann", 1): 6, ("bob", 1): 4}


def test_the_released_program_adapts_below_its_limits_and_logs_every_decision(data: Dataset, tmp_path: Path) -> None:
    given: dict[str, Any] = {"decide": "rounds", "difference": "norm", "t_f": 1e6, "t_c": 0.25, "adapt_rounds": 2}
    split = split_of(data, ann=rows_of(data, 3))
    server = run(tmp_path / "run", data, split, "gains-released", **given)
    assert names(server)[-1] == "class-3"
    text = notes(tmp_path / "run")
    assert "ann is welcomed whatever it brings" in text
    assert text.count("kind of shift in this round: none, weights by samples") == 2
    held = {client.name: len(client.train) for client in split.clients}
    expected = {name: count / sum(held.values()) for name, count in held.items()}
    for event in findings(tmp_path / "run", "weights")[1:]:
        assert event["encoder"] == pytest.approx(expected)
    run(tmp_path / "low", data, split, "gains-released", **{**given, "t_f": 0.0, "t_c": 0.0})
    assert notes(tmp_path / "low").count("kind of shift in this round: classes") == 2


def test_a_joint_model_that_is_not_finite_is_not_used() -> None:
    payloads = heads(0, {"ann": 30, "bob": 10, "cyd": 30}, rows=2)
    huge = payloads["bob"].group("model")
    huge["head.bias"] = torch.tensor([3e38, 3e38])
    for payload in payloads.values():
        payload.put("model", huge)
    server = adapting("domain", model=weights_of(PLAIN.build(2, Rng(9))))
    before = server.state.group("model")
    phase = phase_of("adapt-1", {"target_weight": "released"})
    phase.combine(server, replies_of(**payloads), {"bob": (0.0, 0.0), "cyd": (0.0, 0.0)}, 2, "domain")
    assert "NaN or infinite" in server.notes[0]
    assert all(torch.equal(tensor, before[name]) for name, tensor in server.state.group("model").items())


def test_a_stage_ends_with_the_mean_of_the_models_of_its_second_half(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[torch.Tensor] = []
    combine = Stage.combine

    def listening(self: Stage, server: Server, *rest: Any) -> None:
        combine(self, server, *rest)
        made.append(server.state.group("model")["head.weight"].clone())

    monkeypatch.setattr(Stage, "combine", listening)
    for tail in ("mean", "last"):
        made.clear()
        server = run(tmp_path / tail, data, split_of(data, ann=rows_of(data, 3)), tail=tail, calibrate=False)
        # One model in discovery, then four rounds.
        assert len(made) == 5
        expected = made[-1] if tail == "last" else (made[3].double() + made[4].double()).div(2).float()
        assert torch.allclose(server.group("model")["head.weight"], expected, atol=1e-6)
    assert not torch.allclose(made[3], made[4], atol=1e-4)


def test_a_strong_anchor_holds_source_clients_near_their_model(data: Dataset, alone: Path, tmp_path: Path) -> None:
    before = final(alone).group("model")["head.weight"]
    moved = []
    for keep in (0.0, 2.0):
        own: dict[str, Any] = {"new_rows": "newcomer", "tail": "last", "keep": keep}
        model = run(tmp_path / str(keep), data, split_of(data, ann=rows_of(data, 3)), **own).group("model")
        moved.append(float((model["head.weight"][:3] - before).norm()))
    assert moved[1] < 0.3 * moved[0]


# --- clients that fail ----------------------------------------------------------------------------------------


def test_a_round_without_the_newcomer_does_not_change_the_model(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, "adapt-1", lost, rounds=2)
    server = run(tmp_path / "run", data, split_of(data, ann=rows_of(data, 3)))
    assert notes(tmp_path / "run").count("no reply from ann: the model does not change") == 2
    assert len(findings(tmp_path / "run", "weights")) == 3
    assert server.info["state"]["welcomed"] == ["ann"]
    assert events(tmp_path / "run", "end")[0]["metrics"]["target_accuracy"] > 0.9


def test_a_round_with_the_newcomer_alone_does_not_change_the_model() -> None:
    payloads = heads(0, {"ann": 30})
    server = adapting("classes", model=payloads["ann"].group("model"))
    phase_of("adapt-1").aggregate(server, replies_of(**payloads))
    assert server.notes == ["no reply from any other client: the model does not change in this round"]
    assert server.findings == []


def test_a_newcomer_that_never_replies_again_is_still_judged(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, "adapt-1", lost)
    server = run(tmp_path / "run", data, split_of(data, ann=rows_of(data, 3)))
    assert len(findings(tmp_path / "run", "judgement")) == 1
    assert names(server)[-1] == "class-3"


def test_a_source_client_that_fails_in_declare_keeps_the_first_model_it_gets(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, "declare-1", lost, who="client-01")
    run(tmp_path / "run", data, split_of(data, ann=rows_of(data, 3)))
    rows = {name: len(state.group("anchor")["head.weight"]) for name, state in states(tmp_path / "run").items()}
    assert rows == {"client-00": 3, "client-01": 4, "client-02": 3, "client-03": 3}
    assert not [event for event in events(tmp_path / "run", "client-failed") if event["phase"] != "declare-1"]
