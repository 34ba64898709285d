"""Users' own modules, named by an import path to a class or to a function that returns a module."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from pydantic import ConfigDict
from torch import nn

from fedwild.core.errors import UserError
from fedwild.core.settings import Settings, unknown_key
from fedwild.models.adapted import AdaptedNetwork
from fedwild.models.builder import NetworkBuilder
from fedwild.models.network import Network
from fedwild.models.shapes import Shape


class ModuleSettings(Settings):
    """The settings of a user's own module: keyword arguments, which are checked when it is built."""

    model_config = ConfigDict(extra="allow")


class ModuleBuilder(NetworkBuilder):
    """Calls a user's own class or function and turns the module into a network."""

    Params = ModuleSettings
    factory: ClassVar[Callable[..., Any]]

    def build(self, input_shape: Shape, outputs: int, bias: bool) -> Network:
        factory = type(self).factory
        sizes = {"input_shape": input_shape, "outputs": outputs}
        arguments = _select_arguments(self.name, factory, sizes, self.params.model_dump())
        try:
            module = factory(**arguments)
        except Exception as error:
            raise UserError(f"model {self.name!r} cannot be built: {type(error).__name__}: {error}") from error
        if isinstance(module, Network):
            if module.head.out_features != outputs or (module.head.bias is not None) != bias:
                module.set_head(outputs, bias)
            return module
        if not isinstance(module, nn.Module):
            raise UserError(f"model {self.name!r} must return a torch.nn.Module, not a {type(module).__name__}.")
        return AdaptedNetwork(self.name, module, input_shape, outputs, bias)


class MissingModule(NetworkBuilder):
    """Stands for a user's own module that cannot be imported: building it raises the error."""

    Params = ModuleSettings
    error: ClassVar[UserError]

    def build(self, input_shape: Shape, outputs: int, bias: bool) -> Network:
        raise self.error


def _select_arguments(
    name: str, factory: Callable[..., Any], sizes: Mapping[str, Any], params: Mapping[str, Any]
) -> dict[str, Any]:
    """Return those of `sizes` that the signature accepts and all of `params`, which it must accept."""
    try:
        signature = inspect.signature(factory).parameters.values()
    except ValueError as error:
        raise UserError(f"model {name!r} has no signature: name a class or function written in Python.") from error
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
