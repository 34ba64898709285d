"""The connected sites: nodes are greeted, say who they are, and are admitted under their name or rejected.

Flower identifies nodes by random ids. A site's name is bound to its registered key, if it has one, and to the identity
in its folder: the site may reconnect at any time, and no other site can use its name.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedwild.core.errors import BadReply, UserError
from fedwild.core.names import check_name, seen_names
from fedwild.data import check_names
from fedwild.runs.at_sites import SiteFacts
from fedwild.runs.config import Config
from fedwild.runs.events import Listener
from fedwild.sites.envelope import Envelope
from fedwild.sites.expiry import is_near
from fedwild.sites.redaction import redact
from fedwild.sites.requests import check_version, sent_config, version_fields
from fedwild.sites.site_keys import KeyFolder
from fedwild.sites.transport import Delivery, Node, Transport

REFRESH_SECONDS = 1.0
"""How often the list of nodes is refreshed while the coordinator waits."""
GOODBYE_SECONDS = 10.0
"""How long the coordinator waits at the end of a run until all sites know: their connection ends with it."""
MAX_CLASSES = 10_000


@dataclass(frozen=True)
class ConnectedSite:
    """A connected site, and the node by which it can be reached now."""

    node: int
    identity: str
    facts: SiteFacts


class Roster:
    """The connected sites of a run, by name."""

    def __init__(self, transport: Transport, config: Config, listener: Listener) -> None:
        self._transport = transport
        self._listener = listener
        self._certificates = config.engine.certificates
        self._hello = Envelope(
            {"kind": "hello", **version_fields(), "data": sent_config(config)["data"], "seed": config.seed}
        )
        self.sites: dict[str, ConnectedSite] = {}
        self.rejections: dict[int, str] = {}
        """Why nodes were rejected."""
        self._nodes: dict[int, Node] = {}
        self._greeted: dict[str, int] = {}
        self._identities: dict[str, str] = {}
        self.shape: tuple[int, ...] | None = None
        """The shape of a sample, once it is fixed."""
        self.known: tuple[str, ...] = ()
        """The known classes, once the run has started."""

    # --- who is connected -----------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Greet new nodes, drop those that left, and admit those that have answered."""
        nodes = {node.id: node for node in self._transport.nodes()}
        for node in nodes.keys() - self._nodes.keys():
            self._greeted[self.greet(node)] = node
        for gone in self._nodes.keys() - nodes.keys():
            self._drop(gone)
        self._nodes = nodes
        for delivery in self._transport.collect(self._greeted) if self._greeted else []:
            self._admit(self._greeted.pop(delivery.id), delivery)

    def is_connected(self, node: int) -> bool:
        return node in self._nodes

    def greet(self, node: int) -> str:
        """Ask a node who it is. Returns the id of the request."""
        return self._transport.send(node, self._hello)

    def _drop(self, node: int) -> None:
        self._greeted = {key: greeted for key, greeted in self._greeted.items() if greeted != node}
        self.rejections.pop(node, None)
        for name, site in list(self.sites.items()):
            if site.node == node:
                del self.sites[name]
                self._listener({"event": "site-left", "client": name})

    def wait_until(self, enough: Callable[[], bool], seconds: float) -> None:
        """Refresh until there are enough sites or time is up. A rejected site may reconnect in the meantime."""
        end = time.monotonic() + seconds
        self.refresh()
        while not enough() and time.monotonic() < end:
            time.sleep(REFRESH_SECONDS)
            self.refresh()

    # --- admitting and rejecting ----------------------------------------------------------------------------

    def _admit(self, node: int, delivery: Delivery) -> None:
        if node not in self._nodes:
            return
        try:
            if delivery.envelope is None:
                raise BadReply(str(delivery.error))
            identity, facts = read_hello(delivery.envelope)
            self._check(self._nodes[node], identity, facts)
        except Exception as problem:
            # Nothing that one site sends may stop the run of the others.
            self.reject(node, str(problem) or type(problem).__name__)
            return
        is_new = facts.name not in self.sites
        self.sites[facts.name] = ConnectedSite(node, identity, facts)
        self._identities[facts.name] = identity
        if is_new:
            about = {"samples": facts.samples, "torch": redact(str(delivery.envelope.head.get("torch")))[:40]}
            self._listener({"event": "site", "client": facts.name, **about})
            self._warn_of_expiry(facts.name)

    def _warn_of_expiry(self, name: str) -> None:
        """Warn the operator of a site whose key expires soon: only the coordinator knows the date."""
        key = None if self._certificates is None else KeyFolder(Path(self._certificates)).valid().get(name)
        if key is not None and key.expires is not None and is_near(key.expires):
            self.notify(name, f"warning: your key expires on {key.expires:%Y-%m-%d}: ask the coordinator for a new one")

    def _check(self, node: Node, identity: str, facts: SiteFacts) -> None:
        """Reject a site under a name that is not its own, or with data that does not fit."""
        name = facts.name
        if node.name and node.name != name:
            raise UserError(f"its key is registered for {node.name!r}, but its --name is {name!r}.")
        site = self.sites.get(name)
        if site is not None and site.identity != identity and self.is_connected(site.node):
            raise UserError(f"two sites are named {name!r}: start one of them with another --name.")
        if self._identities.get(name, identity) != identity:
            raise UserError(
                f"the name {name!r} belongs to another installation in this run: start the site with its original "
                "--folder, or with another --name."
            )
        if self.shape is not None and facts.shape != self.shape:
            raise UserError(wrong_shape(facts, self.shape))
        others = {other: site.facts for other, site in self.sites.items() if other != name}
        check_name(name, "a site", "client", seen_names(others, "another site"))
        declared = [label for other in others.values() for label in other.classes]
        check_names(name, facts.classes, [*declared, *self.known])

    def reject(self, node: int, reason: str) -> None:
        """Reject a node; the log and the site's operator get the reason."""
        self.rejections[node] = reason
        self._listener({"event": "site-refused", "node": node, "reason": redact(reason)})
        self._transport.send(node, Envelope({"kind": "rejected", **version_fields(), "reason": redact(reason)}))

    def rejection_lines(self) -> list[str]:
        """Return the distinct reasons of all rejections, as lines of an error message."""
        return [f"rejected site: {reason}" for reason in dict.fromkeys(self.rejections.values())]

    def fix_shape(self, shape: tuple[int, ...] | None = None) -> None:
        """Fix the shape of a sample, by default the most common one. Sites with another shape are rejected."""
        # A tie goes to the first site by name.
        self.shape = shape or Counter(facts.shape for facts in self.facts()).most_common(1)[0][0]
        for name, site in list(self.sites.items()):
            if site.facts.shape != self.shape:
                del self.sites[name]
                self.reject(site.node, wrong_shape(site.facts, self.shape))

    # --- messages, names and facts --------------------------------------------------------------------------

    def notify(self, name: str, text: str) -> str:
        """Show a text to a site's operator. Returns the id of the message."""
        notice = Envelope({"kind": "notice", **version_fields(), "text": text})
        return self._transport.send(self.sites[name].node, notice)

    def say_goodbye(self) -> None:
        """Notify all sites that the run has ended. Failures do not matter any more."""
        end = time.monotonic() + GOODBYE_SECONDS
        self._listener({"event": "goodbye"})
        with contextlib.suppress(UserError):
            self.refresh()
            pending = {self.notify(name, "the run has ended") for name in self.sites}
            while pending := pending - {delivery.id for delivery in self._transport.collect(pending)}:
                if time.monotonic() > end:
                    return
                time.sleep(0.2)

    def facts(self) -> list[SiteFacts]:
        """Return what the sites reported about their data, sorted by name."""
        return [site.facts for _, site in sorted(self.sites.items())]

    def bind(self, identities: dict[str, str]) -> None:
        """Reserve the names of a run for the installations that had them."""
        self._identities |= identities

    @property
    def identities(self) -> dict[str, str]:
        return dict(self._identities)


