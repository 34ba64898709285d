"""The worker pool, with workers that are lists of prepared answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from fedwild.contract import Step
from fedwild.contract.engine import Answer, Job
from fedwild.engines.pool import Worker, WorkerDied, WorkerPool

STEP = Step("train", 0, 0)


@dataclass(eq=False)
class FakeWorker(Worker):
    """Remembers the jobs that it got."""

    got: list[str] = field(default_factory=list)


class FakePool(WorkerPool[FakeWorker]):
    """Answers jobs in order; some kill their worker, some have no file."""

    def __init__(self, workers: int, seconds: float = 1.0, kills: Sequence[str] = (), lost: Sequence[str] = ()) -> None:
        super().__init__()
        self.workers = [FakeWorker() for _ in range(workers)]
        self.seconds, self.kills, self.lost = seconds, deque(kills), lost
        self.shared = False
        """Whether a dead worker's jobs go to another one instead of a new one."""

    def submit(self, worker: FakeWorker, job: Job) -> None:
        if job.payload in self.lost:
            raise OSError(f"{job.payload} is missing")
        worker.got.append(job.payload)

    def wait(self, workers: Sequence[FakeWorker]) -> Sequence[FakeWorker]:
        return workers[:1] if self.shared else list(workers)

    def receive(self, worker: FakeWorker, job: Job) -> Answer:
        if job.payload in self.kills:
            self.kills.remove(job.payload)
            raise WorkerDied("exit code 9")
        return Answer(job, seconds=self.seconds)

    def replace(self, worker: FakeWorker) -> FakeWorker:
        place = self.workers.index(worker)
        if self.shared:
            del self.workers[place]
            return self.workers[0]
        self.workers[place] = FakeWorker()
        return self.workers[place]


@pytest.fixture
def pools() -> Iterator[list[FakePool]]:
    """Pools to close after a test."""
    opened: list[FakePool] = []
    yield opened
    for pool in opened:
        pool.close()


def jobs(names: str) -> list[Job]:
    return [Job("local", STEP, name, name) for name in names]


def answers(pool: FakePool, names: str) -> dict[str, str | None]:
    return {answer.job.payload: answer.error for answer in pool.run(jobs(names))}


def test_every_job_is_answered_once(pools: list[FakePool]) -> None:
    pools.append(FakePool(2))
    started: list[str] = []
    found = [answer.job.payload for answer in pools[0].run(jobs("abcdefg"), lambda job: started.append(job.payload))]
    assert sorted(found) == sorted(started) == list("abcdefg")
    assert sorted(name for worker in pools[0].workers for name in worker.got) == list("abcdefg")


@pytest.mark.parametrize(("seconds", "capacity"), [(0.001, 2), (1.0, 1)])
def test_a_worker_with_short_jobs_gets_the_next_one_in_advance(
    seconds: float, capacity: int, pools: list[FakePool]
) -> None:
    pools.append(FakePool(1, seconds))
    run = pools[0].run(jobs("abcd"))
    next(run)
    assert pools[0].workers[0].got == list("abcd")[: 1 + capacity]
    assert len(list(run)) == 3


def test_the_jobs_of_a_dead_worker_are_done_by_its_replacement(pools: list[FakePool]) -> None:
    pools.append(FakePool(1, 0.001, kills="b"))
    assert answers(pools[0], "abcd") == dict.fromkeys("abcd")
    # "c" was waiting behind "b".
    assert pools[0].workers[0].got == list("bcd")


def test_a_job_that_kills_two_workers_has_failed(pools: list[FakePool]) -> None:
    pools.append(FakePool(2, kills="bb"))
    found = answers(pools[0], "abc")
    assert found.pop("b") == "the worker process died (exit code 9)"
    assert found == {"a": None, "c": None}
    # The count starts again in a later round.
    pools[0].kills.append("b")
    assert answers(pools[0], "b") == {"b": None}


def test_another_worker_may_take_over(pools: list[FakePool]) -> None:
    pools.append(FakePool(2, kills="a"))
    pools[0].shared = True
    assert answers(pools[0], "abcde") == dict.fromkeys("abcde")
    assert len(pools[0].workers) == 1


def test_a_missing_file_is_an_answer_and_the_worker_gets_the_next_job(pools: list[FakePool]) -> None:
    pools.append(FakePool(1, lost="b"))
    found = {answer.job.payload: (answer.error, answer.disk_failed) for answer in pools[0].run(jobs("abc"))}
    assert found == {"a": (None, False), "b": ("b is missing", True), "c": (None, False)}
