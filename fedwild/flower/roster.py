"""Who is there: nodes are greeted, say who they are, and get a seat under their name, or are told why not.

Flower shows nodes by ids that mean nothing. A site's name is bound to the key it is registered with, if it has one, and
to the identity in its folder: it may come back as often as it likes, and nobody else can take its place.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import fedwild
from fedwild.config import Config
from fedwild.data import check_names
from fedwild.discretion import told_outside
from fedwild.errors import BadReply, UserError
from fedwild.flower.courier import Courier, Delivery, Node
from fedwild.flower.desk import program, sent_config
from fedwild.flower.letters import Letter
from fedwild.protocol import EVERYONE
from fedwild.sites import SiteFacts

LOOK_SECONDS = 1.0
"""How often nodes are looked at while something is waited for."""
GOODBYE_SECONDS = 10.0
"""How long sites are waited for at the end of a run: their connection ends with the coordinator."""
MOST_CLASSES = 10_000


@dataclass(frozen=True)
class Seat:
    """A site that takes part, and the node that it can be reached by now."""

    node: int
    identity: str
    facts: SiteFacts


class Roster:
    """The sites of a run, as far as they are connected."""

    def __init__(self, courier: Courier, config: Config, listener: Callable[[dict[str, Any]], None]) -> None:
        self._courier = courier
        self._listener = listener
        self._greeting = Letter(
            {"kind": "hello", **program(), "data": sent_config(config)["data"], "seed": config.seed}
        )
        self.seats: dict[str, Seat] = {}
        self._nodes: dict[int, Node] = {}
        self._greeted: dict[str, int] = {}
        self.refusals: dict[int, str] = {}
        self._identities: dict[str, str] = {}
        self.shape: tuple[int, ...] | None = None
        """What samples must look like, once that is settled."""
        self.known: tuple[str, ...] = ()
        """The classes that the run knows, once it has begun."""

    # --- looking ------------------------------------------------------------------------------------------

    def look(self) -> None:
        """See who came and who left, and take in those who have answered their greeting."""
        nodes = {node.id: node for node in self._courier.nodes()}
        for node in nodes.keys() - self._nodes.keys():
            self._greeted[self._courier.send(node, self._greeting)] = node
        for gone in self._nodes.keys() - nodes.keys():
            self._leave(gone)
        self._nodes = nodes
        for delivery in self._courier.collect(self._greeted) if self._greeted else []:
            self._take_in(self._greeted.pop(delivery.id), delivery)

    def connected(self, node: int) -> bool:
        return node in self._nodes

    def greet_again(self, node: int) -> str:
        """Ask a node once more who it is; returns the letter's id."""
        return self._courier.send(node, self._greeting)

    def _leave(self, node: int) -> None:
        self._greeted = {key: greeted for key, greeted in self._greeted.items() if greeted != node}
        self.refusals.pop(node, None)
        for name, seat in list(self.seats.items()):
            if seat.node == node:
                del self.seats[name]
                self._listener({"event": "site-left", "client": name})

    def gather(self, enough: Callable[[], bool], seconds: float) -> None:
        """Look until there are enough sites, or the time is over: one that was refused may come back mended."""
        end = time.monotonic() + seconds
        self.look()
        while not enough() and time.monotonic() < end:
            time.sleep(LOOK_SECONDS)
            self.look()

    # --- taking in ----------------------------------------------------------------------------------------

    def _take_in(self, node: int, delivery: Delivery) -> None:
        if node not in self._nodes:
            return
        try:
            if delivery.letter is None:
                raise BadReply(str(delivery.error))
            identity, facts = introduced(delivery.letter)
            self._check(self._nodes[node], identity, facts)
        except Exception as problem:
            # Whatever a site may say of itself, the others' run goes on.
            self.refuse(node, str(problem) or type(problem).__name__)
            return
        known = self.seats.get(facts.name)
        self.seats[facts.name] = Seat(node, identity, facts)
        self._identities[facts.name] = identity
        if known is None:
            about = {"samples": facts.samples, "torch": told_outside(str(delivery.letter.head.get("torch")))[:40]}
            self._listener({"event": "site", "client": facts.name, **about})

    def _check(self, node: Node, identity: str, facts: SiteFacts) -> None:
        """Refuse a site that is not who it says, or that does not fit."""
        name = facts.name
        if node.name and node.name != name:
            raise UserError(f"its key is registered for {node.name!r}, and it calls itself {name!r}.")
        seat = self.seats.get(name)
        if seat is not None and seat.identity != identity and self.connected(seat.node):
            raise UserError(f"two sites call themselves {name!r}: give one of them another --name.")
        if self._identities.get(name, identity) != identity:
            raise UserError(
                f"another installation has been {name!r} in this run: start the site with its old --folder, or under "
                "another --name."
            )
        if self.shape is not None and facts.shape != self.shape:
            raise UserError(misfit(facts, self.shape))
        check_names(name, facts.classes, self.known)

    def refuse(self, node: int, reason: str) -> None:
        """Tell a node, and the log, why it has no place here."""
        self.refusals[node] = reason
        self._listener({"event": "site-refused", "node": node, "reason": told_outside(reason)})
        self._courier.send(node, Letter({"kind": "refused", **program(), "reason": told_outside(reason)}))

    def say(self, name: str, text: str) -> str:
        """Let a site's operator know something; returns the letter's id."""
        return self._courier.send(self.seats[name].node, Letter({"kind": "word", **program(), "text": text}))

    def say_goodbye(self) -> None:
        """Let all sites know that the run is over. No trouble with that matters any more."""
        end = time.monotonic() + GOODBYE_SECONDS
        self._listener({"event": "goodbye"})
        with contextlib.suppress(UserError):
            self.look()
            letters = {self.say(name, "the run has ended") for name in self.seats}
            while letters := letters - {delivery.id for delivery in self._courier.collect(letters)}:
                if time.monotonic() > end:
                    return
                time.sleep(0.2)

    def settle(self, shape: tuple[int, ...] | None = None) -> None:
        """From now on samples must have this shape, or that of most sites; those with another lose their seats."""
        self.shape = shape or usual_shape([seat.facts for seat in self.seats.values()])
        for name, seat in list(self.seats.items()):
            if seat.facts.shape != self.shape:
                del self.seats[name]
                self.refuse(seat.node, misfit(seat.facts, self.shape))

    def facts(self, names: Collection[str] | None = None) -> list[SiteFacts]:
        """What the sites said of themselves, by name."""
        return [seat.facts for name, seat in sorted(self.seats.items()) if names is None or name in names]

    def bind(self, identities: dict[str, str]) -> None:
        """Keep the names of a run that goes on for those who had them."""
        self._identities |= identities

    @property
    def identities(self) -> dict[str, str]:
        return dict(self._identities)


