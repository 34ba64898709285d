"""Measuring a predictor: thresholds from the clients' own validation data, figures from the test set."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedwild.data import Dataset, Split
from fedwild.engines.base import Answer, Job
from fedwild.errors import BadReply, UserError
from fedwild.openset import threshold_at_acceptance
from fedwild.outcomes import figures_of, outcome_of, rows_of
from fedwild.payload import Payload
from fedwild.protocol import EVERYONE, Method, Outcome, Prediction, Server

# Fixed, so that batches and with them bits do not depend on the number of workers.
TEST_ROWS = 1024


Carry = Callable[[Iterable[Job]], Iterator[Answer]]
"""An engine's `run`."""


@dataclass
class Evaluation:
    """Figures over the whole test set, and by client or domain."""

    metrics: dict[str, float]
    by: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Examiner:
    """Asks the clients and the test set through an engine's `run`."""

    method: Method
    dataset: Dataset
    split: Split
    accept: float
    run: Carry
    keep_thresholds: bool = False
    """Where the clients that would set them are elsewhere."""

    def evaluate(self, server: Server, snapshot: str, states: dict[str, int]) -> Evaluation:
        """Calibrate the server's thresholds, then measure. `snapshot` is the file of the server's payload."""
        if self.method.is_personal(server):
            return self._personal(server, snapshot, states)
        outcome = self.common_outcome(server, snapshot, states)
        metrics = {**self.measure(server, outcome), **self._newcomer_figures(server, outcome)}
        return Evaluation(metrics, self._by_part(server, outcome))

    def calibrate(self, server: Server, snapshot: str, states: dict[str, int], names: Sequence[str]) -> None:
        """Set the thresholds on these clients' validation samples, unless those that the server has are to stay."""
        if self.keep_thresholds:
            return
        fixed = self.method.threshold()
        if fixed is not None:
            # Nobody need be asked.
            whose = names if self.method.is_personal(server) else [EVERYONE]
            server.thresholds = dict.fromkeys(sorted(whose), fixed)
            return
        scores = validation_scores(self.run, server, snapshot, states, names)
        set_thresholds(server, scores, self.accept, self.method.is_personal(server))

    def common_outcome(self, server: Server, snapshot: str, states: dict[str, int]) -> Outcome:
        """The answers of the predictor that all clients share, on the test set, decided at a threshold set anew."""
        self.calibrate(server, snapshot, states, self.method.members(server))
        return self.test_outcome(server, snapshot)

    def test_outcome(self, server: Server, snapshot: str) -> Outcome:
        """The same with the threshold that the server has."""
        rows = range(0, len(self.split.test), TEST_ROWS)
        classes = server.classes.names
        jobs = [Job("test", server.step, snapshot, start=i, stop=i + TEST_ROWS, classes=classes) for i in rows]
        answers = {a.job.start: read(a) for a in self.run(jobs)}
        threshold = server.thresholds.get(EVERYONE, math.inf)
        return self.outcome(server, [answers[i] for i in rows], threshold, self.split.test)

    def own_outcomes(
        self, server: Server, snapshot: str, states: dict[str, int], names: Sequence[str]
    ) -> Iterator[tuple[str, Outcome]]:
        """The answers of these clients' own predictors, each on the client's own test data, in any order."""
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
            yield name, self.outcome(server, [read(answer)], server.thresholds.get(name, math.inf), rows[name])

    def _personal(self, server: Server, snapshot: str, states: dict[str, int]) -> Evaluation:
        """Every client's own predictor on its own test data; the figures are means over clients."""
        outcomes = self.own_outcomes(server, snapshot, states, self.method.owners(server))
        by = dict(sorted((name, self.measure(server, outcome)) for name, outcome in outcomes))
        keys = next(iter(by.values()), {}).keys()
        metrics = {key: float(np.mean([figures[key] for figures in by.values()])) for key in keys}
        return Evaluation({**metrics, **self._own_newcomer_figures(server, by)}, by)

    def _arrived(self, server: Server) -> list[str]:
        """The newcomers that are there by now, in the order in which they came."""
        return [name for name in self.split.newcomers if name in server.clients]

    def _newcomer_figures(self, server: Server, outcome: Outcome) -> dict[str, float]:
        """Accuracy on the last newcomer's test data, on everybody else's, and on both (T-Acc, S-Acc, G-Acc).

        The newcomer's classes that are not in the registry count as mistakes. Others' samples of classes that only the
        newcomer brought are left out, so that accuracy before and after is on the same samples.
        """
        arrived = self._arrived(server)
        if not arrived:
            return {}
        rows = {client.name: np.isin(self.split.test, client.test) for client in self.split.clients}
        theirs = rows[arrived[-1]]
        here = {*self.method.members(server), arrived[-1]}
        later = [rows[name] for name in self.split.newcomers if name not in arrived or name not in here]
        truth = self.method.truth(server, outcome).numpy()
        right = outcome.prediction.logits.argmax(1).numpy() == truth
        old = [i for i, entry in enumerate(server.classes.entries) if entry.origin != arrived[-1]]
        source = np.isin(truth, old) & ~np.any([theirs, *later], axis=0)
        parts = {"target_accuracy": theirs, "source_accuracy": source, "global_accuracy": source | theirs}
        return {name: float(right[part].mean()) if part.any() else math.nan for name, part in parts.items()}

    def _own_newcomer_figures(self, server: Server, by: dict[str, dict[str, float]]) -> dict[str, float]:
        """The same where clients have predictors of their own: means over clients of the accuracy on their own data."""
        arrived = self._arrived(server)
        if not arrived or arrived[-1] not in by:
            return {}
        accuracy = {name: figures["closed_accuracy"] for name, figures in by.items()}
        others = [value for name, value in accuracy.items() if name != arrived[-1]]
        return {
            "target_accuracy": accuracy[arrived[-1]],
            "source_accuracy": float(np.mean(others)) if others else math.nan,
            "global_accuracy": float(np.mean(list(accuracy.values()))),
        }

    def outcome(self, server: Server, answers: list[Payload], threshold: float, rows: np.ndarray) -> Outcome:
        """The answers for these rows of the test data put together, decided and set beside the truth."""
        details = answers[0].group("details") if answers else {}
        prediction = Prediction(
            torch.cat([a.tensors["logits"] for a in answers] or [torch.empty(0, len(server.classes))]),
            torch.cat([a.tensors["unknown"] for a in answers] or [torch.empty(0)]),
            {name: torch.cat([a.group("details")[name] for a in answers]) for name in details},
        )
        names = [self.dataset.classes[i] for i in self.dataset.y_test[torch.as_tensor(rows)].tolist()]
        return outcome_of(server, prediction, threshold, names, self.split.novel_by_stage)

    def measure(self, server: Server, outcome: Outcome) -> dict[str, float]:
        """The common open-set figures and the method's own."""
        return figures_of(self.method, server, outcome)

    def _by_part(self, server: Server, outcome: Outcome) -> dict[str, dict[str, float]]:
        """The same figures domain by domain if there are several, else client by client if they have own test data."""
        rows = {name: positions for name, positions in self._test_parts().items() if len(positions)}
        return {name: self.measure(server, rows_of(outcome, positions)) for name, positions in rows.items()}

    def _test_parts(self) -> dict[str, Tensor]:
        """Positions in the test split by domain or by client."""
        test = self.split.test
        if len(self.dataset.domains) > 1:
            domains = self.dataset.domain_test[torch.as_tensor(test)]
            return {name: torch.nonzero(domains == i).flatten() for i, name in enumerate(self.dataset.domains)}
        if all(len(client.test) == len(test) for client in self.split.clients):
            return {}
        return {c.name: torch.as_tensor(np.nonzero(np.isin(test, c.test))[0]) for c in self.split.clients}


