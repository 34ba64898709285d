"""Clusters in replies: conversion, and what is rejected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedwild.core.errors import BadReply
from fedwild.methods.gal.stage import check_clusters, to_tensors


def clusters(**changed: Any) -> dict[str, torch.Tensor]:
    group = {
        "centroids": torch.zeros(2, 6),
        "counts": torch.tensor([3, 4]),
        "labels": torch.tensor([[3, 0, 0], [1, 1, 2]]),
    }
    return {name: tensor for name, tensor in {**group, **changed}.items() if tensor is not None}


BAD_CLUSTERS = [
    ({"centroids": torch.zeros(2, 5)}, r"'centroids' is torch.float32 \(2, 5\), expected torch.float32 \(2, 6\)"),
    ({"centroids": torch.zeros(2, 6, dtype=torch.float64)}, "'centroids' is torch.float64"),
    ({"centroids": torch.zeros(12)}, r"'centroids' is torch.float32 \(12,\)"),
    ({"centroids": torch.zeros(3, 6)}, r"'centroids' is torch.float32 \(3, 6\), expected torch.float32 \(2, 6\)"),
    ({"counts": torch.tensor([3.0, 4.0])}, "'counts' is torch.float32"),
    ({"counts": torch.tensor([[3, 4]])}, r"'counts' is torch.int64 \(1, 2\), expected torch.int64 \(2,\)"),
    ({"counts": torch.tensor([-1, 4])}, "counts add up to 3"),
    ({"counts": torch.tensor([0, 4])}, "counts add up to 4"),
    ({"counts": torch.tensor([3, 5])}, "counts add up to 8, with 7 samples"),
    ({"counts": torch.tensor([3, 2**62])}, "with 7 samples"),
    ({"labels": torch.tensor([[3, 0], [1, 3]])}, r"'labels' is torch.int64 \(2, 2\), expected torch.int64 \(2, 3\)"),
    ({"labels": torch.tensor([[3.0, 0, 0], [1, 1, 2]])}, "'labels' is torch.float32"),
    ({"labels": torch.tensor([[3, 0, 0], [1, 1, 1]])}, "labels do not add up"),
    ({"labels": torch.tensor([[4, -1, 0], [1, 1, 2]])}, "labels do not add up"),
    ({"labels": None}, "clusters lacks .'labels'"),
    ({"centroids": None}, "clusters lacks .'centroids'"),
    ({"counts": None}, "clusters lacks .'counts'"),
    ({"extra": torch.zeros(1)}, "clusters has unexpected tensors .'extra'"),
]


@pytest.mark.parametrize(("change", "words"), BAD_CLUSTERS)
def test_invalid_clusters_are_rejected(change: dict[str, Any], words: str) -> None:
    check_clusters(clusters(), 6, 4, 7, classes=3)
    with pytest.raises(BadReply, match=words):
        check_clusters(clusters(**change), 6, 4, 7, classes=3)


def test_clusters_of_unlabelled_samples_have_no_labels() -> None:
    check_clusters(clusters(labels=None), 6, 4, 7)
    check_clusters({"centroids": torch.zeros(0, 6), "counts": torch.zeros(0, dtype=torch.int64)}, 6, 4, 0)
    with pytest.raises(BadReply, match=r"clusters has unexpected tensors \['labels'\]"):
        check_clusters(clusters(), 6, 4, 7)


def test_too_many_clusters_are_rejected() -> None:
    check_clusters(clusters(), 6, 2, 7, classes=3)
    with pytest.raises(BadReply, match="2 clusters, expected at most 1"):
        check_clusters(clusters(), 6, 1, 7, classes=3)


def test_counts_whose_sum_overflows_are_rejected() -> None:
    hostile = {"centroids": torch.zeros(1025, 6), "counts": torch.full((1025,), 2**53)}
    with pytest.raises(BadReply, match="counts add up to"):
        check_clusters(hostile, 6, 2000, 2**53)


def test_arrays_become_tensors_in_single_precision_and_integers_stay() -> None:
    made = to_tensors(a=np.array([[0.1, 2.0]]), b=np.array([3, 4]), c=np.empty((0, 5)))
    assert {name: tensor.dtype for name, tensor in made.items()} == {
        "a": torch.float32,
        "b": torch.int64,
        "c": torch.float32,
    }
    assert made["a"].tolist() == [[pytest.approx(0.1), 2.0]]
    assert made["c"].shape == (0, 5)