def wrong_shape(facts: SiteFacts, shape: tuple[int, ...]) -> str:
    return (
        f"{facts.name} has samples of shape {facts.shape}, but this run uses {shape}: set data.size and data.channels "
        "in the coordinator's settings to give all images one shape."
    )


def read_hello(envelope: Envelope) -> tuple[str, SiteFacts]:
    """Return the identity and the facts in a site's answer to a hello."""
    head = envelope.head
    if head.get("kind") == "rejected":
        raise BadReply(str(head.get("reason"))[:300])
    check_version(head, "the site", "the coordinator")
    try:
        rows = head["facts"]
        facts = SiteFacts(
            str(rows["name"]),
            tuple(str(name) for name in rows["classes"]),
            int(rows["samples"]),
            tuple(int(side) for side in rows["shape"]),
            str(rows["dtype"]),
        )
        identity = str(head["identity"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise BadReply("its answer to the hello is malformed") from error
    check_facts(facts)
    return identity, facts


def check_facts(facts: SiteFacts) -> None:
    """Reject impossible facts."""
    try:
        check_name(facts.name, "", "client")
    except UserError as problem:
        raise BadReply(str(problem)) from problem
    if not 1 <= len(facts.classes) <= MAX_CLASSES or len(set(facts.classes)) < len(facts.classes):
        raise BadReply(f"{facts.name} must have 1 to {MAX_CLASSES} distinct classes")
    valid_shape = 1 <= len(facts.shape) <= 4 and all(1 <= side <= 1_000_000 for side in facts.shape)
    if not valid_shape or facts.dtype not in ("uint8", "float32") or not 0 <= facts.samples <= 2**53:
        raise BadReply(f"{facts.name} reports an impossible shape, type or number of samples")
