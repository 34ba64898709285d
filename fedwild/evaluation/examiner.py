"""Measuring a predictor: thresholds from the clients' own validation data, figures from the test set."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedwild.contract import EVERYONE, Method, Outcome, Payload, Prediction, Server
from fedwild.contract.claims import NO_CLAIMS, Claims
from fedwild.contract.engine import Job
from fedwild.data import Dataset, Split
from fedwild.evaluation import newcomers
from fedwild.evaluation.calibration import (
    RunJobs,
    read_answer,
    set_references,
    set_thresholds,
    validation_scores,
)
from fedwild.evaluation.outcomes import figures_of, outcome_of, select_rows

# Fixed, so that batches, and with them bits, do not depend on the number of workers.
TEST_ROWS = 1024


@dataclass
class Evaluation:
    """Figures over the whole test set, and by client or domain."""

    metrics: dict[str, float]
    by: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Examiner:
    """Measures a server through an engine's `run`. `snapshot` is always the file of the server's payload."""

    method: Method
    dataset: Dataset
    split: Split
    accept: float
    run: RunJobs
    keep_thresholds: bool = False
    """Whether the server's thresholds stay, because the clients that would set them are elsewhere."""
    claims: Claims = NO_CLAIMS

    def evaluate(self, server: Server, snapshot: str, states: Mapping[str, int]) -> Evaluation:
        """Calibrate the server's thresholds, then measure."""
        answering = self.method.answers(server)
        if answering.personal:
            return self._personal(server, snapshot, states)
        outcome = self.common_outcome(server, snapshot, states)
        truth = answering.truth(outcome).numpy()
        right = outcome.prediction.logits.argmax(1).numpy() == truth
        figures = newcomers.pooled(server, self.split, answering.clients, truth, right)
        parts = {name: rows for name, rows in self._test_parts().items() if len(rows)}
        by = {name: self.measure(server, select_rows(outcome, rows)) for name, rows in parts.items()}
        return Evaluation({**self.measure(server, outcome), **figures}, by)

    def calibrate(self, server: Server, snapshot: str, states: Mapping[str, int], names: Sequence[str]) -> None:
        """Set references and thresholds on these clients' validation samples, unless the server's are to stay."""
        if self.keep_thresholds:
            return
        answering = self.method.answers(server)
        scores = validation_scores(self.run, server, snapshot, states, names, self.claims)
        groups = set_references(server, scores, answering.personal, self.claims)
        if answering.threshold is None:
            set_thresholds(server, groups, self.accept)
        else:
            whose = names if answering.personal else [EVERYONE]
            server.thresholds = dict.fromkeys(sorted(whose), answering.threshold)

    def common_outcome(self, server: Server, snapshot: str, states: Mapping[str, int]) -> Outcome:
        """Calibrate, then return the shared predictor's answers on the test set."""
        self.calibrate(server, snapshot, states, self.method.answers(server).clients)
        return self.test_outcome(server, snapshot)

    def test_outcome(self, server: Server, snapshot: str) -> Outcome:
        """Return the shared predictor's answers on the test set, decided at the server's threshold."""
        rows = range(0, len(self.split.test), TEST_ROWS)
        classes = server.classes.names
        jobs = [Job("test", server.step, snapshot, start=i, stop=i + TEST_ROWS, classes=classes) for i in rows]
        answers = {answer.job.start: read_answer(answer) for answer in self.run(jobs)}
        threshold = server.thresholds.get(EVERYONE, math.inf)
        return self.outcome(server, [answers[i] for i in rows], threshold, self.split.test)

    def own_outcomes(
        self, server: Server, snapshot: str, states: Mapping[str, int], names: Sequence[str]
    ) -> Iterator[tuple[str, Outcome]]:
        """Calibrate, then yield the answers of these clients' own predictors on their own test data, in any order."""
        self.calibrate(server, snapshot, states, names)
        classes = server.classes.names
        rows = {client.name: client.test for client in self.split.clients}
        jobs = [
            Job("test", server.step, snapshot, name, classes, states.get(name), stop=len(rows[name]))
            for name in names
            if len(rows[name])
        ]
        for answer in self.run(jobs):
            name = answer.job.client or ""
            threshold = server.thresholds.get(name, math.inf)
            yield name, self.outcome(server, [read_answer(answer)], threshold, rows[name])

    def _personal(self, server: Server, snapshot: str, states: Mapping[str, int]) -> Evaluation:
        """Measure every client's own predictor on its own test data; figures are means over clients."""
        outcomes = self.own_outcomes(server, snapshot, states, self.method.answers(server).clients)
        by = dict(sorted((name, self.measure(server, outcome)) for name, outcome in outcomes))
        keys = next(iter(by.values()), {}).keys()
        metrics = {key: float(np.mean([figures[key] for figures in by.values()])) for key in keys}
        accuracies = {name: figures["closed_accuracy"] for name, figures in by.items()}
        return Evaluation({**metrics, **newcomers.mean_over_clients(server, self.split, accuracies)}, by)

    def outcome(self, server: Server, answers: Sequence[Payload], threshold: float, rows: np.ndarray) -> Outcome:
        """Join the answers for these rows of the test data, and return them with decisions and the truth."""
        details = answers[0].group("details") if answers else {}
        prediction = Prediction(
            torch.cat([a.tensors["logits"] for a in answers] or [torch.empty(0, len(server.classes))]),
            torch.cat([a.tensors["unknown"] for a in answers] or [torch.empty(0)]),
            {name: torch.cat([a.group("details")[name] for a in answers]) for name in details},
        )
        names = [self.dataset.classes[i] for i in self.dataset.y_test[torch.as_tensor(rows)].tolist()]
        return outcome_of(server, prediction, threshold, names, self.split.novel_by_stage)

    def measure(self, server: Server, outcome: Outcome) -> dict[str, float]:
        """Return the common open-set figures and the method's own."""
        return figures_of(self.method, server, outcome)

    def _test_parts(self) -> dict[str, Tensor]:
        """Return positions in the test split by domain if there are several, else by client if these differ."""
        test = self.split.test
        if len(self.dataset.domains) > 1:
            domains = self.dataset.domain_test[torch.as_tensor(test)]
            return {name: torch.nonzero(domains == i).flatten() for i, name in enumerate(self.dataset.domains)}
        if all(len(client.test) == len(test) for client in self.split.clients):
            return {}
        return {c.name: torch.as_tensor(np.nonzero(np.isin(test, c.test))[0]) for c in self.split.clients}
