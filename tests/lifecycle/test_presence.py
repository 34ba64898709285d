"""Which clients are present in a round, who joins, and who has to wait."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedwild.contract.claims import Claims
from fedwild.contract.engine import Presence
from fedwild.contract.schedule import plan_of
from fedwild.core.errors import RoundFailed
from fedwild.core.rng import Rng
from fedwild.lifecycle.ledger import Ledger
from fedwild.lifecycle.presence import Attendance, draw_share
from fedwild.runs.events import EventLog
from tests.tiny import even_shares, split_by, tiny_dataset, tiny_experiment


class Meeting:
    """The attendance of a run with clients client-00 and client-01."""

    def __init__(self, folder: Path, name: str = "fedavg", **settings: Any) -> None:
        data = tiny_dataset(2)
        experiment = tiny_experiment(name, data, split_by(data, 2, even_shares(data, 2, 2)), settings)
        self.steps = [step for step, _ in plan_of(experiment.method)]
        self.ledger, self.events = Ledger(), list[dict[str, Any]]()
        self._log = EventLog(folder / "events.jsonl", self.events.append)
        self._arguments = (experiment, self.steps, self.ledger, self._log, folder)
        self.attendance = Attendance(*self._arguments)

    def present(self, index: int, *sites: Presence) -> list[str]:
        connected = {site.name: site for site in sites} if sites else None
        return self.attendance.present(connected, self.steps[index])

    def resumed(self) -> Attendance:
        return Attendance(*self._arguments)


def site(name: str, newcomer: bool = False, **more: Any) -> Presence:
    return Presence(name, ("class-0",), 7, newcomer, identity=f"id of {name}", **more)


MEMBERS = (site("client-00"), site("client-01"))


def test_clients_are_present_from_the_round_in_which_they_arrive(tmp_path: Path) -> None:
    meeting = Meeting(tmp_path, federation={"arrivals": {"client-01": 1}})
    assert meeting.present(0) == ["client-00"]
    assert meeting.present(1) == ["client-00", "client-01"]
    assert meeting.attendance.loads == {"client-00": 9, "client-01": 9}


def test_only_connected_clients_are_present(tmp_path: Path) -> None:
    meeting = Meeting(tmp_path)
    assert meeting.present(0, *MEMBERS) == ["client-00", "client-01"]
    assert meeting.present(1, MEMBERS[1]) == ["client-01"]


def test_claims_are_held_to_the_split_or_to_what_a_site_first_declared(tmp_path: Path) -> None:
    meeting = Meeting(tmp_path, federation={"max_weight": 0.6})
    meeting.present(0)
    assert meeting.attendance.claims == Claims({"client-00": 12, "client-01": 12}, 0.6)
    meeting.present(0, *MEMBERS, site("late"))
    meeting.present(1, *MEMBERS, replace(site("late"), samples=2**53))
    assert meeting.resumed().claims.declared == {"client-00": 7, "client-01": 7, "late": 7}


def test_a_round_with_too_few_connected_clients_fails(tmp_path: Path) -> None:
    meeting = Meeting(tmp_path, federation={"min_clients": 2})
    with pytest.raises(RoundFailed, match=r"round 1 \(train\): 1 sites are connected, federation.min_clients = 2"):
        meeting.present(0, MEMBERS[0])


def test_a_site_that_connects_by_itself_joins_and_stays_after_a_resume(tmp_path: Path) -> None:
    meeting = Meeting(tmp_path)
    assert meeting.present(1, *MEMBERS, site("late")) == ["client-00", "client-01", "late"]
    (event,) = meeting.events
    assert (event["event"], event["client"], event["samples"], event["newcomer"]) == ("join", "late", 7, False)
    assert meeting.ledger.joined == {"late": {"since": 1, "newcomer": False, "identity": "id of late"}}
    assert meeting.resumed().names == ("client-00", "client-01", "late")
    assert meeting.present(1, *MEMBERS, site("late")) == ["client-00", "client-01", "late"]
    assert len(meeting.events) == 1


def test_a_newcomer_joins_if_a_stage_can_welcome_it_and_otherwise_waits(tmp_path: Path) -> None:
    meeting = Meeting(tmp_path, "gains", method={"stages": 1})
    notes: list[str] = []
    waiting = site("second", newcomer=True, notify=notes.append)
    meeting.present(0, *MEMBERS, site("first", newcomer=True))
    assert meeting.attendance.newcomers == meeting.resumed().newcomers == ("first",)
    for _ in range(2):
        assert "second" not in meeting.present(1, *MEMBERS, site("first", newcomer=True), waiting)
    assert [(event["event"], event["client"]) for event in meeting.events] == [("join", "first"), ("wait", "second")]
    assert len(notes) == 1


@pytest.mark.parametrize(("share", "count"), [(1.0, 10), (0.25, 2), (0.01, 1)])
def test_a_random_share_of_at_least_one_client_is_drawn_in_order(share: float, count: int) -> None:
    names = [f"client-{i}" for i in range(10)]
    drawn = draw_share(share, Rng(0))(names)
    assert len(drawn) == count
    assert drawn == sorted(drawn) == list(draw_share(share, Rng(0))(names))
