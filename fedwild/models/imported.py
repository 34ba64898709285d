"""Networks of the user's own, by import path `package.module:Class` (or a factory function)."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from fedwild.errors import UserError
from fedwild.hyper import unknown_key
from fedwild.models.adapted import AdaptedNetwork
from fedwild.models.network import Network
from fedwild.models.shapes import Shape


def build_imported(path: str, input_shape: Shape, outputs: int, bias: bool, params: Mapping[str, Any]) -> Network:
    """Call what `path` names and make a Network with `outputs` classes of the result."""
    factory = _load(path)
    arguments = _arguments(path, factory, {"input_shape": input_shape, "outputs": outputs}, params)
    try:
        module = factory(**arguments)
    except Exception as error:
        raise UserError(f"model.name {path!r} could not be built: {type(error).__name__}: {error}") from error
    if isinstance(module, Network):
        if module.head.out_features != outputs or (module.head.bias is not None) != bias:
            module.set_head(outputs, bias)
        return module
    if not isinstance(module, nn.Module):
        raise UserError(f"model.name {path!r} must give a torch.nn.Module, not a {type(module).__name__}.")
    return AdaptedNetwork(path, module, input_shape, outputs, bias)


def _load(path: str) -> Callable[..., Any]:
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute or module_name.startswith("."):
        raise UserError(f"model.name {path!r} is not an import path like 'package.module:Class'.")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise UserError(
            f"model.name {path!r}: module {module_name!r} cannot be imported "
            f"({type(error).__name__}: {error}); it must be installed or on PYTHONPATH."
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UserError(f"model.name {path!r}: {part!r} is not in {module_name!r}; give a class or function there.")
        found = getattr(found, part)
    if not callable(found):
        raise UserError(f"model.name {path!r} must name a class or function, not a {type(found).__name__}.")
    return found


def _arguments(
    path: str, factory: Callable[..., Any], offered: Mapping[str, Any], params: Mapping[str, Any]
) -> dict[str, Any]:
    """What the signature accepts of `offered`, and all of `params`, each of which it must accept."""
    try:
        signature = inspect.signature(factory).parameters.values()
    except ValueError as error:
        raise UserError(f"model.name {path!r} has no signature; name a class or function in Python.") from error
    by_name = [p for p in signature if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature)
    names = {p.name for p in by_name}
    problems = [
        unknown_key(f"model.{key}", key, names - set(offered))
        for key in params
        if key in offered or (key not in names and not takes_any)
    ]
    given = {key: value for key, value in offered.items() if key in names or takes_any} | dict(params)
    problems += [
        f"model.{p.name} is missing: {path!r} needs a value for it."
        for p in by_name
        if p.default is p.empty and p.name not in given
    ]
    if problems:
        raise UserError(*problems)
    return given