def usual_shape(sites: Sequence[SiteFacts]) -> tuple[int, ...]:
    """The shape that most sites have; of several, that of the first site by name."""
    counts = Counter(site.shape for site in sorted(sites, key=lambda site: site.name))
    return counts.most_common(1)[0][0]


def misfit(facts: SiteFacts, shape: tuple[int, ...]) -> str:
    return (
        f"{facts.name} has samples of shape {facts.shape}, and this run takes {shape}: data.size and data.channels in "
        "the coordinator's settings bring images to one shape."
    )


def introduced(letter: Letter) -> tuple[str, SiteFacts]:
    """Identity and facts of a site, from its answer to a greeting."""
    head = letter.head
    if head.get("kind") == "refused":
        raise BadReply(str(head.get("reason"))[:300])
    theirs = {key: head.get(key) for key in program()}
    if theirs != program():
        raise BadReply(
            f"it has fedwild {str(theirs['version'])[:40]} and the coordinator {fedwild.__version__}: install the same "
            "version on both."
        )
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
        raise BadReply("its answer to the greeting cannot be read") from error
    check_facts(facts)
    return identity, facts


def check_facts(facts: SiteFacts) -> None:
    """Refuse what no site can say of itself."""
    bad_name = not facts.name.isprintable() or "/" in facts.name or facts.name in {"", ".", "..", EVERYONE}
    if bad_name or len(facts.name) > 100:
        raise BadReply(f"name {facts.name[:40]!r} is not allowed: one printable line without '/'")
    if not 1 <= len(facts.classes) <= MOST_CLASSES or len(set(facts.classes)) < len(facts.classes):
        raise BadReply(f"{facts.name} must have from 1 to {MOST_CLASSES} classes, each once")
    sides = 1 <= len(facts.shape) <= 4 and all(1 <= side <= 1_000_000 for side in facts.shape)
    if not sides or facts.dtype not in ("uint8", "float32") or not 0 <= facts.samples <= 2**53:
        raise BadReply(f"{facts.name} says of its samples what cannot be")
