"""Networks by name: the registry, and the function that builds one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from fedwild.core.errors import UserError
from fedwild.core.registry import Registry
from fedwild.core.trust import UntrustedCode
from fedwild.models.adapted import MissingModule, ModuleBuilder
from fedwild.models.builder import NetworkBuilder
from fedwild.models.network import Network


class NetworkRegistry(Registry[NetworkBuilder]):
    """Networks by name. An import path may also name a subclass of `torch.nn.Module`."""

    def get(self, name: str) -> type[NetworkBuilder]:
        try:
            return super().get(name)
        except UntrustedCode:
            raise
        except UserError as error:
            if ":" not in name:
                raise
            # The config of a run can be read where the user's module is missing; only building the network fails.
            return type("MissingModule", (MissingModule,), {"name": name, "error": error})

    def adapt(self, path: str, found: Any) -> type[NetworkBuilder]:
        if not isinstance(found, type) or not issubclass(found, nn.Module):
            raise UserError(
                f"model {path!r} is not a subclass of torch.nn.Module or fedwild.models.NetworkBuilder: name one."
            )
        return type("ImportedModule", (ModuleBuilder,), {"name": path, "module": found})


MODELS = NetworkRegistry("model", NetworkBuilder)


def build(
    name: str, input_shape: Sequence[int], outputs: int, bias: bool = True, params: Mapping[str, Any] | None = None
) -> Network:
    """Return a network for inputs (n, *input_shape), newly initialised from torch's global generator.

    `name` is a registered name or an import path `package.module:Class`; `bias` is that of the head. An import path
    runs the code that it names, unless `core.trust` forbids it.
    """
    return MODELS.make(name, params).build(tuple(int(side) for side in input_shape), outputs, bias)
