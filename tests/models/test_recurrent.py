"""word-lstm: words in the order of their indices, against a loop over the words of one sample."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedwild.core.errors import UserError
from fedwild.models import build
from fedwild.models.recurrent import WordSequence


def bags() -> Tensor:
    """Counts of six words in four samples: two words, one word, none, and more words than a sequence has."""
    return torch.tensor([[0.0, 3, 0, 0, 1, 0], [0, 0, 0, 0, 0, 7], [0] * 6, [1, 2, 1, 5, 1, 1]])


def test_words_are_in_the_order_of_their_indices_and_zeros_follow() -> None:
    sequence = WordSequence(6, 4, length=3)
    found, table = sequence(bags()), sequence.embedding.weight
    weight = [math.log(1 + count) for count in range(8)]
    expected = torch.zeros(4, 3, 4)
    expected[0, 0], expected[0, 1] = table[1] * weight[3], table[4] * weight[1]
    expected[1, 0] = table[5] * weight[7]
    # The most frequent words; of equally frequent ones, the first.
    expected[3, 0], expected[3, 1], expected[3, 2] = table[0] * weight[1], table[1] * weight[2], table[3] * weight[5]
    assert torch.allclose(found, expected)


def test_the_embedding_is_the_mean_of_the_states_over_the_words() -> None:
    torch.manual_seed(0)
    network: Any = build("word-lstm", (6,), 3, params={"embedding": 4, "hidden": 5, "length": 6})
    found = network.embed(bags())
    cell = nn.LSTMCell(4, 5)
    weights = network.lstm.mean.lstm.state_dict()
    cell.load_state_dict({name.removesuffix("_l0"): tensor for name, tensor in weights.items()})
    table = network.words.embedding.weight
    for sample, embedding in zip(bags(), found, strict=True):
        state, total = (torch.zeros(1, 5), torch.zeros(1, 5)), torch.zeros(5)
        words = sample.nonzero().flatten().tolist()
        for word in words:
            state = cell(table[word : word + 1] * torch.log1p(sample[word]), state)
            total += state[0][0]
        assert torch.allclose(embedding, total / max(1, len(words)), atol=1e-6)


def test_longer_sequences_do_not_change_samples_that_fit() -> None:
    short, long = (build("word-lstm", (6,), 3, params={"embedding": 4, "hidden": 5, "length": n}) for n in (2, 5))
    long.load_state_dict(short.state_dict())
    assert torch.allclose(short(bags()[:3]), long(bags()[:3]), atol=1e-6)
    assert not torch.allclose(short(bags()[3:]), long(bags()[3:]), atol=1e-6)


def test_gradients_reach_counts_and_embeddings_of_the_words_of_a_sample() -> None:
    network: Any = build("word-lstm", (6,), 3)
    x = bags()[:1].requires_grad_()
    network(x).square().sum().backward()
    assert x.grad is not None
    assert x.grad[0].nonzero().flatten().tolist() == [1, 4]
    assert network.words.embedding.weight.grad.any(1).nonzero().flatten().tolist() == [1, 4]


def test_it_has_400_thousand_parameters_for_reviews_and_no_layer_graph() -> None:
    network = build("word-lstm", (5000,), 2)
    assert network.cuts == ("words", "lstm")
    assert round(sum(p.numel() for p in network.parameters()) / 1e6, 1) == 0.4
    with pytest.raises(UserError, match="layer graph of model 'word-lstm' is unknown"):
        network.graph()
