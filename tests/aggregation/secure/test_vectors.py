"""Summands as vectors: the sum of vectors gives the means and totals that a plain merge computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedwild.aggregation.means import weighted_mean
from fedwild.aggregation.secure.vectors import HEAD, Layout
from fedwild.contract import Reply
from fedwild.contract.sums import Sums
from fedwild.core.errors import BadReply
from fedwild.core.payload import Payload

SUMS = Sums(means=("model",), plain_means=("control",), totals=("counts",))


def reply(seed: int, samples: int, loss: float | None) -> Payload:
    generator = torch.Generator().manual_seed(seed)
    return Payload.of(
        {"samples": samples, "loss": loss},
        model={"w": torch.randn(3, 2, generator=generator), "steps": torch.tensor(7)},
        control={"w": torch.randn(3, generator=generator, dtype=torch.float64)},
        counts={"n": torch.randint(0, 9, (4,), generator=generator)},
        masks={"w": torch.zeros(1)},
    )


def groups_of(payload: Payload) -> dict[str, dict[str, torch.Tensor]]:
    return {group: payload.group(group) for group in ("counts", "model", "control", "masks")}


def test_the_sum_of_vectors_gives_the_plain_means_and_totals() -> None:
    replies = {"a": reply(0, 3, 1.0), "b": reply(1, 0, None), "c": reply(2, 5, 2.0)}
    layout = Layout.of(SUMS, groups_of(replies["a"]))
    vectors = [layout.to_vector(payload, float(payload.info["samples"])) for payload in replies.values()]
    assert layout.size == HEAD + 6 + 1 + 3 + 4 == len(vectors[0])
    combined = layout.to_reply(np.sum(vectors, axis=0), len(replies))
    assert combined.info == {"samples": 8, "loss": 1.5}
    plain = [Reply(name, payload) for name, payload in replies.items()]
    for group, weight in (("model", None), ("control", lambda reply: 1.0)):
        mean = weighted_mean(plain, group) if weight is None else weighted_mean(plain, group, weight)
        assert mean is not None
        for name, tensor in mean.items():
            assert combined.group(group)[name].dtype == tensor.dtype
            torch.testing.assert_close(combined.group(group)[name], tensor, rtol=1e-6, atol=1e-7)
    assert torch.equal(
        combined.group("counts")["n"], torch.stack([p.group("counts")["n"] for p in replies.values()]).sum(0)
    )
    assert "masks" not in combined


def test_the_merge_of_the_combined_reply_is_the_combined_reply() -> None:
    combined = Payload.of({"samples": 12_345_677}, model={"w": torch.randn(1000)})
    mean = weighted_mean([Reply("*", combined)], "model")
    assert mean is not None and torch.equal(mean["w"], combined.group("model")["w"])


def test_a_sum_without_samples_has_means_of_zero() -> None:
    layout = Layout.of(SUMS, groups_of(reply(0, 0, None)))
    combined = layout.to_reply(layout.to_vector(reply(0, 0, None), 0.0), 1)
    assert combined.info == {"samples": 0}
    assert not combined.group("model")["w"].any()


def test_layouts_differ_by_names_shapes_types_and_kinds() -> None:
    base = groups_of(reply(0, 1, None))
    others = [
        Layout.of(SUMS, base | {"model": {"v": torch.zeros(3, 2), "steps": torch.tensor(7)}}),
        Layout.of(SUMS, base | {"model": {"w": torch.zeros(2, 3), "steps": torch.tensor(7)}}),
        Layout.of(SUMS, base | {"model": {"w": torch.zeros(3, 2), "steps": torch.tensor(7.0)}}),
        Layout.of(Sums(means=("model", "control"), totals=("counts",)), base),
    ]
    digests = {layout.digest() for layout in (Layout.of(SUMS, base), *others)}
    assert len(digests) == 5


def test_a_reply_with_other_tensors_is_rejected() -> None:
    layout = Layout.of(SUMS, groups_of(reply(0, 1, None)))
    wrong = reply(0, 1, None)
    wrong.put("model", {"w": torch.zeros(3, 2)})
    with pytest.raises(BadReply, match="model lacks"):
        layout.to_vector(wrong, 1.0)


@pytest.mark.parametrize("value", [1000.0, float("nan"), float("inf")])
def test_values_out_of_range_are_rejected_with_the_name_of_the_tensor(value: float) -> None:
    payload = reply(0, 2, None)
    payload.group("model")["w"][1, 1] = value
    layout = Layout.of(SUMS, groups_of(payload))
    vector = layout.to_vector(payload, 2.0)
    with pytest.raises(BadReply, match=r"tensor model/w has a weighted value .* raise federation.secure_range"):
        layout.check_range(vector, 1500.0)


def test_too_many_samples_are_rejected() -> None:
    payload = reply(0, 2000, None)
    layout = Layout.of(Sums(), {})
    with pytest.raises(BadReply, match="samples or loss are larger than the agreed"):
        layout.check_range(layout.to_vector(payload, 2000.0), 1500.0)
