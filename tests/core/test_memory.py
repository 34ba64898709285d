"""Limits before allocation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from fedwild.core import memory
from fedwild.core.errors import UserError
from fedwild.core.memory import check_allocation, machine_memory, max_allocation


def test_the_memory_is_that_of_the_machine_or_of_its_container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = psutil.virtual_memory().total
    for text, expected in (("1000000\n", 1_000_000), ("max\n", machine), ("9" * 20, machine)):
        (tmp_path / "limit").write_text(text)
        monkeypatch.setattr(memory, "_CGROUPS", (str(tmp_path / "limit"), str(tmp_path / "missing")))
        assert machine_memory.__wrapped__() == expected


def test_more_than_the_machine_has_is_rejected_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "machine_memory", lambda: 1_000_000)
    check_allocation(max_allocation(), "this", "use less")
    with pytest.raises(UserError) as refused:
        check_allocation(max_allocation() + 1, "this", "use less")
    assert str(refused.value) == "this needs 800.0 kB of memory, and this machine allows 800.0 kB: use less."


ALLOCATE = """
import torch
from fedwild.core import memory
memory.machine_memory = lambda: 1_000_000_000
memory.limit_memory()
try:
    torch.ones(1_000_000_000)
except RuntimeError as error:
    print("rejected" if "memory" in str(error) else error)
print(torch.ones(1000).sum().item())
"""


def test_a_process_with_a_limit_gets_an_error_and_goes_on() -> None:
    done = subprocess.run([sys.executable, "-c", ALLOCATE], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["rejected", "1000.0"]
