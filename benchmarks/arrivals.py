"""Newcomers in the settings of the Gains paper: what is found out about them, and what federations make of them.

    python -m benchmarks.arrivals discovery --seeds 0 1 2 3 4 5 6 7 8 9 --out DIR
    python -m benchmarks.arrivals adaptation --settings mild-15 medium-svhn-mnist --methods gains fedavg --out DIR
    python -m benchmarks.arrivals show DIR

Each case is a source run, made once per seed, and a `fedwild welcome` into it. Finished runs are not made again, so an
interrupted command continues. `discovery` asks only what each newcomer brings. `show` prints a table of all runs in a
folder: T-Acc, S-Acc and G-Acc of the last newcomer, the round since which G-Acc stays within a point of its last value,
and seconds of adaptation. Needs the data sets (`FEDWILD_DATA`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedwild import api
from fedwild.api import Run, welcome
from fedwild.data import DataSettings, load
from fedwild.data.npz import write_npz

Table = dict[str, Any]
DIGITS = [str(digit) for digit in range(10)]
GREY: Table = {"data": {"size": 28, "channels": 1}}
COLOUR: Table = {"data": {"size": 32, "channels": 3}}
TRAINING: Table = {"epochs": 2, "batch_size": 64, "lr": 0.05, "momentum": 0.9}


@dataclass(frozen=True)
class Arrival:
    """A newcomer: its data, and which part of it."""

    data: str
    classes: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    samples: int = 3000

    @property
    def name(self) -> str:
        return "-".join(("new", *self.domains, *(() if self.domains else (self.data,)), *self.classes))


@dataclass(frozen=True)
class Setting:
    """A federation and who arrives, one after the other."""

    source: Table
    arrivals: tuple[Arrival, ...]


def digits_without(*classes: str) -> Table:
    """MNIST without some classes, over four clients."""
    known = [name for name in DIGITS if name not in classes]
    return {**source(["mnist"], GREY, 12000), "data": {**source(["mnist"], GREY, 12000)["data"], "known": known}}


def source(names: Sequence[str], form: Table, samples: int, clients: int = 4) -> Table:
    """Source clients: four that share one domain, or one for each of several."""
    one = len(names) == 1
    return {
        "data": {
            **form["data"],
            "name": names[0] if one else list(names),
            "unknown": [],
            "train_samples": samples,
            "test_samples": 4000 if one else 2000,
        },
        **({"partition": {"name": "iid"}, "federation": {"clients": clients}} if one else {}),
        "model": {"name": "simple-cnn"},
        "method": {"name": "fedavg", "rounds": 10, **TRAINING},
    }


def reviews(*domains: str) -> Table:
    """Amazon reviews: one client for each product domain."""
    return {
        "data": {"name": "amazon-reviews", "domains": list(domains), "unknown": []},
        "model": {"name": "mlp"},
        "method": {"name": "fedavg", "rounds": 10, **TRAINING},
    }


def review(domain: str) -> Arrival:
    return Arrival("amazon-reviews", domains=(domain,), samples=2000)


def without(*classes: str) -> Setting:
    """The classes arrive together."""
    return Setting(digits_without(*classes), (Arrival("mnist", classes),))


SETTINGS: dict[str, Setting] = {
    "mild-15": without("1", "5"),
    "mild-69": without("6", "9"),
    "mild-015": without("0", "1", "5"),
    "medium-svhn-mnist": Setting(source(["svhn"], COLOUR, 12000), (Arrival("mnist"),)),
    "medium-mnist-svhn": Setting(source(["mnist"], COLOUR, 12000), (Arrival("svhn"),)),
    "medium-mnist-mnistm": Setting(source(["mnist"], COLOUR, 12000), (Arrival("mnist-m"),)),
    "strong-mnist": Setting(source(["mnist-m", "svhn", "usps"], COLOUR, 4000), (Arrival("mnist"),)),
    "strong-svhn": Setting(source(["mnist", "mnist-m", "usps"], COLOUR, 4000), (Arrival("svhn"),)),
    "strong-mnistm": Setting(source(["mnist", "svhn", "usps"], COLOUR, 4000), (Arrival("mnist-m"),)),
    # One near and one far source domain, and a newcomer with few samples: who is near should count.
    "near-far-usps": Setting(source(["mnist", "svhn"], COLOUR, 2000), (Arrival("usps", samples=300),)),
    "near-far-mnist": Setting(source(["usps", "svhn"], COLOUR, 2000), (Arrival("mnist", samples=300),)),
    "sequence-classes": Setting(
        digits_without("4", "5", "6", "7", "8", "9"),
        (Arrival("mnist", ("4", "5")), Arrival("mnist", ("6", "7")), Arrival("mnist", ("8", "9"))),
    ),
    "sequence-domains": Setting(
        source(["svhn"], COLOUR, 12000), (Arrival("mnist"), Arrival("mnist-m"), Arrival("usps"))
    ),
    "reviews-books-dvd": Setting(reviews("books"), (review("dvd"),)),
    "reviews-dvd-books": Setting(reviews("dvd"), (review("books"),)),
    "reviews-electronics-kitchen": Setting(reviews("electronics"), (review("kitchen"),)),
    "reviews-all-books": Setting(reviews("dvd", "electronics", "kitchen"), (review("books"),)),
    "reviews-all-dvd": Setting(reviews("books", "electronics", "kitchen"), (review("dvd"),)),
    "reviews-all-kitchen": Setting(reviews("books", "dvd", "electronics"), (review("kitchen"),)),
}
# Every newcomer is taken for what the setting says it is, so that adaptation alone is compared.
TOLD = ["method.rule=fixed", "method.t_f=0", "method.t_c=0"]
METHODS: dict[str, tuple[str, list[str]]] = {
    "gains": ("gains", TOLD),
    "gains-scaled": ("gains", [*TOLD, "method.scale=mean"]),
    "gains-unscaled": ("gains", [*TOLD, "method.scale=none"]),
    "gains-paper": ("gains-paper", TOLD),
    # It decides in every round by its own limits.
    "gains-released": ("gains-released", []),
    "fedavg": ("fedavg", []),
    "fedprox": ("fedavg", ["correction.name=prox"]),
    "fedproto": ("fedproto", []),
    "fedheal": ("fedheal", []),
}


def finished(path: Path) -> Run | None:
    """The run in this folder, gone on with if it was interrupted; None if there is none."""
    return api.resume(path) if (path / "config.toml").exists() else None


def source_run(out: Path, name: str, table: Table, seed: int) -> Run:
    path = out / f"source-{name}-{seed}"
    return finished(path) or api.run({**table, "seed": seed, "engine": {"workers": 1}}, out=path)


def arrive(run: Run, arrival: Arrival, method: str, extra: Sequence[str], rounds: int, out: Path) -> Run:
    """Welcome one newcomer."""
    own = f"data.newcomers.{arrival.name}"
    settings = [f"{own}.train_samples={arrival.samples}", f"{own}.test_samples=2000", *extra]
    return finished(out) or welcome(
        run,
        arrival.data,
        name=arrival.name,
        method=method,
        classes=arrival.classes or None,
        domains=arrival.domains or None,
        resize=arrival.data != "amazon-reviews",
        rounds=rounds,
        out=out,
        settings=settings,
    )


def adaptation(out: Path, settings: Sequence[str], methods: Sequence[str], seeds: Sequence[int], rounds: int) -> None:
    for seed in seeds:
        for name in settings:
            begin = source_run(out, name, SETTINGS[name].source, seed)
            for method in methods:
                run = begin
                for number, arrival in enumerate(SETTINGS[name].arrivals, start=1):
                    kind, extra = METHODS[method]
                    path = out / f"{name}-{method}-{seed}-{number}"
                    try:
                        run = arrive(run, arrival, kind, extra, rounds, path)
                    except Exception as problem:
                        print(f"{path.name}: {type(problem).__name__}: {problem}", flush=True)
                        break
                    print(json.dumps(row(run)), flush=True)


def row(run: Run) -> Table:
    """A welcome's figures."""
    first = run.folder.facts()["first_index"]
    rounds = [event for event in run.events() if event["event"] == "round" and event["index"] >= first]
    curve = [event["metrics"]["global_accuracy"] for event in rounds]
    within = next(i for i in range(len(curve)) if min(curve[i:]) > curve[-1] - 0.01)
    metrics = run.metrics
    return {
        "run": run.path.name,
        **{key: round(100 * metrics[f"{key}_accuracy"], 2) for key in ("target", "source", "global")},
        "converged": within + 1,
        "seconds": round(run.result["seconds"], 1),
        "curve": [round(100 * value, 1) for value in curve],
        "kind": [finding["kind"] for finding in run.findings("discovery")],
    }


