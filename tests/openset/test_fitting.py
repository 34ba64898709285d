"""The fit step of a score: a user's own score by import path, its sums checked by hand, wrong sums rejected."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedwild import api
from fedwild.contract import Server, Task
from fedwild.contract.halves import Step
from fedwild.core.classes import ClassRegistry
from fedwild.core.errors import BadReply, UserError
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.openset import SCORES
from fedwild.openset.fitting import FITTED, FitScore
from fedwild.openset.scores import Fitted, Score, Signals

ENDLESS = 1e9


class NearestMean(Score):
    """Distance of the embedding to the nearest class mean."""

    needs_embeddings = True
    needs_fit = True

    def sums(self, signals: Signals, y: Tensor) -> dict[str, Tensor]:
        z = signals.embeddings
        assert z is not None
        members = torch.nn.functional.one_hot(y, signals.classes).double()
        return {"sum": members.T @ z.double(), "count": members.sum(0)}

    def fit(self, total: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"mean": total["sum"] / total["count"].clamp_min(1)[:, None], "count": total["count"]}

    def score(self, signals: Signals, fitted: Fitted) -> Tensor:
        assert signals.embeddings is not None
        distances = torch.cdist(signals.embeddings.double(), fitted["mean"])
        return distances.masked_fill(fitted["count"] == 0, ENDLESS).amin(dim=1)


OWN = f"{__name__}:NearestMean"
TABLES: dict[str, Any] = {
    "data": {"name": "synthetic:8x8x1:4:200", "known": 3},
    "model": {"name": "mlp", "hidden": [8, 5]},
    "method": {"name": "fedavg", "rounds": 2},
    "partition": {"name": "iid"},
    "score": {"name": OWN},
}


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> api.Run:
    return api.run(TABLES, clients=3, workers=0, out=tmp_path_factory.mktemp("fitted") / "run")


def test_the_fitted_means_are_those_of_all_clients_training_samples(fitted: api.Run) -> None:
    server = fitted.server()
    names = [client.name for client in fitted.experiment.split.clients]
    x, y = (torch.cat(parts) for parts in zip(*(fitted.client(name).train.all() for name in names), strict=True))
    z = fitted.embed(x).double()
    by_hand = torch.stack([z[y == k].mean(0) for k in range(3)])
    torch.testing.assert_close(server.state.group(FITTED)["mean"], by_hand, rtol=1e-5, atol=1e-6)
    assert server.state.group(FITTED)["count"].tolist() == torch.bincount(y).tolist()


def test_answers_use_the_fitted_score(fitted: api.Run) -> None:
    x = fitted.client("client-00").train.all()[0][:6]
    distances = torch.cdist(fitted.embed(x).double(), fitted.server().state.group(FITTED)["mean"]).amin(1)
    torch.testing.assert_close(fitted.predict(x).unknown, distances, rtol=1e-5, atol=1e-6)


def test_a_run_killed_before_the_fit_step_resumes_to_the_same_model(fitted: api.Run, tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def kill(event: dict[str, Any]) -> None:
        if event["event"] == "client" and event["phase"] == "fit-score":
            raise Killed

    with pytest.raises(Killed):
        api.run(TABLES, clients=3, workers=0, out=tmp_path / "run", listener=kill)
    resumed = api.resume(tmp_path / "run", workers=0)
    assert (resumed.path / "model.safetensors").read_bytes() == (fitted.path / "model.safetensors").read_bytes()


def test_sums_of_another_shape_are_rejected() -> None:
    task = Task((6,), "mlp", {"hidden": [4]})
    classes = ClassRegistry()
    for name in ("a", "b"):
        classes.add(name, "known", since=0)
    server = Server(task, classes, Step("fit-score", 0, 0), Rng(0), ("client-00",))
    server.state.put("model", {name: t.clone() for name, t in task.build(2, Rng(0)).state_dict().items()})
    phase = FitScore(SCORES.make(OWN), lambda count: count)
    good = {"sum": torch.zeros(2, 4, dtype=torch.float64), "count": torch.zeros(2, dtype=torch.float64)}
    phase.check(server, Payload.of(sums=good, info={"samples": 0}))
    with pytest.raises(BadReply, match="sum"):
        phase.check(server, Payload.of(sums={**good, "sum": torch.zeros(3, 4)}, info={"samples": 0}))


def test_a_method_without_a_fit_step_rejects_such_a_score() -> None:
    with pytest.raises(UserError, match=r"needs a fit step, which method 'local-only' does not have"):
        api.configure({**TABLES, "method": {"name": "local-only"}}).make_method()
