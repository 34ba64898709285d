"""Guarded merges: what a merge that fails costs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fedwild.contract import Payload, Phase, Replies, Server, Step, Task
from fedwild.core.classes import ClassRegistry
from fedwild.core.rng import Rng
from fedwild.lifecycle.merging import merge_replies


class Sum(Phase):
    """Adds up the replies' values in place; negative values cannot be merged."""

    def merge(self, server: Server, replies: Replies) -> None:
        for reply in replies:
            value = reply.payload.tensors["w/x"]
            server.state.tensors["w/x"] += value
            server.state.info["last"] = float(value)
            server.classes.add(reply.client, "known", 0)
            server.note(reply.client)
            if value < 0:
                raise ValueError("negative")


def server_with(value: float) -> Server:
    server = Server(Task((4,), "mlp"), ClassRegistry(), Step("train", 0, 0), Rng(0))
    server.state.put("w", {"x": torch.tensor(value)})
    return server


def readers(**values: float) -> dict[str, Callable[[], Payload]]:
    def reader(value: float) -> Callable[[], Payload]:
        return lambda: Payload.of({"samples": 1}, w={"x": torch.tensor(value)})

    return {name: reader(value) for name, value in values.items()}


def test_a_valid_merge_gives_a_new_server_and_keeps_the_old_one() -> None:
    server = server_with(1.0)
    merged = merge_replies(server, Sum("train", 2), readers(a=2.0, b=3.0), ["b", "a"])
    assert (float(merged.server.state.tensors["w/x"]), merged.rejected, merged.problem) == (6.0, (), None)
    assert float(server.state.tensors["w/x"]) == 1.0
    assert (server.state.info, server.classes.names, server.notes) == ({}, (), [])


@pytest.mark.parametrize(("bad", "problem"), [(-1.0, "ValueError: negative"), (3e38, "'w/x' would have NaN or")])
def test_a_reply_that_makes_the_merge_fail_is_rejected(bad: float, problem: str) -> None:
    server = server_with(1.0 if bad < 0 else 3e38)
    merged = merge_replies(server, Sum("train", 2), readers(a=2.0, bad=bad, c=3.0), ["c", "bad", "a"])
    assert merged.rejected == ("bad",)
    assert merged.problem is not None
    assert merged.problem.startswith(problem)
    assert merged.server.classes.names == ("a", "c")


def test_several_replies_that_make_the_merge_fail_are_rejected_by_size() -> None:
    names = ["bad-1", "bad-2", "bad-3", "a", "b", "c"]
    values = {**readers(a=2.0, b=1.0, c=1.0), **{name: readers(x=-1.0)["x"] for name in names[:3]}}
    merged = merge_replies(server_with(1.0), Sum("train", 2), values, names)
    assert set(merged.rejected) >= set(names[:3])
    assert merged.server.classes.names == ("b", "c")


def test_without_a_valid_merge_the_server_does_not_change() -> None:
    server = server_with(1.0)
    merged = merge_replies(server, Sum("train", 2), readers(a=-1.0, b=-2.0), ["b", "a"])
    assert merged.failed
    assert merged.server is server
    assert float(server.state.tensors["w/x"]) == 1.0
    assert server.notes == []


def test_a_value_that_is_not_finite_in_the_info_is_found() -> None:
    merged = merge_replies(server_with(0.0), Sum("train", 2), readers(a=1.0, b=float("inf")), ["b", "a"])
    assert merged.rejected == ("b",)


def test_a_failing_disk_is_raised() -> None:
    def broken() -> Payload:
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        merge_replies(server_with(0.0), Sum("train", 2), {"a": broken}, ["a"])