def show(out: Path) -> None:
    """All welcomes of a folder as a table."""
    print("| run | T-Acc | S-Acc | G-Acc | rounds | s |\n|---|---|---|---|---|---|")
    for path in sorted(out.glob("*-[0-9]*-[0-9]")):
        if (path / "result.json").exists() and not path.name.startswith("source-"):
            r = row(Run(path))
            figures = " | ".join(str(r[key]) for key in ("target", "source", "global", "converged", "seconds"))
            print(f"| {r['run']} | {figures} |")


# --- discovery ------------------------------------------------------------------------------------------------


def mnist_parts(out: Path, seed: int) -> Iterator[tuple[str, Path, tuple[str, ...]]]:
    """Newcomers of MNIST: samples that the federation of this seed does not have, as files, by what they bring."""
    used = load(DataSettings(name="mnist", train_samples=6000, test_samples=2000), seed)
    whole = load(DataSettings(name="mnist"), 0)
    held = {bytes(image.numpy().tobytes()) for image in used.x_train}
    free = np.array([i for i, image in enumerate(whole.x_train) if image.numpy().tobytes() not in held])
    rng = np.random.default_rng([seed, 7])
    labels = whole.y_train.numpy()
    old = [c for c in range(10) if c not in (1, 5)]
    mixed = rng.dirichlet(np.full(len(old), 0.5))
    skewed = np.eye(len(old))[rng.choice(len(old), 2, replace=False)].mean(0)
    cases = {
        "held-out": dict(zip(old, mixed, strict=True)),
        "held-out-skewed": dict(zip(old, skewed, strict=True)),
        "two-classes": {1: 0.5, 5: 0.5},
        "two-classes-and-old": {1: 0.25, 5: 0.25, **{c: 0.5 / len(old) for c in old}},
    }
    for name, shares in cases.items():
        chosen = [rng.permutation(free[labels[free] == c])[: round(600 * share)] for c, share in shares.items()]
        rows = np.concatenate(chosen)
        path = out / f"newcomer-{name}-{seed}.npz"
        x, y = whole.x_train.numpy()[rows, 0], labels[rows]
        write_npz(path, {"x": x, "y": y.astype(np.int64)})
        yield name, path, ()


