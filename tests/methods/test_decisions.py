"""The decision by the largest of K + 1 outputs, for every method whose network has an unknown output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedwild.core.payload import Payload
from fedwild.data import Dataset, Split
from fedwild.openset import UNKNOWN
from tests.conftest import Refused
from tests.tiny import even_shares, run_tiny, split_by, tiny_dataset, tiny_experiment

PROSER = {"objective": {"name": "proser"}, "score": {"name": "proser"}}
METHODS: dict[str, dict[str, Any]] = {
    "fedov": {"method": {"voting": "all"}},
    "fedavg": PROSER,
    "fedbn": PROSER,
    "fedoss": {},
    "fedpd": {"method": {"mean": "all", "norms": "merged"}},
}


def sample() -> tuple[Dataset, Split]:
    data = tiny_dataset(classes=3, per_class=24, unknown=2)
    return data, split_by(data, 3, even_shares(data, 3, 2))


def largest(outputs: Tensor) -> Tensor:
    winner = outputs.argmax(1)
    return torch.where(winner == outputs.shape[1] - 1, UNKNOWN, winner)


def outputs_of(method: str, folder: Path, settings: dict[str, Any], data: Dataset, split: Split) -> Tensor:
    """The K + 1 outputs for the test samples: of the global model, or mean probabilities of an ensemble."""
    state = Payload.read(folder / "model.safetensors")
    task = tiny_experiment(method, data, split, settings).task
    members = list(state.subgroups("models").values()) or [state.group("model")]
    x = data.x_test[torch.as_tensor(split.test)].float() / 255
    with torch.no_grad():
        logits = [task.network(weights, 4).eval()(x).double() for weights in members]
    return torch.stack([one.softmax(1) for one in logits]).mean(0) if len(logits) > 1 else logits[0]


@pytest.mark.parametrize("method", METHODS)
def test_argmax_answers_with_the_largest_of_all_outputs(method: str, tmp_path: Path) -> None:
    data, split = sample()
    own = METHODS[method]
    settings = {**own, "method": {"epochs": 8, **own.get("method", {}), "decision": "argmax"}}
    metrics = run_tiny(tmp_path / "run", method, data, split, settings)["metrics"]
    decided = largest(outputs_of(method, tmp_path / "run", settings, data, split))
    truth = data.y_test[torch.as_tensor(split.test)].clone()
    truth[truth >= 3] = UNKNOWN
    assert metrics["open_accuracy"] == pytest.approx(float((decided == truth).double().mean()))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["method.name=fedavg"], "the network that answers has no unknown output"),
        (["method.name=distilled-fedov", "method.voting=all"], "the network that answers has no unknown output"),
        (["method.name=fedavg", "objective.name=proser", "score.name=unknown"], "use score.name = 'proser'"),
        (["method.name=fedov"], "method.voting = 'calibrated' is not allowed with method.decision = 'argmax'"),
        (
            ["method.name=fedproto", "objective.name=proser", "score.name=proser"],
            "method.answer = 'prototypes' is not allowed with method.decision = 'argmax'",
        ),
    ],
)
def test_argmax_needs_outputs_to_compare(settings: list[str], message: str, refused: Refused, tmp_path: Path) -> None:
    flags = [word for setting in [*settings, "method.decision=argmax"] for word in ("--set", setting)]
    assert message in refused("run", *flags, "--out", tmp_path / "run")
