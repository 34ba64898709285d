"""A recurrent network for bags of words: word-lstm."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

from fedwild.core.errors import UserError
from fedwild.core.settings import Settings
from fedwild.models.builder import NetworkBuilder, stage
from fedwild.models.network import Network, Shape
from fedwild.models.registry import MODELS

TIE_BREAK = 1e-9
"""Lowers a count by this much per index, so that of equally frequent words the first are chosen on any machine."""


class WordSequence(nn.Module):
    """Turns word counts into a sequence of embedded words, in the order of their indices.

    Counts do not have the order of words in the text. The sequence has the `length` most frequent words of the sample,
    each once: its embedding times log(1 + count). Shorter sequences end with zeros.
    """

    def __init__(self, words: int, width: int, length: int) -> None:
        super().__init__()
        self.length = min(length, words)
        self.embedding = nn.Embedding(words, width)

    def forward(self, x: Tensor) -> Tensor:
        """(n, words) to (n, length, width)."""
        words = x.shape[1]
        order = torch.arange(words, device=x.device)
        chosen = (x.detach().abs().double() - TIE_BREAK * order).topk(self.length, dim=1).indices
        missing = x.detach().gather(1, chosen) == 0
        # Words in the order of their indices, then places without a word.
        index = (chosen + words * missing).sort(dim=1).values % words
        counts = x.gather(1, index)
        embedded: Tensor = self.embedding(index) * (counts.sign() * counts.abs().log1p()).unsqueeze(2)
        return embedded


class MeanState(nn.Module):
    """An LSTM whose output is the mean of its hidden states over the elements of a sequence that are not zero.

    The last state alone would favour words with large indices.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """(n, length, inputs) to (n, hidden)."""
        states: Tensor = self.lstm(x)[0]
        words = (x.detach() != 0).any(2, keepdim=True)
        return (states * words).sum(1) / words.sum(1).clamp_min(1)


class WordLstmParams(Settings):
    """Settings of `word-lstm`."""

    embedding: int = Field(default=64, ge=1, description="Width of a word's embedding.")
    hidden: int = Field(default=128, ge=1, description="Width of the LSTM's state, which is the network's embedding.")
    length: int = Field(default=100, ge=1, description="Words per sample; the most frequent ones are kept.")


@MODELS.add("word-lstm")
class WordLstm(NetworkBuilder):
    """LSTM over the embedded words of a bag, ordered by index, for word counts (Gains); 0.4 M parameters.

    Stages words and lstm, for vectors of word counts.
    """

    Params = WordLstmParams

    def build(self, input_shape: Shape, outputs: int, bias: bool) -> Network:
        if len(input_shape) != 1 or input_shape[0] < 1:
            raise UserError(
                f"model {self.name!r} accepts vectors of word counts (d,), not inputs of shape {input_shape}."
            )
        p = self.params
        stages: dict[str, nn.Module] = {
            "words": WordSequence(input_shape[0], p.embedding, p.length),
            "lstm": stage(mean=MeanState(p.embedding, p.hidden)),
        }
        return Network(self.name, input_shape, stages, p.hidden, outputs, bias)
