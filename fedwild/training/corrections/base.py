"""What a correction is. The base class corrects nothing and is registered as `none`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from fedwild.core.settings import Settings
from fedwild.models import Network
from fedwild.core.payload import Payload
from fedwild.contract import Client, Replies, Server
from fedwild.core.registry import Registry

Groups = Mapping[str, Mapping[str, Tensor]]


class ClientCorrection:
    """A correction at work at one client, for one round."""

    def penalty(self, x: Tensor, y: Tensor) -> Tensor | None:
        """A term added to the loss of a batch, such as MOON's contrast of representations."""
        return None

    def before_step(self) -> None:
        """Change the model's gradients in place before the step, as SCAFFOLD does."""

    def after_training(self, steps: int, lr: float) -> Groups:
        """Groups added to the reply after `steps` steps."""
        return {}


class Correction:
    """No correction: plain local steps."""

    name: ClassVar[str]
    Params: ClassVar[type[Settings]] = Settings

    def __init__(self, params: Any) -> None:
        self.params = params

    @classmethod
    def summary(cls) -> str:
        """The first line of the docstring."""
        return (cls.__doc__ or "").strip().splitlines()[0]

    def to_clients(self, server: Server) -> Groups:
        """Groups added to what goes down to the clients."""
        return {}

    def expects(self, server: Server) -> Groups:
        """The groups that `ClientCorrection.up` adds, with the names, shapes and types of their tensors."""
        return {}

    def at_client(self, client: Client, model: Network, payload: Payload) -> ClientCorrection:
        """The correction at one client, before its first step."""
        return ClientCorrection()

    def merge(self, server: Server, replies: Replies) -> None:
        """Fold what `ClientCorrection.up` sent into the server's state."""


CORRECTIONS: Registry[Correction] = Registry("correction", Correction)
CORRECTIONS.add("none")(Correction)
