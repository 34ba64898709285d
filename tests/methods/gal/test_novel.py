"""The phase `novel`: what is trained on, what stays fixed, and the moving average."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedwild.contract import Client, Step
from fedwild.contract.task import Task, weights_of
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.data import Dataset
from fedwild.data.samples import Samples
from fedwild.methods.gal.novel import FrozenRows, Novel, moving_average
from fedwild.methods.gal.novelty import max_cosine
from fedwild.methods.gal.stage import Discovery
from fedwild.methods.registry import METHODS
from fedwild.models import Network
from fedwild.training.corrections import CORRECTIONS, ClientCorrection
from fedwild.training.corrections.scaffold import CHANGE, CONTROL
from fedwild.training.loop import LocalTraining, train
from fedwild.training.objectives import OBJECTIVES
from tests.methods.gal.federation import KNOWN, NORMS, described, equal, events, extractor, run

TASK = Task((1, 8, 8), "mlp", {"hidden": [8, 6]})
NORMED = Task((1, 8, 8), "digit-cnn", {"width": 0.1})


# --- what clients train on ------------------------------------------------------------------------------------


def test_settings_choose_novel_pseudo_labelled_and_labelled_samples(data: Dataset, tmp_path: Path) -> None:
    choices: dict[str, dict[str, Any]] = {
        "novel": {},
        "pseudo": {"pseudo_labels": True},
        "rehearsed": {"rehearse": True},
        "both": {"pseudo_labels": True, "rehearse": True},
    }
    counts = {}
    for name, choice in choices.items():
        federation = described(data, tmp_path, **choice)
        federation.merge()
        z, rows = federation.embedded("client-00")
        federation.server.state.info["novelty"] = float(max_cosine(z, rows).sort().values[6])
        federation.at("discover-1").merge()
        counts[name] = federation.at("novel-1").replies()["client-00"].info["samples"]
    # Six of sixteen are novel; 18 of 24 labelled ones are for training.
    assert counts == {"novel": 6, "pseudo": 16, "rehearsed": 24, "both": 34}


def test_novel_samples_get_the_class_of_the_nearest_prototype_and_others_the_answer_of_the_model(
    data: Dataset, tmp_path: Path
) -> None:
    federation = described(data, tmp_path, loss="labels", pseudo_labels=True)
    federation.merge()
    z, rows = federation.embedded("client-00")
    cosines = max_cosine(z, rows)
    federation.server.state.info["novelty"] = novelty = float(cosines.sort().values[8])
    federation.at("discover-1").merge()
    client = federation.at("novel-1").client("client-00")
    discovery = Discovery.of(federation.server.state)
    before = federation.server.task.network(discovery.anchor, KNOWN, bias=False, slot="anchor").eval()
    assert isinstance(federation.phase, Novel)
    view = federation.phase.stage_samples(before, discovery, client, {"labelled": KNOWN, "novelty": novelty})
    expected = []
    for row, cosine in zip(z, cosines, strict=True):
        if cosine < novelty:
            similarity = torch.nn.functional.cosine_similarity(row[None], discovery.prototypes)
            expected.append(KNOWN + int(similarity.argmax()))
        else:
            expected.append(int((rows @ row).argmax()))
    assert view.y.tolist() == expected
    assert set(expected) & {KNOWN, KNOWN + 1}
    assert set(expected) & {0, 1, 2}


# --- what stays fixed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("correction", ["none", "prox", "scaffold", "moon"])
@pytest.mark.parametrize("against_forgetting", ["ema", "distillation", "nothing"])
def test_without_rehearsal_known_rows_stay_bit_equal(
    against_forgetting: str, correction: str, data: Dataset, tmp_path: Path
) -> None:
    server = run(
        tmp_path / "run",
        data,
        parts={"correction": {"name": correction}},
        against_forgetting=against_forgetting,
        # Without freezing, gradients and weight decay would change known rows.
        prototypes="learnt",
        weight_decay=0.1,
        pseudo_labels=True,
        r=0.79,
    )
    found = sum(e["info"]["samples"] for e in events(tmp_path / "run", "client") if e["phase"] == "discover-1")
    assert 0 < found < 48
    head, before = server.group("model")["head.weight"], server.group("anchor")["head.weight"]
    assert torch.equal(head[:KNOWN], before)
    assert not equal(extractor(server.group("model")), extractor(server.group("anchor")))


@pytest.mark.parametrize("loss", ["labels", "bce"])
def test_known_rows_are_trained_only_with_rehearsal(loss: str, data: Dataset, tmp_path: Path) -> None:
    for rehearse in (False, True):
        server = run(tmp_path / str(rehearse), data, loss=loss, rehearse=rehearse)
        same = torch.equal(server.group("model")["head.weight"][:KNOWN], server.group("anchor")["head.weight"])
        assert same is not rehearse


@pytest.mark.parametrize("model", [{}, NORMS], ids=["plain", "norms"])
def test_with_beta_1_the_extractor_is_the_anchor_bit_for_bit(
    model: dict[str, Any], data: Dataset, tmp_path: Path
) -> None:
    server = run(tmp_path / "run", data, parts=model, beta=1.0, loss="labels")
    assert equal(extractor(server.group("model")), extractor(server.group("anchor")))
    # Novel rows are not part of the extractor: they were trained.
    start = run(tmp_path / "start", data, parts=model, beta=1.0, loss="labels", novel_rounds=0)
    assert not torch.equal(server.group("model")["head.weight"][KNOWN:], start.group("model")["head.weight"][KNOWN:])


@pytest.mark.parametrize("model", [{}, NORMS], ids=["plain", "norms"])
def test_the_result_of_a_round_is_the_moving_average_of_the_anchor_and_the_clients_mean(
    model: dict[str, Any], data: Dataset, tmp_path: Path
) -> None:
    beta = 0.7
    plain = run(tmp_path / "plain", data, parts=model, against_forgetting="nothing", novel_rounds=1)
    ema = run(tmp_path / "ema", data, parts=model, against_forgetting="ema", beta=beta, novel_rounds=1)
    anchor, trained, found = plain.group("anchor"), plain.group("model"), ema.group("model")
    assert equal(anchor, ema.group("anchor"))
    for name, tensor in extractor(found).items():
        if tensor.is_floating_point():
            expected = beta * anchor[name].double() + (1 - beta) * trained[name].double()
            assert torch.allclose(tensor.double(), expected, atol=1e-6)
    assert not torch.allclose(trained["fc1.fc.weight"], anchor["fc1.fc.weight"], atol=1e-4)
    assert torch.equal(found["head.weight"], trained["head.weight"])


# --- the moving average ---------------------------------------------------------------------------------------


def shaken(weights: dict[str, Tensor], seed: int = 1) -> dict[str, Tensor]:
    """Return other weights of the same shapes, with other counters."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: tensor + torch.randn(tensor.shape, generator=generator) if tensor.is_floating_point() else tensor + 7
        for name, tensor in weights.items()
    }


