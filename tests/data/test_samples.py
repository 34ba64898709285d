from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from fedwild.core.errors import UserError
from fedwild.data import NO_CLASS, DataSettings, Samples, samples_of
from tests.data.helpers import toy


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def colour_samples(**settings: object) -> Samples:
    x = torch.randint(0, 256, (30, 3, 8, 8), dtype=torch.uint8, generator=generator(9))
    index = torch.arange(0, 30, 2)
    return Samples(x, torch.arange(15) % 4, index, **settings)  # type: ignore[arg-type]


def test_without_a_generator_batches_are_in_order() -> None:
    samples = colour_samples()
    batches = list(samples.batches(4))
    assert [len(y) for _, y in batches] == [4, 4, 4, 3]
    assert torch.equal(torch.cat([x for x, _ in batches]), samples.x[samples.index].float() / 255)
    assert torch.equal(torch.cat([y for _, y in batches]), samples.y)
    assert batches[0][0].dtype == torch.float32


def test_a_generator_shuffles_inputs_and_labels_together() -> None:
    dataset = toy()
    samples = samples_of(dataset, np.arange(40))
    x, y = (torch.cat(column) for column in zip(*samples.batches(7, generator()), strict=True))
    rows = (x[:, 0, 0, 0] * 255).round().long()
    assert sorted(rows.tolist()) == list(range(40))
    assert rows.tolist() != list(range(40))
    assert torch.equal(dataset.y_train[rows], y)
    again = torch.cat([labels for _, labels in samples.batches(7, generator())])
    assert torch.equal(again, y)


def test_inputs_are_normalised_per_channel() -> None:
    samples = colour_samples(mean=[0.1, 0.2, 0.3], std=[0.5, 0.6, 0.7])
    x, _ = samples.all()
    plain = samples.x[samples.index].float() / 255
    level = [torch.tensor(v).view(1, 3, 1, 1) for v in ([0.1, 0.2, 0.3], [0.5, 0.6, 0.7])]
    assert torch.allclose(x, (plain - level[0]) / level[1], atol=1e-6)


def test_the_stored_tensor_does_not_change() -> None:
    x = torch.rand(6, 1, 8, 8)
    before = x.clone()
    samples = Samples(x, torch.zeros(6, dtype=torch.int64), torch.arange(6), mean=0.5, std=2.0)
    for batch, _ in samples.batches(6):
        batch.zero_()
    samples.all()[0].zero_()
    assert torch.equal(x, before)


def test_float_images_and_count_vectors_are_not_divided_by_255() -> None:
    floats = torch.rand(3, 1, 8, 8)
    counts = torch.randint(0, 60, (3, 5), dtype=torch.uint8)
    for stored in (floats, counts):
        samples = Samples(stored, torch.zeros(3, dtype=torch.int64), torch.arange(3))
        assert torch.equal(samples.all()[0], stored.float())


def test_take_limit_and_classes() -> None:
    samples = colour_samples()
    part = samples.take([1, 3, 5])
    assert part.index.tolist() == [2, 6, 10]
    assert part.y.tolist() == [1, 3, 1]
    assert part.classes == [1, 3]
    assert torch.equal(part.all()[0], samples.all()[0][[1, 3, 5]])
    assert len(samples.all(limit=4)[1]) == 4


def test_no_samples_give_no_batches() -> None:
    empty = colour_samples().take([])
    assert len(empty) == 0
    assert list(empty.batches(4, generator())) == []
    assert empty.all()[0].shape == (0, 3, 8, 8)
    assert empty.classes == []


def test_labels_use_the_given_class_ids() -> None:
    dataset = toy()
    samples = samples_of(dataset, np.arange(len(dataset.y_train)), ids={"class2": 0, "class0": 7})
    wanted = {0: 7, 1: NO_CLASS, 2: 0, 3: NO_CLASS}
    assert samples.y.tolist() == [wanted[label] for label in dataset.y_train.tolist()]


def test_augmented_batches_differ_and_require_a_generator() -> None:
    samples = colour_samples(augment=["crop", "flip"])
    plain = torch.cat([x for x, _ in samples.batches(15, generator())])
    changed = torch.cat([x for x, _ in samples.batches(15, generator(), augment=True)])
    assert not torch.equal(plain, changed)
    with pytest.raises(ValueError, match="generator"):
        next(samples.batches(4, None, augment=True))


def test_settings_that_do_not_match_the_samples_are_rejected() -> None:
    with pytest.raises(UserError, match=r"data\.mean has 2 values"):
        colour_samples(mean=[0.1, 0.2])
    with pytest.raises(UserError, match=r"data\.augment"):
        samples_of(toy(), np.arange(3), data=DataSettings(augment=["crop"]))


def test_a_batch_costs_little() -> None:
    x = torch.randint(0, 256, (6400, 1, 28, 28), dtype=torch.uint8)
    samples = Samples(x, torch.zeros(6400, dtype=torch.int64), torch.arange(6400))
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        batches = sum(1 for _ in samples.batches(64, generator()))
        best = min(best, (time.process_time() - start) / batches)
    assert best < 400e-6  # about 40 us on a quiet machine; ten times that means a per-sample loop crept in


def test_samples_of_one_tensor_can_be_joined_and_relabelled() -> None:
    dataset = toy()
    first, second = samples_of(dataset, np.array([3, 1])), samples_of(dataset, np.array([2]))
    both = first.join(second)
    assert both.index.tolist() == [3, 1, 2]
    assert both.y.tolist() == dataset.y_train[both.index].tolist()
    relabelled = both.with_labels(torch.tensor([7, 8, 9]))
    assert (relabelled.y.tolist(), relabelled.index.tolist()) == ([7, 8, 9], [3, 1, 2])
    with pytest.raises(ValueError, match="samples of two tensors cannot be joined"):
        first.join(samples_of(dataset, np.array([0]), "test"))
