"""FedAvg with malicious clients: every attack against every aggregation.

    python -m benchmarks.byzantine --out DIR                     # everything, the most important cells first
    python -m benchmarks.byzantine --out DIR --data digits --attackers 3 --seeds 0
    python -m benchmarks.byzantine --out DIR --limit 0           # only writes the table and the chart again

Ten clients, of which none or the first 1, 2 or 3 attack in every round (`benchmarks/attacks.py`). Every finished run is
a line of DIR/results.jsonl and is not made again, so an interrupted command continues. The result is DIR/table.md,
DIR/table.csv and DIR/chart.png: accuracy on the test samples of known classes, mean over seeds, and for the back door
also the share of triggered test images that get the attackers' class. The settings are small, so that a run takes
seconds: the digits with an MLP, and 2,000 training samples of Fashion-MNIST with `simple-cnn`.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchmarks.attacks import FORGERIES, TARGET, add_trigger, attacked_by, poison
from fedwild.api import Run, configure
from fedwild.engines.choice import engine_of
from fedwild.lifecycle.start import begin
from fedwild.runs.experiment import Experiment, prepare

CLIENTS = 10
AGGREGATIONS: dict[str, list[str]] = {
    "mean": [],
    "mean, clip 1": ["aggregation.clip=1"],
    **{name: [f"aggregation.name={name}"] for name in ("median", "trimmed-mean", "krum", "multi-krum")},
    **{name: [f"aggregation.name={name}"] for name in ("geometric-median", "centered-clipping")},
}
PARTITIONS = {"iid": ["partition.name=iid"], "dirichlet": ["partition.name=dirichlet", "partition.beta=0.5"]}
DATA = {
    "digits": ["model.name=mlp", "model.hidden=[64]", "method.rounds=15", "method.epochs=3", "method.lr=0.1"],
    "fashion-mnist": [
        *("model.name=simple-cnn", "data.train_samples=2000", "data.test_samples=1000"),
        *("method.rounds=10", "method.epochs=3", "method.lr=0.05", "method.batch_size=20"),
    ],
}
COMMON = [f"federation.clients={CLIENTS}", "data.known=10", "engine.workers=0", "evaluation.every=0"]


@dataclass(frozen=True)
class Cell:
    """One run."""

    data: str
    partition: str
    attackers: int
    attack: str
    aggregation: str
    seed: int


Make = Callable[[Cell], dict[str, Any]]
"""Makes a run and returns its figures."""


def all_cells(data: Sequence[str], attackers: Sequence[int], seeds: Sequence[int]) -> Iterator[Cell]:
    """Yield all runs, ordered so that an interrupted benchmark has compared all aggregations in some settings."""
    for number in sorted({*attackers}, reverse=True):
        for source, seed, partition in itertools.product(data, seeds, PARTITIONS):
            for attack, aggregation in itertools.product(FORGERIES, AGGREGATIONS):
                # Without an attack, the number of attackers does not matter.
                if attack != "none" or number == max(attackers):
                    yield Cell(source, partition, 0 if attack == "none" else number, attack, aggregation, seed)


def run_cell(cell: Cell) -> dict[str, Any]:
    """Make one run and return its figures."""
    torch.set_num_threads(1)
    settings = [*COMMON, *DATA[cell.data], *PARTITIONS[cell.partition], *AGGREGATIONS[cell.aggregation]]
    config = configure(method="fedavg", data=cell.data, seed=cell.seed, settings=settings)
    experiment = prepare(config)
    names = sorted(client.name for client in experiment.split.clients)[: cell.attackers]
    if names:
        experiment = replace(experiment, dataset=poison(experiment.dataset, experiment.split, cell.attack, names))
    connect = attacked_by(engine_of(config.engine), cell.attack, names, cell.seed)
    with tempfile.TemporaryDirectory() as folder:
        run = begin(experiment, Path(folder) / "run", lambda event: None, connect=connect)
        figures = {"accuracy": run.metrics["closed_accuracy"]}
        if cell.attack == "backdoor":
            figures["success"] = backdoor_success(run, experiment)
    return {**asdict(cell), **figures}


def backdoor_success(run: Run, experiment: Experiment) -> float:
    """Return the share of triggered test images of other classes that the model assigns to the attackers' class."""
    dataset = experiment.dataset
    others = dataset.y_test != dataset.classes.index(experiment.split.known[TARGET])
    answers = run.predict(add_trigger(dataset.x_test[others]))
    return float((answers.logits.argmax(1) == TARGET).double().mean())


def read_results(path: Path) -> dict[Cell, dict[str, Any]]:
    """Return the finished runs."""
    fields = Cell.__dataclass_fields__
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {Cell(**{key: row[key] for key in fields}): row for row in rows}


