"""The rounds of a run: who takes part, checks, evaluation, checkpoints. The same for every method and engine."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedwild.contract import Initial, Phase, Replies, Server, Step, Welcomes
from fedwild.contract.engine import Answer, Engine, Job, Presence
from fedwild.contract.schedule import first_rounds, phase_lengths, plan_of
from fedwild.core.classes import ClassRegistry
from fedwild.core.errors import BadReply, RoundFailed, UserError
from fedwild.core.payload import Payload, check_finite
from fedwild.core.rng import Rng
from fedwild.data import Samples, samples_of
from fedwild.engines.choice import Connect, engine_of
from fedwild.engines.executor import Executor
from fedwild.engines.outbox import Outbox
from fedwild.evaluation.at_sites import evaluate_at_sites
from fedwild.evaluation.examiner import Evaluation, Examiner
from fedwild.runs.events import EventLog
from fedwild.runs.experiment import Experiment
from fedwild.runs.folder import RunFolder

Listener = Callable[[dict[str, Any]], None]


@dataclass
class Ledger:
    """The progress of the run, beside the server. It is part of every checkpoint."""

    next_index: int = 0
    states: dict[str, int] = field(default_factory=dict)
    """The version of each client's durable state."""
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    joined: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The clients that joined during the run: since which round, their identity, and whether they are newcomers."""
    evaluation: Evaluation | None = None


class Federation:
    """Runs an experiment in its run folder, from the last checkpoint on."""

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder,
        listener: Listener = lambda event: None,
        connect: Connect | None = None,
    ) -> None:
        self.experiment = experiment
        self._connect = connect or engine_of(experiment.config.engine)
        self.method = experiment.method
        self.folder = folder
        self._listener = listener
        clients = experiment.split.clients
        self._names = tuple(sorted(client.name for client in clients))
        self._loads = {client.name: len(client.train) + len(client.unlabelled) for client in clients}
        self.rng = Rng(experiment.config.seed)
        self._first = int(folder.facts().get("first_index", 0))
        self._plan = plan_of(self.method, self._first)
        self.steps = [planned.step for planned in self._plan]
        self._arrivals = self._first_rounds(experiment.split.newcomers)
        self._waiting: set[str] = set()

    def run(self) -> dict[str, Any]:
        """Run all remaining rounds and return the final result. A failing disk raises a `UserError`."""
        self.folder.lock()
        try:
            return self._run()
        except OSError as error:
            what = f"{error.strerror} ({error.filename})" if error.filename else error.strerror or str(error)
            raise UserError(
                f"run folder {str(self.folder.path)!r}: {what}. Fix the problem, then run "
                f"`fedwild resume {self.folder.path}` to continue after the last completed round."
            ) from error
        finally:
            self.folder.unlock()

    def _run(self) -> dict[str, Any]:
        with contextlib.ExitStack() as cleanup:
            self._spool = self.folder.new_spool()
            cleanup.callback(self.folder.drop_spool, self._spool)
            self._engine: Engine = self._connect(self._executor(self._spool))
            cleanup.callback(self._engine.close)
            self._log = EventLog(self.folder.events)
            cleanup.callback(self._log.close)
            self._clock = time.perf_counter()
            server, ledger = self._restore()
            for step, phase in self._plan[ledger.next_index - self._first :]:
                server = self._step(server, ledger, step, phase)
            return self._finish(server, ledger)

    def _executor(self, spool: Path) -> Executor:
        e = self.experiment
        return Executor(e.dataset, e.split, e.config.data, e.method, e.task, e.config.seed, self.folder.clients, spool)

    # --- start, resume and end of a run -----------------------------------------------------------------

    def _restore(self) -> tuple[Server, Ledger]:
        """Return the server and ledger of the last checkpoint, or new ones."""
        payload = self.folder.last_checkpoint()
        start = Step("start", 0, 0)
        if payload is None:
            ledger = Ledger(next_index=self._first)
            initial = self._initial()
            server = Server(
                self.experiment.task, self._first_classes(initial), start, self.rng.child("start"), self._names
            )
            server.public, server.newcomers = self._public(), self.experiment.split.newcomers
            server.initial = initial
            with server.rng.seeded("start"):
                self.method.start(server)
        else:
            ledger = Ledger(**{**payload.info["ledger"], "evaluation": None})
            last = payload.info["ledger"]["evaluation"]
            ledger.evaluation = Evaluation(**last) if last else None
            for name in ledger.joined:
                self._enrol(name, ledger)
            server = self._server_from(payload, ledger)
        self.folder.drop_lost_states(ledger.next_index - 1)
        self._saved_states = dict(ledger.states)
        resumed = self.folder.events.stat().st_size > int(self.folder.facts().get("inherited_bytes", 0))
        ahead = phase_lengths(self.steps[ledger.next_index - self._first :])
        rounds = self._first + len(self.steps)
        self._emit("resume" if resumed else "start", next_index=ledger.next_index, rounds=rounds, phases=ahead)
        for text in self.experiment.notes:
            self._emit("note", text=text)
        for text in starting_notes(server):
            self._emit("note", text=text)
        return server, ledger

    def _server_from(self, payload: Payload, ledger: Ledger) -> Server:
        """Return the server that a checkpoint holds."""
        server = Server.from_payload(payload, self.experiment.task, self.rng)
        server.public, server.newcomers = self._public(), self._newcomers(ledger)
        return server

    def _newcomers(self, ledger: Ledger) -> tuple[str, ...]:
        """Return who is to be welcomed: newcomers of the settings, then sites that connected as newcomers."""
        return (*self.experiment.split.newcomers, *(name for name, row in ledger.joined.items() if row["newcomer"]))

    def _first_classes(self, initial: Initial | None) -> ClassRegistry:
        """Return the known classes and, for a method that welcomes newcomers, all classes of the earlier run.

        Other methods have the newcomers' classes from the start.
        """
        welcomes = isinstance(self.method, Welcomes)
        registry = ClassRegistry(list(initial.registry.entries)) if initial and welcomes else ClassRegistry()
        for name in self.experiment.split.known:
            registry.add(name, "known", since=0)
        if not welcomes:
            for client in self.experiment.split.clients:
                for name in client.known:
                    registry.add(name, client.name, since=self._first)
        return registry

    def _initial(self) -> Initial | None:
        """Return the earlier run's model, if it is still the one that this run was created with."""
        initial = self.experiment.initial
        if initial is not None and initial.fingerprint != self.folder.facts().get("start_from"):
            path = self.experiment.config.federation.start_from
            raise UserError(
                f"federation.start_from = {path!r}: its model has changed since run {str(self.folder.path)!r} was "
                "created. Restore it, or start a new run."
            )
        return initial

    def _public(self) -> Samples | None:
        """Return the server's unlabelled public data, if the split has any."""
        split = self.experiment.split
        if not len(split.public):
            return None
        return samples_of(self.experiment.dataset, split.public, split.public_from, {}, self.experiment.config.data)

    def _checkpoint(self, server: Server, ledger: Ledger) -> Server:
        """Write a checkpoint and return the server that it holds, which a resumed run would continue with."""
        payload = server.to_payload()
        payload.info["ledger"] = {
            **vars(ledger),
            "evaluation": vars(ledger.evaluation) if ledger.evaluation else None,
        }
        self._log.sync()
        data = payload.encode()
        self.folder.save_checkpoint(ledger.next_index, data)
        for name, version in self._saved_states.items():
            if ledger.states[name] != version:
                self.folder.prune_states(name, oldest=version)
        self._saved_states = dict(ledger.states)
        return self._server_from(Payload.decode(data), ledger)

    def _finish(self, server: Server, ledger: Ledger) -> dict[str, Any]:
        """Evaluate if the last round did not, then write the model and the result."""
        if ledger.evaluation is None:
            ledger.evaluation = self._evaluate(server, ledger)
            self._emit_notes(server)
        result = self._result(server, ledger)
        self.folder.finish(server.to_payload(), result)
        self._emit("end", **{key: result[key] for key in ("metrics", "seconds", "bytes_up", "bytes_down")})
        return result

    def _result(self, server: Server, ledger: Ledger) -> dict[str, Any]:
        assert ledger.evaluation is not None
        config = self.experiment.config
        return {
            "run": str(self.folder.path),
            "method": config.method.name,
            "data": config.data.name,
            "seed": config.seed,
            "rounds": self._first + len(self.steps),
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

    def _step(self, server: Server, ledger: Ledger, step: Step, phase: Phase) -> Server:
        """Run one round, from choosing its clients to its checkpoint, and return the server for the next."""
        server.step, server.rng = step, self.rng.child(step.phase, step.round, "server")
        with server.rng.seeded("server"):
            if phase.wants(server):
                self._round(server, ledger, step, phase)
            else:
                self._emit_notes(server)
                self._emit("skip", phase=step.phase, round=step.round, index=step.index)
        ledger.next_index = step.index + 1
        now = time.perf_counter()
        ledger.seconds, self._clock = ledger.seconds + now - self._clock, now
        return self._checkpoint(server, ledger)

    def _round(self, server: Server, ledger: Ledger, step: Step, phase: Phase) -> None:
        begin = time.perf_counter()
        federation = self.experiment.config.federation
        present = self._present(server, ledger, step)
        server.clients = tuple(present)
        chosen = phase.who(server, present, self._draw(server.rng)) if present else []
        self._emit("round-start", phase=step.phase, round=step.round, index=step.index, clients=len(chosen))
        accepted, losses, reasons = self._collect(server, ledger, phase, chosen)
        if len(accepted) < min(federation.min_clients, len(chosen)) and phase.requires_replies:
            raise RoundFailed(
                f"round {step.index + 1} ({step.phase}): {len(accepted)} of {len(chosen)} clients replied, "
                f"federation.min_clients = {federation.min_clients}. Most frequent reason: "
                f"{max(reasons, key=reasons.count)}. See {self.folder.events} for all of them; "
                f"`fedwild resume {self.folder.path}` tries the round again."
            )
        self._listener({"event": "merging", "index": step.index})
        phase.merge(server, Replies(accepted))
        self._sweep()
        trained = time.perf_counter() - begin
        ledger.evaluation = self._evaluate(server, ledger) if self._evaluation_due(step) else None
        self._emit_notes(server)
        self._emit(
            "round",
            phase=step.phase,
            round=step.round,
            index=step.index,
            participants=list(accepted),
            loss=sum(losses.values()) / len(losses) if losses else None,
            seconds=round(trained, 4),
            evaluation_seconds=round(time.perf_counter() - begin - trained, 4),
            metrics=ledger.evaluation.metrics if ledger.evaluation else None,
            by=ledger.evaluation.by if ledger.evaluation else None,
        )

    def _present(self, server: Server, ledger: Ledger, step: Step) -> list[str]:
        """Return the clients that have arrived by now and are connected; sites that connected by themselves join."""
        here = self._engine.present()
        for name in sorted((here or {}).keys() - set(self._names)):
            assert here is not None
            if here[name].newcomer and not self._can_welcome(name, ledger, step):
                self._postpone(here[name], step)
            else:
                self._join(here[name], server, ledger, step)
        arrived = [name for name in self._names if self._arrivals.get(name, self._first) <= step.index]
        if here is None:
            return arrived
        needed, connected = self.experiment.config.federation.min_clients, here.keys() & set(self._names)
        if len(connected) < needed:
            raise RoundFailed(
                f"round {step.index + 1} ({step.phase}): {len(connected)} sites are connected, federation.min_clients "
                f"= {needed}. Run `fedwild resume {self.folder.path}` once they are connected."
            )
        return [name for name in arrived if name in connected]

    def _draw(self, rng: Rng) -> Callable[[Sequence[str]], Sequence[str]]:
        """Return the function that draws a random share of some clients, at least one."""
        share = self.experiment.config.federation.participation

        def draw(names: Sequence[str]) -> Sequence[str]:
            count = max(1, round(share * len(names)))
            if count >= len(names):
                return names
            chosen = rng.numpy("participants").choice(len(names), size=count, replace=False)
            return [names[i] for i in sorted(chosen)]

        return draw

    def _first_rounds(self, newcomers: Sequence[str]) -> dict[str, int]:
        """Return the first round of each client that is not present from the start."""
        return first_rounds(self.method, newcomers, self.experiment.config.federation.arrivals, self.steps)

    def _can_welcome(self, name: str, ledger: Ledger, step: Step) -> bool:
        """Return whether a later stage of this run can welcome one more newcomer."""
        when = self._first_rounds((*self._newcomers(ledger), name)).get(name)
        return when is None or step.index <= when <= self.steps[-1].index

    def _postpone(self, who: Presence, step: Step) -> None:
        """Let a site wait for another run, and say so once."""
        if who.name not in self._waiting:
            self._waiting.add(who.name)
            self._emit("wait", index=step.index, client=who.name)
            who.notify("this run has no stage left to welcome us: we wait to be welcomed into the next run")

    def _join(self, who: Presence, server: Server, ledger: Ledger, step: Step) -> None:
        """Add a client that connected by itself to the run."""
        ledger.joined[who.name] = {"since": step.index, "newcomer": who.newcomer, "identity": who.identity}
        self._enrol(who.name, ledger)
        server.newcomers = self._newcomers(ledger)
        about = {"newcomer": who.newcomer, "samples": who.samples, "classes": list(who.classes)}
        self._emit("join", index=step.index, client=who.name, **about)

    def _enrol(self, name: str, ledger: Ledger) -> None:
        """Count a client that connected by itself among the run's; a newcomer waits for the stage that welcomes it."""
        self._names, self._loads[name] = tuple(sorted({*self._names, name})), 0
        if ledger.joined[name]["newcomer"]:
            arrivals = self._first_rounds(self._newcomers(ledger))
            self._arrivals |= {name: arrivals[name]} if name in arrivals else {}

    def _evaluation_due(self, step: Step) -> bool:
        """Return whether this round is evaluated: every `evaluation.every` rounds, and the last."""
        every = self.experiment.config.evaluation.every
        return step.index == self.steps[-1].index or (every > 0 and (step.index + 1) % every == 0)

    def _collect(
        self, server: Server, ledger: Ledger, phase: Phase, chosen: Iterable[str]
    ) -> tuple[dict[str, Callable[[], Payload]], dict[str, float], list[str]]:
        """Send the round's jobs. Return readers of the accepted replies, losses, and reasons for rejections."""
        step = server.step
        outbox = Outbox(self._spool, step.index)

        def jobs() -> Iterator[Job]:
            # Large clients first, so that no worker is left with one at the end.
            for name in sorted(chosen, key=lambda name: (-self._loads[name], name)):
                path = outbox.file(phase.send(server, name))
                yield Job("local", step, path, name, server.classes.names, ledger.states.get(name))

        accepted: dict[str, Callable[[], Payload]] = {}
        losses: dict[str, float] = {}
        reasons: list[str] = []
        for answer in self._engine.run(jobs(), self._started):
            name = answer.job.client or ""
            if answer.disk_failed:
                raise OSError(answer.error)
            reason, payload = self._examine(server, phase, answer)
            info = loggable(payload.info)
            bytes_down = outbox.answered(answer.job.payload)
            ledger.bytes_down += bytes_down
            ledger.bytes_up += answer.size
            if reason is None:
                accepted[name] = answer.read
                if answer.state is not None:
                    ledger.states[name] = answer.state
                if isinstance(info.get("loss"), float) and math.isfinite(info["loss"]):
                    losses[name] = info["loss"]
            else:
                reasons.append(reason)
            self._emit(
                "client" if reason is None else "client-failed",
                phase=step.phase,
                round=step.round,
                index=step.index,
                client=name,
                seconds=round(answer.seconds, 4),
                bytes_up=answer.size,
                bytes_down=bytes_down,
                **({"info": info} if reason is None else {"reason": reason, "traceback": answer.traceback}),
                **({"notes": answer.notes} if answer.notes else {}),
            )
        outbox.clear()
        return dict(sorted(accepted.items())), dict(sorted(losses.items())), reasons

    def _examine(self, server: Server, phase: Phase, answer: Answer) -> tuple[str | None, Payload]:
        """Return the reason to reject an answer, or None, and its payload."""
        if answer.error is not None:
            return answer.error, Payload()
        limit = self.experiment.config.engine.max_reply_mb * 1e6
        if answer.size > limit:
            return f"reply of {answer.size} bytes is larger than engine.max_reply_mb allows", Payload()
        try:
            payload = answer.read()
            check_finite(payload)
            phase.check(server, payload)
        except BadReply as problem:
            return f"bad reply: {problem}", Payload()
        except Exception as problem:
            # A check that fails on what a client sent must not end the run.
            return f"bad reply: {type(problem).__name__}: {problem}", Payload()
        return None, payload

    def _evaluate(self, server: Server, ledger: Ledger) -> Evaluation:
        """Measure the current server."""
        self._listener({"event": "measuring", "index": server.step.index})
        snapshot = self._spool / f"server-{server.step.index}.safetensors"
        server.to_payload().write(snapshot, durable=False)
        e = self.experiment
        examiner = Examiner(e.method, e.dataset, e.split, e.config.evaluation.accept, self._engine.run)
        if e.config.data.at_sites:
            evaluation = evaluate_at_sites(examiner, server, str(snapshot), ledger.states)
        else:
            evaluation = examiner.evaluate(server, str(snapshot), ledger.states)
        snapshot.unlink()
        self._sweep()
        return evaluation

    def _sweep(self) -> None:
        """Remove the round's replies."""
        for file in self._spool.glob("up-*"):
            file.unlink()

    # --- events -------------------------------------------------------------------------------------------

    def _started(self, job: Job) -> None:
        self._listener({"event": "client-start", "client": job.client, "index": job.step.index})

    def _emit(self, event: str, **fields: Any) -> None:
        self._listener(self._log.write(event, **fields))

    def _emit_notes(self, server: Server) -> None:
        for text in server.notes:
            self._emit("note", index=server.step.index, text=text)
        for figures in server.findings:
            self._emit("finding", index=server.step.index, phase=server.step.phase, **figures)
        server.notes.clear()
        server.findings.clear()


def starting_notes(server: Server) -> list[str]:
    """Return notes on where the initial weights come from, and which classes are new to them."""
    if server.initial is None:
        return []
    new = [name for name in server.classes.names if name not in server.initial.classes]
    return [f"starts from {server.initial.origin}", *([f"classes it did not have: {', '.join(new)}"] if new else [])]


def loggable(info: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a reply's info that goes into the log: plain values and short lists of them."""

    def plain(value: Any) -> bool:
        return isinstance(value, (int, float, bool, type(None))) or (isinstance(value, str) and len(value) <= 200)

    # What the display shows comes first, so that it is never cut off.
    ordered: dict[str, Any] = {key: info[key] for key in ("samples", "loss") if key in info} | info
    return {
        key: value
        for key, value in list(ordered.items())[:100]
        if plain(value) or (isinstance(value, list) and len(value) <= 100 and all(map(plain, value)))
    }
