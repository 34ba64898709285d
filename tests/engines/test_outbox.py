"""Request files: written once, removed when no longer needed, never mixed up."""

from __future__ import annotations

from pathlib import Path

import torch

from fedwild.core.payload import Payload
from fedwild.engines.outbox import Outbox


def read(path: str) -> float:
    return float(Payload.read(Path(path), sealed=False).tensors["w"][0])


def test_equal_payloads_are_written_once_and_removed_at_the_end(tmp_path: Path) -> None:
    outbox, weights = Outbox(tmp_path, 0), torch.ones(3)
    paths = {outbox.file(Payload({"w": weights})) for _ in range(5)}
    assert len(paths) == 1
    assert outbox.answered(paths.pop()) > 0
    assert len(list(tmp_path.iterdir())) == 1
    outbox.clear()
    assert list(tmp_path.iterdir()) == []


def test_personal_payloads_are_removed_once_answered(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path, 0)
    for number in range(10):
        path = outbox.file(Payload({"w": torch.full((3,), float(number))}))
        assert read(path) == number
        outbox.answered(path)
        assert len(list(tmp_path.iterdir())) <= 2


def test_a_changed_buffer_is_written_again(tmp_path: Path) -> None:
    outbox, buffer = Outbox(tmp_path, 0), torch.zeros(3)
    paths = []
    for number in range(3):
        buffer.fill_(number)
        paths.append(outbox.file(Payload({"w": buffer})))
    assert [read(path) for path in paths] == [0, 1, 2]


def test_equal_tensors_with_other_info_are_another_payload(tmp_path: Path) -> None:
    outbox, weights = Outbox(tmp_path, 0), torch.ones(3)
    first = outbox.file(Payload({"w": weights}, {"to": "a"}))
    assert outbox.file(Payload({"w": weights}, {"to": "b"})) != first


def test_no_two_rounds_share_a_file_name(tmp_path: Path) -> None:
    names = [Outbox(tmp_path, index).file(Payload({"w": torch.ones(1)})) for index in range(3)]
    assert len(set(names)) == 3
