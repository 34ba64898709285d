"""One secure sum with double masking, as in Bonawitz et al. 2017 (CCS), figure 4. Nothing here sends or stores.

    1. advertise  Client u draws two key pairs, c_u for its channels and s_u for its masks, and sends the public keys.
    2. share      It draws the seed b_u of its self mask, splits s_u and b_u into shares, one per member of the round,
                  and sends each member's shares sealed for that member. A hash of b_u commits it to the seed.
    3. mask       y_u = x_u + PRG(b_u) + sum_{v > u} PRG(s_uv) - sum_{v < u} PRG(s_uv)  modulo 2**64, over the
                  members v that shared.
    4. reveal     Told who sent y_u, it reveals a share of b_v for each v that did, and of s_v for each that did not.

The server adds the y_u, subtracts the self masks, and recomputes the pairwise masks of clients that dropped out. Both
secrets of one client would unmask its vector. A client therefore takes each step once per round and reveals one kind of
share per client. To get both secrets, the server would need t clients for each, which do not exist since 2 t > n.

In the paper, sealed shares travel with step 3. Here, they travel with step 4, in which they are needed: the request of
step 3, which holds the model, is then equal for all clients.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from fedwild.aggregation.secure.masks import (
    KEY_BYTES,
    SEAL_BYTES,
    add_mask,
    agree,
    commit,
    new_secret,
    public_key,
    seal,
    unseal,
)
from fedwild.aggregation.secure.shamir import SHARE_BYTES, split_secret
from fedwild.core.errors import BadReply

MIN_CLIENTS = 2
"""The sum of one client would be its vector."""
SEALED_BYTES = 2 * SHARE_BYTES + SEAL_BYTES
Stage = Literal["advertised", "shared", "masked", "revealed"]


@dataclass(frozen=True)
class PublicKeys:
    """What a client advertises."""

    channel: bytes
    mask: bytes

    def to_bytes(self) -> bytes:
        return self.channel + self.mask

    @classmethod
    def from_bytes(cls, data: bytes) -> PublicKeys:
        if len(data) != 2 * KEY_BYTES:
            raise BadReply(f"public keys have {len(data)} bytes, expected {2 * KEY_BYTES}")
        return cls(data[:KEY_BYTES], data[KEY_BYTES:])


@dataclass(frozen=True)
class SealedShares:
    """What a client sends in the second step: sealed shares by member, and the hash of its self mask's seed."""

    sealed: dict[str, bytes]
    commitment: bytes