def read(answer: Answer) -> Payload:
    """A predictor's answers; unlike a client's reply they cannot be done without."""
    if answer.disk_failed:
        raise OSError(answer.error)
    if answer.error is not None:
        raise UserError(f"evaluation failed at {answer.job.client or 'the server'}: {answer.error}")
    return answer.read()


def validation_scores(
    run: Carry, server: Server, snapshot: str, states: dict[str, int], names: Sequence[str]
) -> dict[str, np.ndarray]:
    """Each client's unknown scores on its own validation samples; a client that fails is left out."""
    classes = server.classes.names
    jobs = [Job("validate", server.step, snapshot, n, classes, states.get(n)) for n in names]
    scores: dict[str, np.ndarray] = {}
    for answer in run(jobs):
        name = answer.job.client or ""
        try:
            values = read(answer).tensors["unknown"].double().numpy()
            if values.ndim != 1 or np.isnan(values).any():
                raise UserError(f"the validation scores of {name} are not a list of numbers")
            scores[name] = values
        except (UserError, BadReply, KeyError, TypeError, ValueError) as problem:
            server.note(f"{name} is left out of the threshold: {problem}")
    return scores


def set_thresholds(server: Server, scores: dict[str, np.ndarray], accept: float, personal: bool) -> None:
    """Set the thresholds, everybody's or each client's own, that accept the asked share of validation samples."""
    if personal:
        groups = {name: [values] for name, values in sorted(scores.items())}
    else:
        groups = {EVERYONE: [scores[name] for name in sorted(scores)]}
    server.thresholds = {}
    for name, members in groups.items():
        pooled = np.concatenate([np.empty(0), *members])
        server.thresholds[name] = threshold_at_acceptance(pooled, accept)
        if not len(pooled):
            whose = "anyone" if name == EVERYONE else name
            server.note(f"no validation samples for {whose}: the threshold accepts everything")
