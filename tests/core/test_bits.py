"""Masks survive packing, in an eighth of a byte per element."""

from __future__ import annotations

import pytest
import torch

from fedwild.core.bits import pack_bits, packed_spec, unpack_bits


@pytest.mark.parametrize("shape", [(1,), (7,), (8,), (9,), (3, 5), (4, 4), (2, 3, 5, 5), (17,)])
def test_masks_survive_packing(shape: tuple[int, ...]) -> None:
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.5
    like = {"a.weight": torch.zeros(shape), "unused": torch.zeros(3), "b.weight": torch.zeros(shape)}
    bits = pack_bits({"a.weight": mask, "b.weight": ~mask})
    assert bits["a.weight"].numel() == -(-mask.numel() // 8)
    again = unpack_bits(bits, like)
    assert again.keys() == {"a.weight", "b.weight"}
    assert again["a.weight"].dtype == torch.bool
    assert torch.equal(again["a.weight"], mask)
    assert torch.equal(again["b.weight"], ~mask)
    spec = packed_spec(like, ("a.weight", "b.weight"))
    assert {name: (code.shape, code.dtype) for name, code in spec.items()} == {
        name: (code.shape, code.dtype) for name, code in bits.items()
    }