@dataclass
class ClientRound:
    """A client's secrets of one round, and its four steps. Each step is possible once, in this order."""

    round: str
    """The id of the round, which the server draws."""
    client: str
    channel_key: bytes = field(default_factory=new_secret, repr=False)
    mask_key: bytes = field(default_factory=new_secret, repr=False)
    seed: bytes = field(default_factory=new_secret, repr=False)
    """b_u, the seed of the self mask."""
    stage: Stage = "advertised"
    members: dict[str, PublicKeys] = field(default_factory=dict)
    threshold: int = 0
    sharers: list[str] = field(default_factory=list)
    """The members whose masks are in the vector."""
    own: tuple[bytes, bytes] = field(default=(b"", b""), repr=False)
    """The client's shares of its own mask key and seed."""

    @property
    def keys(self) -> PublicKeys:
        """The public keys, for the first step."""
        return PublicKeys(public_key(self.channel_key), public_key(self.mask_key))

    def share(self, members: Mapping[str, PublicKeys], threshold: int) -> SealedShares:
        """Return shares of both secrets, sealed for the other members."""
        self._advance("advertised", "shared")
        names = sorted(members)
        if members.get(self.client) != self.keys:
            raise BadReply(f"the list of members does not have the keys of {self.client}")
        if len({keys.to_bytes() for keys in members.values()}) < len(members):
            raise BadReply("two members have the same keys")
        if not MIN_CLIENTS <= threshold <= len(names) < 2 * threshold:
            raise BadReply(f"a threshold of {threshold} for {len(names)} members would not protect a client")
        self.members, self.threshold = {name: members[name] for name in names}, threshold
        shares = (split_secret(secret, threshold, len(names)) for secret in (self.mask_key, self.seed))
        pairs = dict(zip(names, zip(*shares, strict=True), strict=True))
        self.own = pairs.pop(self.client)
        sealed = {
            name: seal(self._channel(self.client, name), b"".join(pair), purpose_of("shares", self.round))
            for name, pair in pairs.items()
        }
        return SealedShares(sealed, commit(self.seed, purpose_of("seed", self.round, self.client)))

    def mask(self, vector: np.ndarray, sharers: Sequence[str]) -> np.ndarray:
        """Return the masked vector uint64 (d,) of a vector uint64 (d,)."""
        self._advance("shared", "masked")
        if not self._is_group(sharers, self.members):
            raise BadReply("the list of clients that shared does not fit the members of the round")
        self.sharers = sorted(sharers)
        masked = vector.copy()
        add_mask(masked, self.seed, 1)
        for name in self.sharers:
            if name != self.client:
                key = pair_key(self.mask_key, self.members[name].mask, self.round, self.client, name)
                add_mask(masked, key, pair_sign(self.client, name))
        return masked

    def reveal(self, survivors: Sequence[str], sealed: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return a share for each client that shared: of its seed if it survived, else of its mask key.

        `survivors` are the clients whose masked vectors the server has; `sealed` are the shares for this client.
        """
        self._advance("masked", "revealed")
        if not self._is_group(survivors, self.sharers):
            raise BadReply("the list of survivors does not fit the clients that shared")
        shares: dict[str, bytes] = {}
        for name in self.sharers:
            if name == self.client:
                shares[name] = self.own[1]
            # A share that was changed counts as missing, so that one client cannot stop all others.
            elif (text := self._unseal(name, sealed.get(name, b""))) is not None:
                shares[name] = text[SHARE_BYTES:] if name in survivors else text[:SHARE_BYTES]
        return shares

    def _advance(self, before: Stage, after: Stage) -> None:
        """Reject a step that is repeated or out of order."""
        if self.stage != before:
            raise BadReply(f"this step of secure sums is not possible now: {self.client} has {self.stage} already")
        self.stage = after

    def _is_group(self, names: Sequence[str], among: Mapping[str, Any] | Sequence[str]) -> bool:
        """Whether these are distinct clients of a list, with this client among them, and enough of them."""
        distinct = set(names)
        return len(distinct) == len(names) >= self.threshold and self.client in distinct and distinct <= set(among)

    def _unseal(self, sender: str, sealed: bytes) -> bytes | None:
        """Return both shares that a client sealed for this one, or None if they were changed."""
        try:
            text = unseal(self._channel(sender, self.client), sealed, purpose_of("shares", self.round))
        except BadReply:
            return None
        return text if len(text) == 2 * SHARE_BYTES else None

    def _channel(self, sender: str, receiver: str) -> bytes:
        """Return the key that seals the shares from one client for another."""
        other = sender if receiver == self.client else receiver
        purpose = purpose_of("channel", self.round, sender, receiver)
        return agree(self.channel_key, self.members[other].channel, purpose)

    def to_json(self) -> bytes:
        """Return everything as text, for the file that keeps it between two steps."""
        plain = {key: value.hex() if isinstance(value, bytes) else value for key, value in vars(self).items()}
        plain["members"] = {name: keys.to_bytes().hex() for name, keys in self.members.items()}
        plain["own"] = [share.hex() for share in self.own]
        return json.dumps(plain).encode()

    @classmethod
    def from_json(cls, data: bytes) -> ClientRound:
        plain = json.loads(data)
        for key in ("channel_key", "mask_key", "seed"):
            plain[key] = bytes.fromhex(plain[key])
        members = plain["members"].items()
        plain["members"] = {name: PublicKeys.from_bytes(bytes.fromhex(keys)) for name, keys in members}
        plain["own"] = tuple(bytes.fromhex(share) for share in plain["own"])
        return cls(**plain)


def purpose_of(what: str, *names: str) -> bytes:
    """Return what a key or a text is for, without ambiguity between names."""
    return json.dumps([what, *names]).encode()


def pair_key(private: bytes, public: bytes, round_: str, one: str, other: str) -> bytes:
    """Return the key of the mask that two clients share, s_uv."""
    return agree(private, public, purpose_of("mask", round_, *sorted((one, other))))


def pair_sign(client: str, other: str) -> int:
    """Return the sign of a pair's mask in the vector of one of them."""
    return 1 if client < other else -1
