"""The base classes of corrections. `Correction` itself corrects nothing and is registered as `none`."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from fedwild.contract import Client, Groups, Payload, Replies, Server
from fedwild.contract.sums import NotSummable, Sums
from fedwild.core.component import Component
from fedwild.core.registry import Registry
from fedwild.models import Network


class ClientCorrection:
    """A correction at one client, for one round."""

    def penalty(self, x: Tensor, y: Tensor) -> Tensor | None:
        """Return a term to add to the loss of a batch, such as MOON's contrast of representations."""
        return None

    def before_step(self) -> None:
        """Change the model's gradients in place before an optimiser step, as SCAFFOLD does."""

    def after_training(self, steps: int, lr: float) -> Groups:
        """Return groups to add to the reply after `steps` steps."""
        return {}


class Correction(Component):
    """No correction: plain local steps."""

    protects: ClassVar[tuple[str, ...]] = ("client", "sample")
    """The levels of privacy that hold with this correction. A subclass that overrides a function must repeat them.

    client: it adds no group to the reply. sample: it uses no samples, only gradients and weights.
    """

    def to_clients(self, server: Server) -> Groups:
        """Return groups to add to the request to clients."""
        return {}

    def expects(self, server: Server) -> Groups:
        """Return the groups that `after_training` adds, with the names, shapes and types of their tensors."""
        return {}

    def at_client(self, client: Client, model: Network, payload: Payload) -> ClientCorrection:
        """Return the correction at one client, before its first step."""
        return ClientCorrection()

    def sums(self) -> Sums:
        """Return what `merge` adds over clients, for secure sums."""
        if type(self).merge is not Correction.merge:
            raise NotSummable(f"correction {self.name!r} needs the replies of single clients")
        return Sums()

    def merge(self, server: Server, replies: Replies) -> None:
        """Fold what `after_training` sent into the server's state."""


CORRECTIONS: Registry[Correction] = Registry("correction", Correction)
CORRECTIONS.add("none")(Correction)