@pytest.mark.parametrize("beta", [0.99, 0.5, 0.1])
def test_the_moving_average_covers_the_extractor_and_batch_norm_statistics(beta: float) -> None:
    anchor = weights_of(NORMED.build(3, Rng(0)))
    trained = shaken(anchor)
    merged = moving_average(trained, anchor, beta)
    assert list(merged) == list(trained)
    kinds = set()
    for name, tensor in merged.items():
        if name in ("head.weight", "head.bias"):
            assert torch.equal(tensor, trained[name])
            kinds.add("head")
        elif tensor.is_floating_point():
            expected = beta * anchor[name].double() + (1 - beta) * trained[name].double()
            assert torch.allclose(tensor.double(), expected, atol=1e-6)
            kinds.add("running" if "running" in name else "weights")
        else:
            assert torch.equal(tensor, anchor[name])
            assert tensor.dtype == torch.int64
            kinds.add("counter")
    assert kinds == {"head", "running", "weights", "counter"}


def test_with_beta_1_or_0_the_moving_average_is_one_of_its_inputs_bit_for_bit() -> None:
    anchor = weights_of(NORMED.build(3, Rng(0)))
    trained = shaken(anchor)
    for beta, expected in ((1.0, anchor), (0.0, trained)):
        merged = moving_average(trained, anchor, beta)
        body = [name for name, tensor in merged.items() if tensor.is_floating_point() and "head" not in name]
        assert body
        assert all(torch.equal(merged[name], expected[name]) for name in body)


def test_the_head_may_be_larger_than_that_of_the_anchor() -> None:
    anchor, trained = (weights_of(TASK.build(outputs, Rng(0), bias=False)) for outputs in (3, 5))
    merged = moving_average(trained, anchor, 0.9)
    assert torch.equal(merged["head.weight"], trained["head.weight"])


def test_the_moving_average_shares_no_memory_with_the_anchor() -> None:
    anchor = weights_of(NORMED.build(3, Rng(0)))
    merged = moving_average(shaken(anchor), anchor, 1.0)
    before = {name: tensor.clone() for name, tensor in anchor.items()}
    for name, tensor in merged.items():
        if "head" not in name:
            tensor.add_(1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in anchor.items())


# --- frozen rows ----------------------------------------------------------------------------------------------


def client_with(state: Payload) -> Client:
    view: Any = None
    return Client("client-00", TASK, Step("novel-1", 0, 0), tuple("abcde"), view, {}, state)


