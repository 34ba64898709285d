from __future__ import annotations

import copy

import pytest
import torch

from fedwild.core.errors import UserError
from fedwild.models import MODELS, build
from tests.models.cases import CASES, inputs, make


def test_every_registered_network_has_a_case() -> None:
    assert sorted(CASES) == MODELS.names()


@pytest.mark.parametrize("name", CASES)
def test_both_halves_of_a_cut_give_the_logits_and_embedding_of_the_whole(name: str) -> None:
    network = make(name).eval()
    x = inputs(network)
    with torch.no_grad():
        embedding, logits = network.embed(x), network(x)
        assert embedding.shape == (3, network.embedding_dim)
        assert logits.shape == (3, 5)
        assert torch.equal(network.head(embedding), logits)
        for cut in network.cuts:
            h = network.upto(x, cut)
            assert torch.equal(network.after(h, cut), logits)
            assert torch.equal(network.embed_after(h, cut), embedding)


@pytest.mark.parametrize("name", CASES)
def test_gradient_reaches_every_parameter(name: str) -> None:
    network = make(name).train()
    network(inputs(network, count=8)).square().sum().backward()
    unreached = [key for key, p in network.named_parameters() if p.grad is None or not p.grad.any()]
    assert unreached == []


def test_the_second_half_does_not_change_the_activations_at_the_cut() -> None:
    for name in ("resnet-18", "wrn-16-4", "simple-cnn"):
        network = make(name)
        for cut in network.cuts:
            h = network.upto(inputs(network), cut)
            before = h.detach().clone()
            network.after(h, cut)
            assert torch.equal(h, before)


def test_same_seed_gives_bit_equal_initial_weights() -> None:
    first, second = make("resnet-18").state_dict(), make("resnet-18").state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_an_unknown_cut_is_rejected_with_a_list_of_cuts() -> None:
    network = make("resnet-18")
    for call in (network.upto, network.after, network.embed_after):
        with pytest.raises(UserError, match=r"'layer5' is not known.*layer1, layer2, layer3, layer4, stem"):
            call(inputs(network), "layer5")


def test_growing_the_head_keeps_old_rows_and_biases_bit_equal() -> None:
    network = make("mlp", outputs=3)
    old = copy.deepcopy(network.head)
    network.grow_head(7)
    assert network.head.weight.shape == (7, 12)
    assert torch.equal(network.head.weight[:3], old.weight)
    assert torch.equal(network.head.bias[:3], old.bias)
    assert network.head.weight[3:].abs().sum(1).min() > 0
    assert network.head.weight.requires_grad
    network(inputs(network)).sum().backward()
    assert network.head.weight.grad is not None


def test_growing_the_head_with_rows_uses_them_with_zero_bias() -> None:
    network = make("mlp", outputs=3)
    rows = torch.randn(2, 12)
    network.grow_head(5, rows)
    assert torch.equal(network.head.weight[3:], rows)
    assert torch.equal(network.head.bias[3:], torch.zeros(2))


def test_a_head_without_bias_grows_without_bias() -> None:
    network = make("simple-cnn", bias=False)
    assert network.head.bias is None
    network.grow_head(8)
    assert network.head.bias is None
    assert network(inputs(network)).shape == (3, 8)


def test_growing_to_the_same_size_changes_nothing() -> None:
    network = make("mlp")
    head = network.head
    network.grow_head(5)
    assert network.head is head


def test_shrinking_the_head_is_rejected() -> None:
    with pytest.raises(UserError, match="head of 5 outputs cannot shrink to 4"):
        make("mlp").grow_head(4)


def test_rows_of_the_wrong_shape_are_rejected() -> None:
    with pytest.raises(UserError, match=r"rows of shape \(2, 12\), not \(1, 12\)"):
        make("mlp").grow_head(7, torch.zeros(1, 12))


def test_a_new_head_has_the_given_size_bias_and_dtype() -> None:
    network = make("mlp").double()
    network.set_head(9, bias=False)
    assert network.head.bias is None
    assert network.head.weight.shape == (9, 12)
    assert network.head.weight.dtype == torch.float64


def test_a_head_without_outputs_is_rejected() -> None:
    with pytest.raises(UserError, match="at least 1 output, not 0"):
        make("mlp", outputs=0)


def test_a_copy_is_independent_and_equal() -> None:
    network = make("resnet-18").eval()
    twin = copy.deepcopy(network)
    assert torch.equal(twin(inputs(network)), network(inputs(network)))
    assert twin.graph() == network.graph()
    twin.grow_head(6)
    assert network.head.out_features == 5


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("simple-cnn", "fc1"),
        ("digit-cnn", "fc1"),
        ("vgg-9", "fc1"),
        ("mlp", "fc1"),
        ("resnet-18", None),
        ("wrn-16-4", None),
    ],
)
def test_the_first_dense_stage_is_found(name: str, expected: str | None) -> None:
    shape, params = CASES[name]
    with torch.device("meta"):
        assert build(name, shape, 3, params=params).first_dense() == expected
