"""Users' own modules as networks: the last linear layer of a module becomes the head.

They are named by an import path to a subclass of `torch.nn.Module`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import ConfigDict
from torch import Tensor, nn

from fedwild.core.errors import UserError
from fedwild.core.settings import Settings, unknown_key
from fedwild.models.builder import NetworkBuilder
from fedwild.models.network import Network, Shape


class AdaptedNetwork(Network):
    """A network around a module that was not written for fedwild, with one cut point, `features`.

    The module's last linear layer, in order of execution, becomes `head`, and its input is the embedding. State-dict
    keys are `features.module.*` and `head.*`. The layer graph is unknown.
    """

    def __init__(self, name: str, module: nn.Module, input_shape: Shape, outputs: int, bias: bool = True) -> None:
        head = _find_head(name, module, input_shape)
        features = FeatureExtractor(_with_tap(module, head))
        super().__init__(name, input_shape, {"features": features}, head.in_features, outputs, bias)
        if head.out_features == outputs and (head.bias is not None) == bias:
            self.head = head


class FeatureTap(nn.Module):
    """Replaces the head: ends the forward pass and hands its input (n, d) to the extractor."""

    def forward(self, x: Tensor) -> Tensor:
        raise _Reached(x)


class FeatureExtractor(nn.Module):
    """Runs the user's module up to the tap: (n, *input_shape) to (n, d)."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        try:
            self.module(x)
        except _Reached as reached:
            return reached.features
        raise RuntimeError(f"{type(self.module).__name__} did not reach its last linear layer.")


class _Reached(BaseException):
    """Carries the features out. Not an `Exception`, so that the user's `except Exception` cannot catch it."""

    def __init__(self, features: Tensor) -> None:
        super().__init__()
        self.features = features


def _find_head(name: str, module: nn.Module, input_shape: Shape) -> nn.Linear:
    """Return the linear layer that computes the module's output, found by a trial run on two inputs."""
    calls: list[tuple[str, nn.Linear, Tensor, Tensor]] = []
    hooks = [
        part.register_forward_hook(lambda part, args, output, path=path: calls.append((path, part, args[0], output)))
        for path, part in module.named_modules()
        if isinstance(part, nn.Linear)
    ]
    if not hooks:
        raise UserError(f"model {name!r} has no nn.Linear layer to serve as its head.")
    try:
        output = _trial_run(name, module, input_shape)
    finally:
        for hook in hooks:
            hook.remove()
    if not calls:
        raise UserError(f"model {name!r} never runs an nn.Linear layer that could serve as its head.")
    path, head, features, logits = calls[-1]
    called_once = sum(call[1] is head for call in calls) == 1
    if not (called_once and features.dim() == 2 and _is_result(output, logits)):
        raise UserError(
            f"model {name!r} must return the output of its last nn.Linear layer {path!r}, applied once to features "
            "(n, d), as logits, probabilities or log-probabilities."
        )
    return head


@torch.no_grad()
def _trial_run(name: str, module: nn.Module, input_shape: Shape) -> Tensor:
    """Return the output for two artificial inputs, in eval mode so that no running statistics change."""
    like = next(module.parameters())
    values = torch.linspace(0, 1, 2 * torch.Size(input_shape).numel(), device=like.device, dtype=like.dtype)
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        return module(values.reshape(2, *input_shape))
    except Exception as error:
        raise UserError(
            f"model {name!r} does not accept inputs of shape {input_shape}: {type(error).__name__}: {error}"
        ) from error
    finally:
        for part, training in modes:
            part.training = training


def _is_result(output: object, logits: Tensor) -> bool:
    """Return whether an output is these logits, their probabilities or their log-probabilities."""
    if not isinstance(output, Tensor) or output.shape != logits.shape:
        return False
    candidates = (logits, logits.softmax(-1), logits.log_softmax(-1))
    return any(torch.allclose(output, candidate, atol=1e-5) for candidate in candidates)


def _with_tap(module: nn.Module, head: nn.Linear) -> nn.Module:
    """Return the module with a tap in place of `head`; the tap alone if the head is the whole module."""
    tap = FeatureTap()
    if module is head:
        return tap
    for parent in list(module.modules()):
        for child, part in list(parent._modules.items()):
            if part is head:
                setattr(parent, child, tap)
    return module


class ModuleSettings(Settings):
    """The settings of a user's own module: keyword arguments, which are checked when it is built."""

    model_config = ConfigDict(extra="allow")


class ModuleBuilder(NetworkBuilder):
    """Makes an instance of a user's own module class and turns it into a network."""

    Params = ModuleSettings
    module: ClassVar[type[nn.Module]]

    def build(self, input_shape: Shape, outputs: int, bias: bool) -> Network:
        cls = type(self).module
        sizes = {"input_shape": input_shape, "outputs": outputs}
        arguments = _select_arguments(self.name, cls, sizes, self.params.model_dump())
        try:
            module = cls(**arguments)
        except Exception as error:
            raise UserError(f"model {self.name!r} cannot be built: {type(error).__name__}: {error}") from error
        if isinstance(module, Network):
            if module.head.out_features != outputs or (module.head.bias is not None) != bias:
                module.set_head(outputs, bias)
            return module
        return AdaptedNetwork(self.name, module, input_shape, outputs, bias)


class MissingModule(NetworkBuilder):
    """Stands for a user's own module that cannot be imported: building it raises the error."""

    Params = ModuleSettings
    error: ClassVar[UserError]

    def build(self, input_shape: Shape, outputs: int, bias: bool) -> Network:
        raise self.error


def _select_arguments(
    name: str, cls: type[nn.Module], sizes: Mapping[str, Any], params: Mapping[str, Any]
) -> dict[str, Any]:
    """Return those of `sizes` that the signature accepts and all of `params`, which it must accept."""
    signature = inspect.signature(cls).parameters.values()
    by_name = [p for p in signature if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature)
    names = {p.name for p in by_name}
    problems = [
        unknown_key(f"model.{key}", key, names - set(sizes))
        for key in params
        if key in sizes or (key not in names and not takes_any)
    ]
    given = {key: value for key, value in sizes.items() if key in names or takes_any} | dict(params)
    problems += [
        f"model.{p.name} is missing: model {name!r} requires it."
        for p in by_name
        if p.default is p.empty and p.name not in given
    ]
    if problems:
        raise UserError(*problems)
    return given
