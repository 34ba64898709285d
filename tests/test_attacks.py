"""Attacks by malicious clients: what they send, and what robust aggregations make of it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks import attacks, byzantine
from benchmarks.attacks import FORGERIES, Situation, add_trigger, attacked_by, poison
from fedwild.engines.local import LocalEngine
from fedwild.lifecycle.rounds import Federation
from fedwild.runs.experiment import fingerprint
from fedwild.runs.folder import RunFolder
from tests.methods.by_hand import final
from tests.tiny import even_shares, split_by, tiny_dataset, tiny_experiment

SENT, OWN = {"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([2.0, 0.0])}
HONEST = [{"w": torch.tensor([2.0, 4.0])}, {"w": torch.tensor([4.0, 4.0])}]


@pytest.mark.parametrize(
    ("attack", "expected"),
    [
        ("none", [2.0, 0.0]),
        ("label-flip", [2.0, 0.0]),
        ("sign-flip", [-2.0, 0.0]),
        ("scaling", [11.0, -18.0]),
        # The mean is (3, 4) and the deviation (1, 0).
        ("alie", [1.5, 4.0]),
        ("ipm", [0.0, 1.0]),
        # Three clients, one of which attacks: the update is three times as long.
        ("backdoor", [4.0, -4.0]),
    ],
)
def test_what_an_attacker_sends(attack: str, expected: list[float]) -> None:
    forged = FORGERIES[attack](Situation(SENT, OWN, HONEST, 3, 1, np.random.default_rng(0)))
    assert forged["w"].tolist() == pytest.approx(expected)


def test_noise_has_no_relation_to_the_weights() -> None:
    big = {"w": torch.full((10_000,), 50.0)}
    forged = FORGERIES["noise"](Situation(big, big, [big], 3, 1, np.random.default_rng(0)))["w"]
    assert float(forged.mean()) == pytest.approx(0.0, abs=0.05)
    assert float(forged.std()) == pytest.approx(1.0, abs=0.05)


def test_poisoned_data_differ_only_in_the_attackers_training_rows() -> None:
    data = tiny_dataset(classes=3)
    split = split_by(data, 3, even_shares(data, 3, 3))
    rows = split.clients[1].train
    others = np.setdiff1d(np.arange(len(data.y_train)), rows)
    flipped = poison(data, split, "label-flip", ["client-01"])
    assert torch.equal(flipped.y_train[rows], 2 - data.y_train[rows])
    assert torch.equal(flipped.y_train[others], data.y_train[others])
    marked = poison(data, split, "backdoor", ["client-01"])
    assert torch.equal(marked.x_train[rows[::2]], add_trigger(data.x_train[rows[::2]]))
    assert set(marked.y_train[rows[::2]].tolist()) == {attacks.TARGET}
    assert torch.equal(marked.x_train[others], data.x_train[others])


def weights_after(folder: Path, aggregation: str, attack: str) -> Tensor:
    """Return the final weights of a run whose first client attacks."""
    data = tiny_dataset(classes=3, per_class=20)
    split = split_by(data, 3, even_shares(data, 3, 5))
    settings = {"aggregation": {"name": aggregation}, "engine": {"workers": 0}}
    experiment = tiny_experiment("fedavg", data, split, settings)
    facts = {"data": fingerprint(data)}
    run = RunFolder.create(folder, "tiny", experiment.config.to_toml(), split, facts)
    connect = attacked_by(lambda executor: LocalEngine(executor, 0), attack, ["client-00"], 0)
    Federation(experiment, run, connect=connect).run()
    model = final(folder).group("model")
    return torch.cat([model[name].flatten() for name in sorted(model)])


@pytest.mark.parametrize("attack", ["sign-flip", "scaling", "noise"])
def test_one_attacker_of_five_moves_the_median_less_than_the_mean(attack: str, tmp_path: Path) -> None:
    moved = {}
    for name in ("mean", "median"):
        attacked = weights_after(tmp_path / f"{name}-{attack}", name, attack)
        moved[name] = float((attacked - weights_after(tmp_path / name, name, "none")).norm())
    assert 0 < moved["median"] < 0.25 * moved["mean"]


def test_the_benchmark_continues_where_it_stopped(tmp_path: Path) -> None:
    made: list[byzantine.Cell] = []

    def make(cell: byzantine.Cell) -> dict[str, Any]:
        made.append(cell)
        return {**vars(cell), "accuracy": 0.5}

    cells = list(byzantine.all_cells(["digits"], [1, 3], [0]))
    byzantine.run_missing(cells, tmp_path / "results.jsonl", 1, limit=7, make=make)
    byzantine.run_missing(cells, tmp_path / "results.jsonl", 1, make=make)
    assert made == cells
    assert len(set(cells)) == len(cells) == 2 * 8 * (2 * 7 + 1)


def test_the_table_has_a_row_for_every_aggregation_and_a_column_for_every_attack() -> None:
    rows = [
        {**vars(byzantine.Cell("digits", "iid", n, attack, name, 0)), "accuracy": 0.25}
        for (attack, n), name in itertools.product([("none", 0), ("noise", 3)], byzantine.AGGREGATIONS)
    ]
    table = byzantine.to_markdown(byzantine.summarise(rows))
    assert table.startswith("### digits, iid, 3 of 10 attack")
    assert table.count("| 25.0 (1) |") == 2 * len(byzantine.AGGREGATIONS)
    assert all(f"| `{name}` |" in table for name in byzantine.AGGREGATIONS)
