"""The coordinator: rounds, checks, evaluation, checkpoints. The same for every method and every engine."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fedwild.classes import ClassRegistry
from fedwild.data import samples_of
from fedwild.engines.base import Answer, Engine, Job
from fedwild.engines.local import LocalEngine
from fedwild.engines.site import Site
from fedwild.errors import BadReply, RoundFailed, UserError
from fedwild.evaluation import Evaluation, Examiner
from fedwild.experiment import Experiment
from fedwild.payload import Payload, check_finite
from fedwild.protocol import Replies, Server, Step
from fedwild.rng import Rng
from fedwild.runs.events import EventLog
from fedwild.runs.folder import RunFolder
from fedwild.workers import worker_count

Listener = Callable[[dict[str, Any]], None]

# Replies up to this much stay in memory between their check and the merge; the rest is read again from the spool.
KEPT_REPLIES_BYTES = 64_000_000


@dataclass
class Ledger:
    """Where the run stands, beside the server: kept in every checkpoint."""

    next_index: int = 0
    states: dict[str, int] = field(default_factory=dict)
    """The version of each client's durable state."""
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    evaluation: Evaluation | None = None


class Federation:
    """Runs an experiment in its run folder, from wherever the last checkpoint left it."""

    def __init__(self, experiment: Experiment, folder: RunFolder, listener: Listener = lambda event: None) -> None:
        self.experiment = experiment
        self.method = experiment.method
        self.folder = folder
        self._listener = listener
        clients = experiment.split.clients
        self._names = tuple(sorted(client.name for client in clients))
        self._loads = {client.name: len(client.train) + len(client.unlabelled) for client in clients}
        self.rng = Rng(experiment.config.seed)
        rounds = [(phase.name, number) for phase in self.method.phases() for number in range(phase.rounds)]
        self.steps = [Step(phase, number, index) for index, (phase, number) in enumerate(rounds)]

    def run(self) -> dict[str, Any]:
        """Go on to the end; returns the final result. A failing disk becomes one sentence."""
        self.folder.lock()
        try:
            return self._run()
        except OSError as error:
            what = f"{error.strerror} ({error.filename})" if error.filename else error.strerror or str(error)
            raise UserError(
                f"run folder {str(self.folder.path)!r}: {what}. Put that right, then "
                f"`fedwild resume {self.folder.path}` goes on from the last finished round."
            ) from error
        finally:
            self.folder.unlock()

    def _run(self) -> dict[str, Any]:
        with contextlib.ExitStack() as cleanup:
            self._spool = self.folder.new_spool()
            cleanup.callback(self.folder.drop_spool, self._spool)
            workers = worker_count(self.experiment.config.engine.workers)
            self._engine: Engine = LocalEngine(self._site(self._spool), workers)
            cleanup.callback(self._engine.close)
            self._log = EventLog(self.folder.events)
            cleanup.callback(self._log.close)
            self._clock = time.perf_counter()
            server, ledger = self._restore()
            for step in self.steps[ledger.next_index :]:
                self._step(server, ledger, step)
            return self._finish(server, ledger)

    def _site(self, spool: Path) -> Site:
        e = self.experiment
        return Site(e.dataset, e.split, e.config.data, e.method, e.task, e.config.seed, self.folder.clients, spool)

    # --- where a run begins, goes on and ends -------------------------------------------------------------

    def _restore(self) -> tuple[Server, Ledger]:
        """The server and ledger of the last checkpoint, or new ones."""
        payload = self.folder.last_checkpoint()
        start = Step("start", 0, 0)
        if payload is None:
            ledger = Ledger()
            server = Server(
                self.experiment.task,
                ClassRegistry.of(self.experiment.split.known),
                start,
                self.rng.child("start"),
                self._names,
            )
            self.method.start(server)
        else:
            ledger = Ledger(**{**payload.info["ledger"], "evaluation": None})
            last = payload.info["ledger"]["evaluation"]
            ledger.evaluation = Evaluation(**last) if last else None
            server = Server.from_payload(payload, self.experiment.task, start, self.rng)
        server.public = self._public()
        self.folder.drop_lost_states(ledger.next_index - 1)
        self._saved_states = dict(ledger.states)
        resumed = self.folder.events.stat().st_size > 0
        self._tell("resume" if resumed else "start", next_index=ledger.next_index, rounds=len(self.steps))
        return server, ledger

    def _public(self) -> Any:
        """The server's unlabelled public data, if the split sets some apart."""
        split = self.experiment.split
        if not len(split.public):
            return None
        return samples_of(self.experiment.dataset, split.public, split.public_from, {}, self.experiment.config.data)

    def _checkpoint(self, server: Server, ledger: Ledger) -> None:
        payload = server.to_payload()
        payload.info["ledger"] = {
            **vars(ledger),
            "evaluation": vars(ledger.evaluation) if ledger.evaluation else None,
        }
        self._log.sync()
        self.folder.save_checkpoint(ledger.next_index, payload)
        for name, version in self._saved_states.items():
            if ledger.states[name] != version:
                self.folder.prune_states(name, oldest=version)
        self._saved_states = dict(ledger.states)

    def _finish(self, server: Server, ledger: Ledger) -> dict[str, Any]:
        """Evaluate if the last round was not, and write the model and the result."""
        server.step = self.steps[-1]
        if ledger.evaluation is None:
            ledger.evaluation = self._evaluate(server, ledger)
            self._tell_notes(server)
        result = self._result(server, ledger)
        self.folder.finish(server.to_payload(), result)
        self._tell("end", **{key: result[key] for key in ("metrics", "seconds", "bytes_up", "bytes_down")})
        return result

    def _result(self, server: Server, ledger: Ledger) -> dict[str, Any]:
        assert ledger.evaluation is not None
        config = self.experiment.config
        return {
            "run": str(self.folder.path),
            "method": config.method.name,
            "data": config.data.name,
            "seed": config.seed,
            "rounds": len(self.steps),
            "clients": len(self._names),
            "classes": list(server.classes.names),
            "metrics": ledger.evaluation.metrics,
            "by": ledger.evaluation.by,
            "thresholds": server.thresholds,
            "seconds": round(ledger.seconds + time.perf_counter() - self._clock, 3),
            "bytes_up": ledger.bytes_up,
            "bytes_down": ledger.bytes_down,
        }

    # --- one round ----------------------------------------------------------------------------------------

    def _step(self, server: Server, ledger: Ledger, step: Step) -> None:
        """One round, from choosing its clients to its checkpoint."""
        server.step, server.rng = step, self.rng.child(step.phase, step.round, "server")
        if self.method.wants(server):
            self._round(server, ledger, step)
        else:
            self._tell("skip", phase=step.phase, round=step.round, index=step.index)
        ledger.next_index = step.index + 1
        now = time.perf_counter()
        ledger.seconds, self._clock = ledger.seconds + now - self._clock, now
        self._checkpoint(server, ledger)

    def _round(self, server: Server, ledger: Ledger, step: Step) -> None:
        begin = time.perf_counter()
        federation = self.experiment.config.federation
        present = [name for name in self._names if federation.arrivals.get(name, 0) <= step.index]
        server.clients = tuple(present)
        chosen = self.method.participants(server, present, federation.participation, server.rng) if present else []
        self._tell("round-start", phase=step.phase, round=step.round, index=step.index, clients=len(chosen))
        accepted, losses = self._collect(server, ledger, step, chosen)
        if chosen and len(accepted) < federation.min_clients:
            raise RoundFailed(
                f"round {step.index + 1} ({step.phase}): {len(accepted)} of {len(chosen)} clients answered, "
                f"federation.min_clients = {federation.min_clients}. See {self.folder.events} for why, then "
                f"`fedwild resume {self.folder.path}`."
            )
        self.method.merge(server, Replies(accepted))
        self._sweep()
        trained = time.perf_counter() - begin
        every = self.experiment.config.evaluation.every
        due = step.index == self.steps[-1].index or (every > 0 and (step.index + 1) % every == 0)
        ledger.evaluation = self._evaluate(server, ledger) if due else None
        self._tell_notes(server)
        self._tell(
            "round",
            phase=step.phase,
            round=step.round,
            index=step.index,
            participants=list(accepted),
            loss=sum(losses) / len(losses) if losses else None,
            seconds=round(trained, 4),
            evaluation_seconds=round(time.perf_counter() - begin - trained, 4),
            metrics=ledger.evaluation.metrics if ledger.evaluation else None,
            by=ledger.evaluation.by if ledger.evaluation else None,
        )

    def _collect(
        self, server: Server, ledger: Ledger, step: Step, chosen: Iterable[str]
    ) -> tuple[dict[str, Callable[[], Payload]], list[float]]:
        """Send the round's jobs; returns how to read each reply that passed every check, and the losses told."""
        outbox = Outbox(self._spool)
        room = KEPT_REPLIES_BYTES
        sizes: dict[str, int] = {}

        def jobs() -> Iterator[Job]:
            # Large clients first, so that no worker is left with one at the end.
            for name in sorted(chosen, key=lambda name: (-self._loads[name], name)):
                path, sizes[name] = outbox.file(self.method.send(server, name))
                yield Job("local", step, path, name, server.classes.names, ledger.states.get(name))

        accepted: dict[str, Callable[[], Payload]] = {}
        losses: list[float] = []
        for answer in self._engine.run(jobs(), self._started):
            name = answer.job.client or ""
            if answer.disk_failed:
                raise OSError(answer.error)
            reason, payload = self._examine(server, answer)
            info = payload.info
            ledger.bytes_down += sizes[name]
            ledger.bytes_up += answer.size
            if reason is None:
                room -= answer.size
                accepted[name] = partial(_itself, payload) if room >= 0 else answer.read
                if answer.state is not None:
                    ledger.states[name] = answer.state
                if isinstance(info.get("loss"), float) and math.isfinite(info["loss"]):
                    losses.append(info["loss"])
            self._tell(
                "client" if reason is None else "client-failed",
                phase=step.phase,
                round=step.round,
                index=step.index,
                client=name,
                seconds=round(answer.seconds, 4),
                bytes_up=answer.size,
                bytes_down=sizes[name],
                **({"info": info} if reason is None else {"reason": reason, "traceback": answer.traceback}),
                **({"notes": answer.notes} if answer.notes else {}),
            )
        outbox.clear()
        return dict(sorted(accepted.items())), losses

    def _examine(self, server: Server, answer: Answer) -> tuple[str | None, Payload]:
        """Why an answer cannot be used, or None; and its payload."""
        if answer.error is not None:
            return answer.error, Payload()
        limit = self.experiment.config.engine.max_reply_mb * 1e6
        if answer.size > limit:
            return f"reply of {answer.size} bytes is larger than engine.max_reply_mb allows", Payload()
        try:
            payload = answer.read()
            check_finite(payload)
            self.method.check(server, payload)
        except BadReply as problem:
            return f"bad reply: {problem}", Payload()
        return None, payload

    def _evaluate(self, server: Server, ledger: Ledger) -> Evaluation:
        """Measure the server as it is now."""
        snapshot = self._spool / f"server-{server.step.index}.safetensors"
        server.to_payload().write(snapshot, durable=False)
        e = self.experiment
        run: Callable[[Iterable[Job]], Iterator[Answer]] = partial(self._engine.run, started=lambda job: None)
        examiner = Examiner(e.method, e.dataset, e.split, e.config.evaluation.accept, run)
        evaluation = examiner.evaluate(server, server.step, str(snapshot), ledger.states)
        snapshot.unlink()
        self._sweep()
        return evaluation

    def _sweep(self) -> None:
        """Remove the round's replies."""
        for file in self._spool.glob("up-*"):
            file.unlink()

    # --- telling ------------------------------------------------------------------------------------------

    def _started(self, job: Job) -> None:
        self._listener({"event": "client-start", "client": job.client, "index": job.step.index})

    def _tell(self, event: str, **fields: Any) -> None:
        self._listener(self._log.write(event, **fields))

    def _tell_notes(self, server: Server) -> None:
        for text in server.notes:
            self._tell("note", index=server.step.index, text=text)
        server.notes.clear()


class Outbox:
    """Writes payloads that go down, each distinct one once: most methods send all clients the same tensors."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[tuple[Any, ...], tuple[str, int, Payload]] = {}

    def file(self, payload: Payload) -> tuple[str, int]:
        """The payload's file and size."""
        key = (tuple((name, id(t)) for name, t in payload.tensors.items()), repr(payload.info))
        if key not in self._files:
            path = self._folder / f"down-{len(self._files)}-{time.monotonic_ns()}.safetensors"
            # The payload is kept, so that no other tensor can get the id of one of its own.
            self._files[key] = (str(path), payload.write(path, durable=False), payload)
        path_, size, _ = self._files[key]
        return path_, size

    def clear(self) -> None:
        for path, _, _ in self._files.values():
            Path(path).unlink(missing_ok=True)
        self._files.clear()


def _itself(payload: Payload) -> Payload:
    return payload