def correction_of(name: str, model: Network) -> ClientCorrection:
    """Return a correction at full strength, in a client's second round."""
    settings = {"none": {}, "prox": {"mu": 1.0}, "scaffold": {"strength": 1.0}, "moon": {"mu": 5.0}}[name]
    kind = CORRECTIONS.get(name)
    own = shaken(weights_of(model), seed=4)
    state = Payload.of(
        previous={name: tensor for name, tensor in own.items() if "head" not in name},
        **{CONTROL: shaken(weights_of(model), seed=5)},
    )
    payload = Payload.of(model=weights_of(model), **{CONTROL: shaken(weights_of(model), seed=6)})
    return kind(kind.Params(**settings)).at_client(client_with(state), model, payload)


TRAINING = [
    {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.1},
    {"optimizer": "adam", "momentum": 0.9, "weight_decay": 0.1},
    {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0},
]


@pytest.mark.parametrize("settings", TRAINING, ids=lambda s: f"{s['optimizer']}-{s['weight_decay']}")
@pytest.mark.parametrize("correction", ["none", "prox", "scaffold", "moon"])
def test_frozen_rows_are_bit_equal_after_training_and_the_others_are_not(correction: str, settings: Any) -> None:
    model = TASK.network(weights_of(TASK.build(5, Rng(0), bias=False)), 5, bias=False)
    before = weights_of(model)
    frozen = FrozenRows(correction_of(correction, model), model, 3)
    labels = torch.tensor([4, 3, 0, 1, 2] * 4)
    images = torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    view = Samples(images, labels, torch.arange(20))
    objective = OBJECTIVES.get("ce")(OBJECTIVES.get("ce").Params())
    training = LocalTraining(epochs=2, batch_size=10, lr=0.05, **settings)
    trained = train(model, view, training, objective, frozen, Rng(0))
    sent = frozen.after_training(trained.steps, 0.05)
    after = model.state_dict()
    assert trained.steps == 4
    assert torch.equal(after["head.weight"][:3], before["head.weight"][:3])
    assert (after["head.weight"][3:] != before["head.weight"][3:]).any(dim=1).all()
    assert any(not torch.equal(after[name], before[name]) for name in before if "head" not in name)
    assert set(sent) == ({CHANGE} if correction == "scaffold" else set())


def test_frozen_rows_keep_the_penalty_and_the_groups_of_the_correction() -> None:
    class Inner(ClientCorrection):
        def penalty(self, x: Tensor, y: Tensor) -> Tensor:
            return x.sum() + y.sum()

        def after_training(self, steps: int, lr: float) -> Any:
            return {"sent": {"steps": torch.tensor(steps), "lr": torch.tensor(lr)}}

    correction = FrozenRows(Inner(), TASK.build(3, Rng(0)), 1)
    penalty = correction.penalty(torch.ones(2), torch.ones(3))
    assert penalty is not None
    assert penalty.item() == 5
    assert correction.after_training(4, 0.5)["sent"]["steps"].item() == 4


def test_rows_are_frozen_after_the_correction_has_changed_the_gradients() -> None:
    model = TASK.build(3, Rng(0), bias=False)

    class Inner(ClientCorrection):
        def before_step(self) -> None:
            assert model.head.weight.grad is not None
            model.head.weight.grad += 1.0

    model.head.weight.grad = torch.zeros(3, 6)
    FrozenRows(Inner(), model, 2).before_step()
    assert model.head.weight.grad.tolist() == [[0.0] * 6, [0.0] * 6, [1.0] * 6]


def test_rows_changed_by_weight_decay_are_restored_before_the_next_step() -> None:
    model = TASK.build(3, Rng(0), bias=False)
    before = model.head.weight.detach().clone()
    correction = FrozenRows(ClientCorrection(), model, 2)
    with torch.no_grad():
        model.head.weight *= 0.9
    correction.before_step()
    assert torch.equal(model.head.weight[:2], before[:2])
    assert torch.equal(model.head.weight[2], before[2] * 0.9)


def test_a_head_without_gradients_is_allowed() -> None:
    FrozenRows(ClientCorrection(), TASK.build(3, Rng(0)), 2).before_step()


def test_the_paper_s_variant_learns_novel_rows(data: Dataset, tmp_path: Path) -> None:
    paper: Any = METHODS.get("gal-paper").Params()
    server = run(tmp_path / "run", data, prototypes=paper.prototypes, loss=paper.loss, rows=paper.rows)
    rows, prototypes = server.group("model")["head.weight"][KNOWN:], server.group("found")["prototypes"]
    assert (rows - prototypes).norm(dim=1).min() > 1e-4