def run_missing(
    cells: Iterable[Cell], path: Path, processes: int, limit: int | None = None, make: Make = run_cell
) -> None:
    """Make the runs that are not in the file, and append each of them when it is finished."""
    done = read_results(path)
    missing = [cell for cell in cells if cell not in done][:limit]
    print(f"{len(done)} runs done, {len(missing)} to make", flush=True)
    with open(path, "a") as file:
        for row in make_rows(missing, processes, make):
            file.write(json.dumps(row) + "\n")
            file.flush()


def make_rows(cells: Sequence[Cell], processes: int, make: Make) -> Iterator[dict[str, Any]]:
    """Yield the figures of runs as they finish. A single process is this one."""
    if processes == 1:
        yield from map(make, cells)
        return
    with ProcessPoolExecutor(processes) as pool:
        for finished in as_completed([pool.submit(make, cell) for cell in cells]):
            yield finished.result()


def summarise(results: Iterable[dict[str, Any]]) -> dict[tuple[str, str, int], dict[tuple[str, str], list[float]]]:
    """Return accuracies over seeds by setting, and in it by aggregation and attack; `none` is in every setting."""
    rows = list(results)
    settings = sorted({(row["data"], row["partition"], row["attackers"]) for row in rows if row["attackers"]})
    tables: dict[tuple[str, str, int], dict[tuple[str, str], list[float]]] = {}
    for data, partition, attackers in settings:
        table = tables.setdefault((data, partition, attackers), {})
        for row in rows:
            if (row["data"], row["partition"]) == (data, partition) and row["attackers"] in (0, attackers):
                table.setdefault((row["aggregation"], row["attack"]), []).append(row["accuracy"])
                if "success" in row:
                    table.setdefault((row["aggregation"], "success"), []).append(row["success"])
    return tables


COLUMNS = (*FORGERIES, "success")


def to_markdown(tables: dict[tuple[str, str, int], dict[tuple[str, str], list[float]]]) -> str:
    """Return one table per setting: percentages, with the number of runs below three in brackets."""
    lines = []
    for (data, partition, attackers), table in tables.items():
        lines += [f"### {data}, {partition}, {attackers} of {CLIENTS} attack", ""]
        lines += ["| Aggregation | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
        for name in AGGREGATIONS:
            values = [table.get((name, column)) for column in COLUMNS]
            lines.append(f"| `{name}` | " + " | ".join(percent(found) for found in values) + " |")
        lines.append("")
    return "\n".join(lines)


def percent(values: list[float] | None) -> str:
    return f"{100 * fmean(values):.1f}" + (f" ({len(values)})" if len(values) < 3 else "") if values else ""


def write_csv(results: Iterable[dict[str, Any]], path: Path) -> None:
    fields = [*Cell.__dataclass_fields__, "accuracy", "success"]
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, fields)
        writer.writeheader()
        writer.writerows(sorted(results, key=lambda row: [str(row[key]) for key in Cell.__dataclass_fields__]))


def draw(tables: dict[tuple[str, str, int], dict[tuple[str, str], list[float]]], path: Path) -> None:
    """Draw the accuracies as one heat map per setting."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        len(tables), 1, figsize=(9, 0.6 + 3.4 * len(tables)), squeeze=False, layout="constrained"
    )
    for axis, ((data, partition, attackers), table) in zip(axes[:, 0], tables.items(), strict=True):
        values = [[fmean(table.get((name, attack), [float("nan")])) for attack in FORGERIES] for name in AGGREGATIONS]
        axis.imshow(values, vmin=0, vmax=1, cmap="viridis", aspect="auto")
        axis.set_title(f"{data}, {partition}: {attackers} of {CLIENTS} clients attack (accuracy in %)", loc="left")
        axis.set_xticks(range(len(FORGERIES)), list(FORGERIES))
        axis.set_yticks(range(len(AGGREGATIONS)), list(AGGREGATIONS))
        for y, row in enumerate(values):
            for x, value in enumerate(row):
                if value == value:
                    shade = "black" if value > 0.6 else "white"
                    axis.text(x, y, f"{100 * value:.0f}", ha="center", va="center", color=shade, fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--attackers", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--limit", type=int, help="make at most this many runs")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "results.jsonl"
    run_missing(all_cells(given.data, given.attackers, given.seeds), path, given.processes, given.limit)
    results = list(read_results(path).values())
    tables = summarise(results)
    (given.out / "table.md").write_text(to_markdown(tables))
    write_csv(results, given.out / "table.csv")
    if tables:
        draw(tables, given.out / "chart.png")
    print((given.out / "table.md").read_text())


if __name__ == "__main__":
    main()
