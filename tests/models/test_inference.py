"""Embeddings of many samples, batch by batch."""

from __future__ import annotations

import torch

from fedwild.contract.task import Task, weights_of
from fedwild.core.rng import Rng
from fedwild.data.samples import Samples
from fedwild.models.inference import INFERENCE_BATCH, embeddings

NORMED = Task((1, 8, 8), "digit-cnn", {"width": 0.1})


def samples(n: int) -> Samples:
    images = torch.rand(n, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return Samples(images, torch.zeros(n, dtype=torch.int64), torch.arange(n).flip(0))


def test_embeddings_are_those_of_evaluation_mode_in_order() -> None:
    model = NORMED.build(2, Rng(0)).train()
    before = weights_of(model)
    view = samples(INFERENCE_BATCH + 44)
    found = embeddings(model, view)
    with torch.no_grad():
        expected = model.eval().embed(view.x.flip(0))
    assert found.shape == (300, model.embedding_dim)
    assert torch.allclose(found, expected, atol=1e-5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights_of(model).items())


def test_batches_have_a_fixed_size() -> None:
    sizes: list[int] = []

    class Recorded(Samples):
        def batches(self, *arguments, **options):  # type: ignore[no-untyped-def]
            for x, y in super().batches(*arguments, **options):
                sizes.append(len(x))
                yield x, y

    view = samples(600)
    embeddings(NORMED.build(2, Rng(0)), Recorded(view.x, view.y, view.index))
    assert sizes == [256, 256, 88]


def test_embeddings_of_no_samples_have_a_width() -> None:
    model = NORMED.build(2, Rng(0))
    assert embeddings(model, samples(0)).shape == (0, model.embedding_dim)
