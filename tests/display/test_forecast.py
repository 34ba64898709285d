"""The time left of a run, worked out by hand for small cases."""

from __future__ import annotations

import pytest

from fedwild.display.forecast import RoundTime, Underway, clock, run_seconds_left, seconds_left


def test_before_the_first_reply_the_time_left_is_unknown() -> None:
    assert run_seconds_left([], None, ["train", "train"]) is None
    assert run_seconds_left([], Underway("train", 0.0, 0.0), ["train"]) is None


def test_the_first_round_is_estimated_from_its_replies() -> None:
    # A quarter of the clients took 3 s, so the round takes 12 s, of which 9 s are left. Two more rounds follow.
    assert run_seconds_left([], Underway("train", 0.25, 3.0), ["train", "train"]) == pytest.approx(9 + 24)


def test_later_rounds_are_expected_to_take_the_mean_of_earlier_ones() -> None:
    done = [RoundTime("train", 4.0, 1.0), RoundTime("train", 6.0, 3.0)]
    assert run_seconds_left(done, None, ["train"] * 3) == pytest.approx(3 * (5 + 2))


def test_replies_shorten_the_current_round_but_not_the_work_after_it() -> None:
    done = [RoundTime("train", 8.0, 2.0)]
    assert run_seconds_left(done, Underway("train", 0.75, 100.0), []) == pytest.approx(0.25 * 8 + 2)
    assert run_seconds_left(done, Underway("train", 1.0, 8.0), []) == pytest.approx(2)


def test_each_phase_is_estimated_from_its_own_rounds() -> None:
    done = [RoundTime("train", 1.0, 0.0), RoundTime("distil", 50.0, 0.0)]
    assert run_seconds_left(done, Underway("train", 0.5, 0.4), ["train", "distil"]) == pytest.approx(0.5 + 1 + 50)


def test_a_new_phase_is_estimated_from_its_own_replies_as_soon_as_there_are_some() -> None:
    done = [RoundTime("train", 2.0, 0.0)]
    assert run_seconds_left(done, Underway("distil", 0.0, 0.0), ["distil"]) == pytest.approx(2 + 2)
    assert run_seconds_left(done, Underway("distil", 0.5, 10.0), ["distil"]) == pytest.approx(10 + 20)


def test_a_later_phase_is_expected_to_take_the_mean_of_all_rounds() -> None:
    done = [RoundTime("a", 2.0, 0.0), RoundTime("b", 4.0, 0.0)]
    assert run_seconds_left(done, None, ["c", "c"]) == pytest.approx(2 * 3)


def test_no_time_is_left_after_the_last_round() -> None:
    assert run_seconds_left([RoundTime("train", 2.0, 1.0)], None, []) == 0


def test_work_at_constant_speed_is_extrapolated() -> None:
    assert seconds_left(6.0, 3, 5) == pytest.approx(4.0)
    assert seconds_left(6.0, 5, 5) == 0
    assert seconds_left(6.0, 0, 5) is None
    assert seconds_left(6.0, 3, None) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (7.4, "0:07"), (59.6, "1:00"), (754, "12:34"), (3599.7, "1:00:00"), (90061, "25:01:01")],
)
def test_seconds_are_formatted_as_hours_minutes_and_seconds(seconds: float, text: str) -> None:
    assert clock(seconds) == text
