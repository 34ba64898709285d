"""How long a run still takes: by hand for small cases."""

from __future__ import annotations

import pytest

from fedwild.display.forecast import RoundTime, Underway, clock, run_seconds_left, seconds_left


def test_before_the_first_answer_nothing_is_known() -> None:
    assert run_seconds_left([], None, ["train", "train"]) is None
    assert run_seconds_left([], Underway("train", 0.0, 0.0), ["train"]) is None


def test_in_the_first_round_the_answers_so_far_are_the_measure() -> None:
    # A quarter of the clients took 3 s: the round takes 12, of which 9 are left, and two more are to come.
    assert run_seconds_left([], Underway("train", 0.25, 3.0), ["train", "train"]) == pytest.approx(9 + 24)


def test_later_rounds_take_as_long_as_those_before_on_average() -> None:
    done = [RoundTime("train", 4.0, 1.0), RoundTime("train", 6.0, 3.0)]
    assert run_seconds_left(done, None, ["train"] * 3) == pytest.approx(3 * (5 + 2))


def test_clients_that_answered_shorten_the_round_but_not_what_comes_after_them() -> None:
    done = [RoundTime("train", 8.0, 2.0)]
    assert run_seconds_left(done, Underway("train", 0.75, 100.0), []) == pytest.approx(0.25 * 8 + 2)
    assert run_seconds_left(done, Underway("train", 1.0, 8.0), []) == pytest.approx(2)


def test_each_phase_is_judged_by_its_own_rounds() -> None:
    done = [RoundTime("train", 1.0, 0.0), RoundTime("distil", 50.0, 0.0)]
    assert run_seconds_left(done, Underway("train", 0.5, 0.4), ["train", "distil"]) == pytest.approx(0.5 + 1 + 50)


def test_a_phase_that_is_new_is_judged_by_its_own_answers_as_soon_as_there_are_some() -> None:
    done = [RoundTime("train", 2.0, 0.0)]
    assert run_seconds_left(done, Underway("distil", 0.0, 0.0), ["distil"]) == pytest.approx(2 + 2)
    assert run_seconds_left(done, Underway("distil", 0.5, 10.0), ["distil"]) == pytest.approx(10 + 20)


def test_a_phase_that_is_still_to_come_is_taken_to_be_like_all_others() -> None:
    done = [RoundTime("a", 2.0, 0.0), RoundTime("b", 4.0, 0.0)]
    assert run_seconds_left(done, None, ["c", "c"]) == pytest.approx(2 * 3)


def test_nothing_is_left_when_nothing_is_ahead() -> None:
    assert run_seconds_left([RoundTime("train", 2.0, 1.0)], None, []) == 0


def test_even_work_goes_on_at_its_pace() -> None:
    assert seconds_left(6.0, 3, 5) == pytest.approx(4.0)
    assert seconds_left(6.0, 5, 5) == 0
    assert seconds_left(6.0, 0, 5) is None
    assert seconds_left(6.0, 3, None) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (7.4, "0:07"), (59.6, "1:00"), (754, "12:34"), (3599.7, "1:00:00"), (90061, "25:01:01")],
)
def test_times_are_shown_as_on_a_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text
