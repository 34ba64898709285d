"""Work that takes too long is stopped, in any thread, and nothing is raised afterwards."""

from __future__ import annotations

import threading
import time

import pytest

from fedwild.sites.time_limit import TimeExceeded, time_limit


def work(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        # Code that catches every exception cannot catch this one by accident.
        try:
            time.sleep(0.001)
        except Exception:
            continue


def test_long_work_is_stopped() -> None:
    begin = time.monotonic()
    with pytest.raises(TimeExceeded), time_limit(0.05):
        work(10)
    assert time.monotonic() - begin < 5


def test_short_work_is_not_stopped_later() -> None:
    for _ in range(50):
        with time_limit(0.02):
            work(0)
    work(0.05)


def test_work_that_ends_as_the_time_does_is_either_stopped_or_not() -> None:
    for _ in range(30):
        try:
            with time_limit(0.003):
                work(0.003)
        except TimeExceeded:
            continue
    work(0.01)


def test_only_the_thread_that_works_is_stopped() -> None:
    stopped: list[bool] = []

    def limited() -> None:
        try:
            with time_limit(0.02):
                work(10)
        except TimeExceeded:
            stopped.append(True)

    thread = threading.Thread(target=limited)
    thread.start()
    work(0.1)
    thread.join()
    assert stopped == [True]