def discovery(out: Path, seeds: Sequence[int], model: Table) -> None:
    """What the default rule and the paper's say of each newcomer."""
    wanted = {"held-out": "nothing", "held-out-skewed": "nothing", "usps": "domain", "mnist-m": "domain"}
    wanted |= {"svhn": "domain", "two-classes": "classes", "two-classes-and-old": "classes"}
    right: dict[str, list[bool]] = {name: [] for name in wanted}
    old = tuple(name for name in DIGITS if name not in ("1", "5"))
    for seed in seeds:
        table = digits_without("1", "5") | {"partition": {"name": "dirichlet", "beta": 0.5}}
        table["data"] |= {"train_samples": 6000, "test_samples": 2000}
        table |= {"federation": {"clients": 6}, "model": model}
        run = source_run(out, f"discovery-{model['name']}", table, seed)
        newcomers = [*mnist_parts(out, seed), *((name, name, old) for name in ("usps", "mnist-m", "svhn"))]
        for name, data, classes in newcomers:
            path = out / f"discovery-{model['name']}-{name}-{seed}"
            arrival = Arrival(str(data), classes, samples=600)
            extra = [f"data.newcomers.newcomer.{part}_samples=600" for part in ("train", "test")]
            done = finished(path) or welcome(
                run,
                arrival.data,
                name="newcomer",
                classes=classes or None,
                resize=True,
                rounds=0,
                out=path,
                settings=extra,
            )
            found = done.findings("discovery")[0]
            right[name].append(found["kind"] == wanted[name])
            figures = {key: found[key] for key in ("kind", "shift", "limit", "rows", "diff_f", "diff_c")}
            print(json.dumps({"seed": seed, "newcomer": name, **figures}), flush=True)
    print(json.dumps({name: f"{sum(values)} of {len(values)}" for name, values in right.items()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("discovery", "adaptation", "show"))
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/arrivals"))
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=SETTINGS)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--model", default="simple-cnn")
    given = parser.parse_args()
    out = given.folder or given.out
    out.mkdir(parents=True, exist_ok=True)
    if given.what == "show":
        show(out)
    elif given.what == "discovery":
        width = {"width": 0.125} if given.model == "digit-cnn" else {}
        discovery(out, given.seeds, {"name": given.model, **width})
    else:
        adaptation(out, given.settings, given.methods, given.seeds, given.rounds)


if __name__ == "__main__":
    main()
