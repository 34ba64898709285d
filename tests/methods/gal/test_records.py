"""What phases leave for each other survives the server's state, with the keys that model files have."""

from __future__ import annotations

from dataclasses import asdict

import torch

from fedwild.contract import Server, Step
from fedwild.contract.task import Task
from fedwild.core.classes import ClassRegistry
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.discovery import ClassCount
from fedwild.methods.gal.stage import Description, Discovery, class_counts, count_labelled


def stored(state: Payload) -> Payload:
    """Return the state as the next round reads it."""
    return Payload.decode(state.encode())


def test_class_counts_are_kept_by_stage() -> None:
    server = Server(Task((1,), "mlp"), ClassRegistry(), Step("describe", 0, 0), Rng(0))
    assert class_counts(server) == []
    counts = [ClassCount(2, 1, 3, [(0.5, 2.0), (1.0, 1.0)]), ClassCount(0, 0, 0)]
    server.state = stored(Payload(info={"estimates": [count.to_json() for count in counts]}))
    assert class_counts(server) == counts
    assert server.state.info == {
        "estimates": [
            {"number": 2, "low": 1, "high": 3, "curve": [[0.5, 2.0], [1.0, 1.0]]},
            {"number": 0, "low": 0, "high": 0, "curve": []},
        ]
    }


def test_a_description_is_kept() -> None:
    centroids, counts = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([3, 1])
    description = Description(0.25, 1.5, centroids, counts, torch.tensor([[2, 1], [0, 1]]))
    state = Payload(info={"other": 1})
    description.put(state)
    assert state.info == {"other": 1, "novelty": 0.25, "bias": 1.5}
    assert set(state.tensors) == {f"known_clusters/{name}" for name in ("centroids", "counts", "labels")}
    again = Description.of(stored(state))
    assert all(
        torch.equal(torch.as_tensor(a), torch.as_tensor(b))
        for a, b in zip(asdict(again).values(), asdict(description).values(), strict=True)
    )
    known = again.known_classes(torch.eye(2))
    assert known.rows.tolist() == [[1, 0], [0, 1]]
    assert known.clusters.centroids.tolist() == [[1, 2], [3, 4]]
    assert known.clusters.counts.tolist() == [3, 1]
    assert known.majority.tolist() == [0, 1]


def test_a_discovery_is_kept_and_sent_with_its_anchor() -> None:
    anchor = {"body.weight": torch.ones(1), "head.weight": torch.zeros(3, 2)}
    discovery = Discovery(anchor, torch.ones(4, 2), torch.full((4,), 2.0), torch.tensor(10), torch.tensor(0.5))
    payload = Payload()
    discovery.put(payload)
    assert set(payload.tensors) == {
        "anchor/body.weight",
        "anchor/head.weight",
        "found/prototypes",
        "found/stretch",
        "found/clients",
        "found/noise",
    }
    again = Discovery.of(stored(payload))
    assert (again.known, discovery.known) == (3, 3)
    assert again.anchor.keys() == anchor.keys()
    assert torch.equal(again.prototypes, discovery.prototypes)
    assert torch.equal(again.stretch, discovery.stretch)
    assert (int(again.clients), float(again.noise)) == (10, 0.5)


def test_labelled_classes_are_counted_without_discovered_ones() -> None:
    registry = ClassRegistry.of(("cat", "dog"))
    server = Server(Task((1,), "mlp"), registry, Step("describe", 0, 0), Rng(0))
    assert count_labelled(server) == 2
    registry.add("novel-1", "novel", since=3, stage=1)
    registry.add("fox", "newcomer", since=4)
    assert count_labelled(server) == 3
