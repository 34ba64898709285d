"""Networks by name: the registry, and the function that builds one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedwild.core.errors import UserError
from fedwild.core.registry import Registry
from fedwild.models.adapted import MissingModule, ModuleBuilder
from fedwild.models.builder import NetworkBuilder
from fedwild.models.network import Network


class NetworkRegistry(Registry[NetworkBuilder]):
    """Networks by name. An import path may also name a module class or a function that returns a module."""

    def get(self, name: str) -> type[NetworkBuilder]:
        try:
            return super().get(name)
        except UserError as error:
            if ":" not in name:
                raise
            # The config of a run can be read where the user's module is missing; only building the network fails.
            return type("MissingModule", (MissingModule,), {"name": name, "error": error})

    def adapt(self, path: str, found: Any) -> type[NetworkBuilder]:
        if not callable(found):
            raise UserError(f"model {path!r} must name a class or function, not a {type(found).__name__}.")
        return type("ImportedModule", (ModuleBuilder,), {"name": path, "factory": staticmethod(found)})


MODELS = NetworkRegistry("model", NetworkBuilder)


def build(
    name: str, input_shape: Sequence[int], outputs: int, bias: bool = True, params: Mapping[str, Any] | None = None
) -> Network:
    """Return a network for inputs (n, *input_shape), newly initialised from torch's global generator.

    `name` is a registered name or an import path `package.module:Class`; `bias` is that of the head. An import path
    runs the code that it names: never build from a name that came over the network.
    """
    return MODELS.make(name, params).build(tuple(int(side) for side in input_shape), outputs, bias)
