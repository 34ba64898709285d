"""Short waits: sites in this process answer at once."""

from __future__ import annotations

import pytest

from fedwild.sites import engine, roster


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(engine, "REFRESH_SECONDS", 0.002)
    monkeypatch.setattr(roster, "REFRESH_SECONDS", 0.002)
