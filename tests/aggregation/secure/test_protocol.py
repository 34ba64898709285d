"""A secure sum from its first step to its last: drop-outs, thresholds, and what a client refuses."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from scipy import stats

from fedwild.aggregation.secure.protocol import ClientRound, PublicKeys, SealedShares
from fedwild.aggregation.secure.shamir import SHARE_BYTES
from fedwild.aggregation.secure.unmasking import ServerRound, TooFewShares, check_shares
from fedwild.core.errors import BadReply

NAMES = ["a", "b", "c", "d"]


@dataclass
class Simulation:
    """All parties of one round."""

    names: Sequence[str] = field(default_factory=lambda: list(NAMES))
    threshold: int = 3
    size: int = 7

    def __post_init__(self) -> None:
        rng = np.random.default_rng(len(self.names))
        self.vectors = {name: rng.integers(0, 2**64, self.size, dtype=np.uint64) for name in self.names}
        self.clients = {name: ClientRound("round", name) for name in self.names}
        self.server = ServerRound("round", self.threshold, {n: c.keys for n, c in self.clients.items()})
        self.sent: dict[str, SealedShares] = {}
        self.masked: dict[str, np.ndarray] = {}

    def share(self, names: Collection[str]) -> None:
        for name in names:
            self.sent[name] = self.clients[name].share(self.server.members, self.threshold)
            self.server.commitments[name] = self.sent[name].commitment

    def mask(self, names: Collection[str]) -> None:
        for name in names:
            self.masked[name] = self.clients[name].mask(self.vectors[name], self.server.sharers)
        self.server.survivors = sorted(names)

    def sealed_for(self, name: str) -> dict[str, bytes]:
        return {sender: sent.sealed[name] for sender, sent in self.sent.items() if sender != name}

    def reveal(self, names: Collection[str]) -> dict[str, dict[str, bytes]]:
        return {name: self.clients[name].reveal(self.server.survivors, self.sealed_for(name)) for name in names}

    def masked_total(self) -> np.ndarray:
        return wrapped_sum(self.masked[name] for name in self.server.survivors)

    def true_total(self) -> np.ndarray:
        return wrapped_sum(self.vectors[name] for name in self.server.survivors)


def wrapped_sum(vectors: Iterable[np.ndarray]) -> np.ndarray:
    total: np.ndarray = np.array(list(vectors)).sum(axis=0)
    return total


def subsets(names: Sequence[str], least: int) -> list[tuple[str, ...]]:
    return [group for size in range(least, len(names) + 1) for group in itertools.combinations(names, size)]


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_every_pattern_of_drop_outs_gives_the_sum_of_the_survivors(count: int) -> None:
    names = "abcde"[:count]
    threshold = count // 2 + 1
    for sharers in subsets(names, threshold):
        for survivors in subsets(sharers, threshold):
            for answering in subsets(survivors, threshold):
                round_ = Simulation(list(names), threshold)
                round_.share(sharers)
                round_.mask(survivors)
                total = round_.masked_total()
                round_.server.unmask(total, round_.reveal(answering))
                assert np.array_equal(total, round_.true_total()), (sharers, survivors, answering)


def test_a_single_masked_vector_is_statistically_uniform() -> None:
    round_ = Simulation(size=100_000)
    round_.vectors["b"] = np.zeros(100_000, dtype=np.uint64)
    round_.share(NAMES)
    round_.mask(NAMES)
    low = round_.masked["b"].view(np.uint8).reshape(-1, 8)
    # Keys are random: one in ten million runs of a good cipher would fail here.
    assert min(stats.chisquare(np.bincount(byte, minlength=256)).pvalue for byte in low.T) > 1e-8


def test_fewer_shares_than_the_threshold_do_not_unmask() -> None:
    round_ = Simulation()
    round_.share(NAMES)
    round_.mask(NAMES)
    with pytest.raises(TooFewShares, match="the masks of a cannot be removed: 2 clients sent shares, of which 3"):
        round_.server.unmask(round_.masked_total(), round_.reveal(["a", "b"]))


def test_a_client_reveals_one_kind_of_share_and_only_once() -> None:
    round_ = Simulation()
    round_.share(NAMES)
    round_.mask(NAMES)
    first = round_.clients["a"].reveal(["a", "b", "c"], round_.sealed_for("a"))
    second_list = ["a", "b", "d"]
    with pytest.raises(BadReply, match="a has revealed already"):
        round_.clients["a"].reveal(second_list, round_.sealed_for("a"))
    restored = ClientRound.from_json(round_.clients["a"].to_json())
    with pytest.raises(BadReply, match="a has revealed already"):
        restored.reveal(second_list, round_.sealed_for("a"))
    assert set(first) == set(NAMES)


def test_a_client_masks_only_once() -> None:
    round_ = Simulation()
    round_.share(NAMES)
    round_.mask(["a"])
    with pytest.raises(BadReply, match="a has masked already"):
        round_.clients["a"].mask(round_.vectors["a"] + np.uint64(1), NAMES)


def test_steps_out_of_order_are_rejected() -> None:
    client = ClientRound("round", "a")
    with pytest.raises(BadReply, match="a has advertised already"):
        client.mask(np.zeros(2, dtype=np.uint64), NAMES)
    with pytest.raises(BadReply, match="a has advertised already"):
        client.reveal(NAMES, {})


@pytest.mark.parametrize("threshold", [1, 2, 5])
def test_thresholds_that_do_not_protect_are_rejected(threshold: int) -> None:
    round_ = Simulation()
    with pytest.raises(BadReply, match="would not protect"):
        round_.clients["a"].share(round_.server.members, threshold)


def test_changed_lists_of_clients_are_rejected() -> None:
    round_ = Simulation()
    members = round_.server.members
    others = {name: keys for name, keys in members.items() if name != "a"}
    for wrong in (others, {**members, "a": members["b"]}, {**members, "a": ClientRound("round", "a").keys}):
        with pytest.raises(BadReply, match="does not have the keys of a"):
            ClientRound.from_json(round_.clients["a"].to_json()).share(wrong, 3)
    with pytest.raises(BadReply, match="two members have the same keys"):
        ClientRound.from_json(round_.clients["a"].to_json()).share({**members, "c": members["b"]}, 3)
    round_.share(NAMES)
    for sharers in (["a", "b"], ["b", "c", "d"], ["a", "b", "x"], ["a", "b", "b"]):
        with pytest.raises(BadReply, match="clients that shared does not fit"):
            ClientRound.from_json(round_.clients["a"].to_json()).mask(round_.vectors["a"], sharers)
    round_.clients["a"].mask(round_.vectors["a"], ["a", "b", "c"])
    for survivors in (["a", "b"], ["b", "c"], ["a", "b", "d"], ["a", "b", "b"]):
        with pytest.raises(BadReply, match="survivors does not fit"):
            ClientRound.from_json(round_.clients["a"].to_json()).reveal(survivors, {})


def test_a_changed_share_on_its_way_counts_as_missing() -> None:
    round_ = Simulation()
    round_.share(NAMES)
    round_.mask(NAMES)
    sealed = round_.sealed_for("a")
    sealed["b"] = sealed["c"]
    sealed["d"] = sealed["d"][:-1] + bytes([sealed["d"][-1] ^ 1])
    assert set(round_.clients["a"].reveal(NAMES, sealed)) == {"a", "c"}


def test_shares_of_another_round_do_not_open() -> None:
    first, second = Simulation(), Simulation()
    for client in second.clients.values():
        client.channel_key, client.round = first.clients[client.client].channel_key, "other"
    second.server.members = {name: client.keys for name, client in second.clients.items()}
    for round_ in (first, second):
        round_.share(NAMES)
        round_.mask(NAMES)
    assert set(second.clients["a"].reveal(NAMES, first.sealed_for("a"))) == {"a"}


@pytest.mark.parametrize("survivors", [NAMES, ["a", "b", "c"]])
def test_a_wrong_share_is_found_and_its_sender_excluded(survivors: list[str]) -> None:
    names = [*NAMES, "e"]
    round_ = Simulation(names, 3)
    round_.share(names)
    round_.mask([*survivors, "e"])
    revealed = round_.reveal([*survivors, "e"])
    revealed["b"] = dict.fromkeys(revealed["b"], bytes(SHARE_BYTES))
    total = round_.masked_total()
    round_.server.unmask(total, revealed)
    assert np.array_equal(total, round_.true_total())
    assert round_.server.liars == {"b"}


def test_wrong_shares_never_give_a_wrong_sum() -> None:
    round_ = Simulation()
    round_.share(NAMES)
    round_.mask(NAMES)
    revealed = round_.reveal(NAMES)
    for liar in ("a", "b"):
        revealed[liar] = dict.fromkeys(revealed[liar], bytes(SHARE_BYTES))
    with pytest.raises(TooFewShares):
        round_.server.unmask(round_.masked_total(), revealed)


def test_a_file_keeps_everything_between_steps() -> None:
    round_ = Simulation()

    def restart() -> None:
        round_.clients = {name: ClientRound.from_json(c.to_json()) for name, c in round_.clients.items()}

    restart()
    round_.share(NAMES)
    restart()
    round_.mask(["a", "b", "d"])
    restart()
    total = round_.masked_total()
    round_.server.unmask(total, round_.reveal(["a", "b", "d"]))
    assert np.array_equal(total, round_.true_total())


def test_secrets_are_not_shown() -> None:
    client = ClientRound("round", "a")
    assert client.mask_key.hex() not in repr(client) and repr(client.seed) not in repr(client)


def test_malformed_answers_are_rejected() -> None:
    with pytest.raises(BadReply, match="63 bytes, expected 64"):
        PublicKeys.from_bytes(bytes(63))
    for wrong in ({"x": bytes(SHARE_BYTES)}, {"a": b""}):
        with pytest.raises(BadReply, match="not those that were asked for"):
            check_shares(wrong, NAMES)
