"""The network that every method trains: named stages, an embedding, and a linear head that can grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fedwild.core.errors import UserError, unknown_name
from fedwild.models.graph import LayerGraph, Wire, build_graph

Shape = tuple[int, ...]


class Network(nn.Module):
    """Stages in order, then an optional neck (pooling), then `head`, the classifier.

    `stages` maps names to modules; each becomes a submodule of that name and a cut point after which the network can
    be split. `wires` describes the layer graph of the body, without the head; None if it is unknown.
    """

    head: nn.Linear

    def __init__(
        self,
        name: str,
        input_shape: Shape,
        stages: Mapping[str, nn.Module],
        embedding_dim: int,
        outputs: int,
        bias: bool = True,
        neck: nn.Module | None = None,
        wires: Sequence[Wire] | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        self.input_shape = tuple(input_shape)
        self.embedding_dim = embedding_dim
        self.cuts = tuple(stages)
        self._wires = None if wires is None else tuple(wires)
        for stage_name, stage in stages.items():
            self.add_module(stage_name, stage)
        self.neck = nn.Identity() if neck is None else neck
        self.head = nn.Linear(embedding_dim, _check_outputs(outputs), bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, outputs) of inputs (n, *input_shape)."""
        return self.head(self.embed(x))

    def embed(self, x: Tensor) -> Tensor:
        """Return embeddings (n, embedding_dim), the head's input, of inputs (n, *input_shape)."""
        return self.neck(self._run(x, self.cuts))

    def upto(self, x: Tensor, cut: str) -> Tensor:
        """Return activations (n, ...) after the stage `cut`."""
        return self._run(x, self.cuts[: self._position(cut) + 1])

    def after(self, h: Tensor, cut: str) -> Tensor:
        """Return logits (n, outputs) from the activations after the stage `cut`."""
        return self.head(self.embed_after(h, cut))

    def embed_after(self, h: Tensor, cut: str) -> Tensor:
        """Return embeddings (n, embedding_dim) from the activations after the stage `cut`."""
        return self.neck(self._run(h, self.after_cut(cut)))

    def after_cut(self, cut: str) -> tuple[str, ...]:
        """Return the stages after `cut`."""
        return self.cuts[self._position(cut) + 1 :]

    def first_dense(self) -> str | None:
        """Return the first stage with a dense layer, or None if only the head is dense."""
        for cut in self.cuts:
            if any(isinstance(module, nn.Linear) for module in self.get_submodule(cut).modules()):
                return cut
        return None

    def set_head(self, outputs: int, bias: bool = True) -> None:
        """Replace the head by a newly initialised one with `outputs` classes; its parameters are new objects."""
        like = self.head.weight
        self.head = nn.Linear(self.embedding_dim, _check_outputs(outputs), bias, device=like.device, dtype=like.dtype)

    @torch.no_grad()
    def grow_head(self, outputs: int, rows: Tensor | None = None) -> None:
        """Widen the head to `outputs` classes; old rows and biases stay bit-equal.

        New rows are `rows` (new, embedding_dim) with zero bias if given, else newly initialised. The head's
        parameters are new objects unless the number of outputs stays the same.
        """
        old = self.head
        new = outputs - old.out_features
        if new < 0:
            raise UserError(f"A head of {old.out_features} outputs cannot shrink to {outputs}.")
        if rows is not None and rows.shape != (new, self.embedding_dim):
            raise UserError(
                f"Growing the head by {new} needs rows of shape {(new, self.embedding_dim)}, not {tuple(rows.shape)}."
            )
        if new == 0:
            return
        self.set_head(outputs, bias=old.bias is not None)
        self.head.weight[: old.out_features] = old.weight
        if rows is not None:
            self.head.weight[old.out_features :] = rows
        if old.bias is not None:
            self.head.bias[: old.out_features] = old.bias
            if rows is not None:
                self.head.bias[old.out_features :] = 0.0

    def graph(self) -> LayerGraph:
        """Return the layer graph, head included."""
        if self._wires is None:
            first = next(name for name, _ in self.named_parameters())
            raise UserError(
                f"The layer graph of model {self.name!r} is unknown from layer {first.rpartition('.')[0]!r} on, so its "
                "neurons cannot be aligned: choose another built-in model, or return a fedwild Network with wires."
            )
        embedding = self._wires[-1].outputs
        return build_graph(self, (*self._wires, Wire("head", embedding, None)))

    def _run(self, x: Tensor, names: Sequence[str]) -> Tensor:
        for name in names:
            x = self.get_submodule(name)(x)
        return x

    def _position(self, cut: str) -> int:
        if cut not in self.cuts:
            raise unknown_name(f"Cut point of {self.name!r}", cut, self.cuts)
        return self.cuts.index(cut)


def _check_outputs(outputs: int) -> int:
    if outputs < 1:
        raise UserError(f"A head needs at least 1 output, not {outputs}.")
    return outputs
