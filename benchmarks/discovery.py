"""How well the number of novel classes is estimated, on the embeddings of finished GAL runs.

    python -m benchmarks.discovery RUN... [--estimators committee,ppm,macc,macc-pim] [--unfiltered] [--subsets]

For each run the model of the end of known-class learning is taken, the clients cluster their unlabelled samples as in
the discovery round, and every estimator is asked. True labels are looked at only afterwards, to count the true classes.
With --unfiltered all unlabelled samples count as novel, so that the estimators alone are measured.
With --subsets also for parts of the novel classes, so that one run gives several cases. Prints a line per case and the
mean absolute error per estimator; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedwild.api import Run
from fedwild.contract import Client, Step
from fedwild.contract.engine import Job
from fedwild.core.rng import Rng
from fedwild.data import Samples
from fedwild.discovery import ESTIMATORS, Clusters, KnownClasses, cluster_embeddings
from fedwild.engines.executor import Executor
from fedwild.engines.threads import single_thread
from fedwild.methods.gal import GAL
from fedwild.methods.gal.novelty import cosine_histogram, max_cosine, novelty_threshold
from fedwild.models.inference import embeddings


class Case:
    """A finished run before its first stage: what the server was told of known samples, and clients' novel ones."""

    def __init__(self, run: Run, filtered: bool) -> None:
        experiment, server = run.experiment, run.server()
        assert isinstance(experiment.method, GAL), f"{run.path} is not a run of GAL"
        self.method, self.split, self.dataset = experiment.method, experiment.split, experiment.dataset
        self.name, self.rng = run.path.name, Rng(run.config.seed)
        weights = server.state.group("origin")
        self.classes = len(weights["head.weight"])
        self.model = experiment.task.network(weights, self.classes, bias=False)
        self.rows = weights["head.weight"]
        executor = Executor(
            self.dataset, self.split, experiment.config.data, self.method, experiment.task, 0, Path(), Path()
        )
        step, names = Step("describe", 0, 0), server.classes.names[: self.classes]
        clients = sorted(client.name for client in self.split.clients)
        self.clients = [executor.client(Job("local", step, "", name, names)) for name in clients]
        self.known = self._known()
        self.novelty = self._novelty() if filtered else math.inf

    def _known(self) -> KnownClasses:
        parts, labels = [], []
        for client in self.clients:
            z = embeddings(self.model, client.validation).double().numpy()
            clusters, assigned = cluster_embeddings(z, self.classes, self._seed(client, "known"))
            table = np.zeros((len(clusters), self.classes), dtype=np.int64)
            np.add.at(table, (assigned, client.validation.y.numpy()), 1)
            parts.append(clusters)
            labels.append(table)
        joined = Clusters.joined(parts, self.rows.shape[1])
        return KnownClasses(self.rows.double().numpy(), joined, np.concatenate(labels))

    def _novelty(self) -> float:
        views = [[client.validation for client in self.clients], [client.unlabelled_in(1) for client in self.clients]]
        known, pool = (
            sum(cosine_histogram(max_cosine(embeddings(self.model, samples), self.rows)) for samples in part).numpy()  # type: ignore[union-attr]
            for part in views
        )
        params = self.method.params
        return novelty_threshold(known, pool, params.novelty, params.accept, params.r)

    def pool(self, classes: tuple[str, ...]) -> Clusters:
        """The clients' clusters of novel samples of these true classes."""
        parts = []
        for client in self.clients:
            samples = self._of(client.unlabelled_in(1), classes)
            z = embeddings(self.model, samples)
            novel = z[max_cosine(z, self.rows) < self.novelty].double().numpy()
            smallest = self.method.params.min_count
            parts.append(cluster_embeddings(novel, self.classes, self._seed(client, "novel"), smallest)[0])
        return Clusters.joined(parts, self.rows.shape[1])

    def _of(self, samples: Samples, classes: tuple[str, ...]) -> Samples:
        """Those of known classes, if any, and of the given novel ones: a part of the pool is made by true labels."""
        left_out = [self.dataset.classes.index(name) for name in self.split.novel if name not in classes]
        truth = self.dataset.y_train[samples.index]
        return samples.take(torch.nonzero(~torch.isin(truth, torch.tensor(left_out, dtype=truth.dtype))).flatten())

    def _seed(self, client: Client, what: str) -> int:
        return self.rng.child(client.name).sklearn(what)

    def parts(self, subsets: bool) -> Iterator[tuple[str, ...]]:
        """The novel classes, and with `subsets` the first half and the first two or quarter of them."""
        novel = self.split.novel_by_stage[0]
        sizes = [len(novel), *({max(2, len(novel) // 2), max(2, len(novel) // 4)} if subsets else [])]
        yield from (novel[:size] for size in dict.fromkeys(sizes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--estimators", default="committee,ppm,macc,macc-pim")
    parser.add_argument("--unfiltered", action="store_true")
    parser.add_argument("--subsets", action="store_true")
    arguments = parser.parse_args()
    single_thread()
    names = arguments.estimators.split(",")
    rows: list[dict[str, Any]] = []
    for path in arguments.runs:
        case = Case(Run(path), filtered=not arguments.unfiltered)
        for classes in case.parts(arguments.subsets):
            rows.append(asked(case, classes, names))
            found = ", ".join(
                f"{n} {rows[-1][n]['number']} ({rows[-1][n]['low']}-{rows[-1][n]['high']})" for n in names
            )
            print(f"{case.name}: {len(classes)} true; {found}", flush=True)
    print(json.dumps({"cases": rows, "mean_absolute_error": errors(rows, names)}))


def asked(case: Case, classes: tuple[str, ...], names: list[str]) -> dict[str, Any]:
    """Every estimator's number, limits and seconds."""
    pool = case.pool(classes)
    row: dict[str, Any] = {"run": case.name, "true": len(classes), "clusters": len(pool)}
    for name in names:
        estimator = ESTIMATORS.get(name)
        begin = time.process_time()
        estimate = estimator(estimator.Params()).estimate(pool, case.known, case.rng)
        seconds = round(time.process_time() - begin, 3)
        row[name] = {"number": estimate.number, "low": estimate.low, "high": estimate.high, "seconds": seconds}
    return row


def errors(rows: list[dict[str, Any]], names: list[str]) -> dict[str, dict[str, float]]:
    """By estimator: the mean absolute error for few classes, the mean relative error for many, and how often the true
    number lies between the limits."""
    report: dict[str, dict[str, float]] = {}
    for name in names:
        few = [abs(row[name]["number"] - row["true"]) for row in rows if row["true"] <= 5]
        many = [abs(row[name]["number"] - row["true"]) / row["true"] for row in rows if row["true"] > 5]
        inside = [row[name]["low"] <= row["true"] <= row[name]["high"] for row in rows]
        report[name] = {"inside": float(np.mean(inside))}
        if few:
            report[name]["up_to_5"] = float(np.mean(few))
        if many:
            report[name]["relative_above_5"] = float(np.mean(many))
    return report


if __name__ == "__main__":
    main()
