"""What a correction is. The base class corrects nothing and is registered as `none`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from fedwild.hyper import Hyper
from fedwild.models import Network
from fedwild.payload import Payload
from fedwild.protocol import Client, Replies, Server
from fedwild.registry import Registry

Groups = Mapping[str, Mapping[str, Tensor]]

CORRECTIONS: Registry[Correction] = Registry("correction", lambda: Correction)


class Steering:
    """A correction at work at one client, for one round."""

    def penalty(self, x: Tensor, y: Tensor) -> Tensor | None:
        """A term added to the loss of a batch, such as MOON's contrast of representations."""
        return None

    def bend(self) -> None:
        """Change the model's gradients in place before the step, as SCAFFOLD does."""

    def up(self, steps: int, lr: float) -> Groups:
        """Groups added to the reply after `steps` steps."""
        return {}


@CORRECTIONS.add("none")
class Correction:
    """No correction: plain local steps."""

    name: ClassVar[str]
    Params: ClassVar[type[Hyper]] = Hyper

    def __init__(self, params: Any) -> None:
        self.params = params

    @classmethod
    def summary(cls) -> str:
        """The first line of the docstring."""
        return (cls.__doc__ or "").strip().splitlines()[0]

    def down(self, server: Server) -> Groups:
        """Groups added to what goes down to the clients."""
        return {}

    def expects(self, server: Server) -> Groups:
        """The groups that `Steering.up` adds, with the names, shapes and types of their tensors."""
        return {}

    def at(self, client: Client, model: Network, payload: Payload) -> Steering:
        """The correction at one client, before its first step."""
        return Steering()

    def merge(self, server: Server, replies: Replies) -> None:
        """Fold what `Steering.up` sent into the server's state."""
