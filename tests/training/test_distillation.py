"""Distillation: the loss by hand, and a student that learns a teacher's probabilities."""

from __future__ import annotations

import torch
from torch import Tensor

from fedwild.contract import Prediction, Predictor
from fedwild.contract.task import weights_of
from fedwild.core.rng import Rng
from fedwild.data.samples import Samples
from fedwild.models import build
from fedwild.training.distillation import Imitation, distil
from fedwild.training.loop import LocalTraining


class BySign(Predictor):
    """Gives class 0 a probability of 0.9 if the first feature is positive, else 0.1."""

    def predict(self, x: Tensor) -> Prediction:
        p = torch.where(x[:, :1] > 0, torch.tensor([0.9, 0.1]), torch.tensor([0.1, 0.9]))
        # Votes need not be normalised.
        return Prediction((7 * p).log(), torch.zeros(len(x)))


def public(count: int = 400) -> Samples:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 3, generator=generator)
    return Samples(x, torch.full((count,), -1), torch.arange(count))


def settings(epochs: int) -> LocalTraining:
    return LocalTraining(epochs=epochs, batch_size=32, optimizer="adam", lr=0.01)


def test_the_student_learns_the_teachers_probabilities() -> None:
    student = build("mlp", (3,), 2)
    trained = distil(BySign(), student, public(), settings(40), Rng(0))
    x = public().all()[0]
    clear = x[x[:, 0].abs() > 0.3]
    expected = BySign().predict(clear).logits.softmax(dim=1)
    with torch.no_grad():
        answers = student.eval()(clear).softmax(dim=1)
    assert float((answers - expected).abs().mean()) < 0.05
    assert trained.loss is not None
    assert trained.loss < 0.1


def test_the_loss_is_the_divergence_from_the_target_of_each_sample() -> None:
    student = build("mlp", (3,), 2).double()
    x = torch.randn(4, 3, dtype=torch.float64)
    targets = torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]], dtype=torch.float64)
    rows = torch.tensor([2, 0, 1, 0])
    value = Imitation(targets).loss(student, x, rows, torch.Generator())
    q = student(x).softmax(dim=1)
    p = targets[rows]
    assert torch.allclose(value, (p * (p / q).log()).sum(dim=1).mean())


def test_labels_of_public_samples_are_ignored() -> None:
    students = [build("mlp", (3,), 2) for _ in range(2)]
    students[1].load_state_dict(students[0].state_dict())
    samples = public()
    relabelled = Samples(samples.x, torch.zeros_like(samples.y), samples.index)
    for student, data in zip(students, (samples, relabelled), strict=True):
        distil(BySign(), student, data, settings(2), Rng(0))
    first, second = (weights_of(student) for student in students)
    assert all(torch.equal(first[name], second[name]) for name in first)
