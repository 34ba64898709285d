"""The coordinator: rounds, checks, evaluation, checkpoints. The same for every method and every engine."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedwild.classes import ClassRegistry
from fedwild.data import Samples, samples_of
from fedwild.engines.base import Answer, Engine, Job, Presence
from fedwild.engines.choice import Connect, engine_of
from fedwild.engines.outbox import Outbox
from fedwild.engines.site import Site
from fedwild.errors import BadReply, RoundFailed, UserError
from fedwild.evaluation import Evaluation, Examiner
from fedwild.experiment import Experiment
from fedwild.initial import Initial
from fedwild.payload import Payload, check_finite
from fedwild.protocol import Replies, Server, Step
from fedwild.rng import Rng
from fedwild.runs.events import EventLog
from fedwild.runs.folder import RunFolder
from fedwild.schedule import arrivals_of, phases_of, steps_of
from fedwild.site_evaluation import evaluated_at_sites

Listener = Callable[[dict[str, Any]], None]


@dataclass
class Ledger:
    """Where the run stands, beside the server: kept in every checkpoint."""

    next_index: int = 0
    states: dict[str, int] = field(default_factory=dict)
    """The version of each client's durable state."""
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    joined: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The clients that came when the run was under way: since which round, who, and whether to be welcomed first."""
    evaluation: Evaluation | None = None


class Federation:
    """Runs an experiment in its run folder, from wherever the last checkpoint left it."""

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
        self.steps = steps_of(self.method, self._first)
        arrivals = {**self.method.arrivals(experiment.split.newcomers), **experiment.config.federation.arrivals}
        self._arrivals = arrivals_of(arrivals, self.steps)
        self._waiting: set[str] = set()

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
            self._engine: Engine = self._connect(self._site(self._spool))
            cleanup.callback(self._engine.close)
            self._log = EventLog(self.folder.events)
            cleanup.callback(self._log.close)
            self._clock = time.perf_counter()
            server, ledger = self._restore()
            for step in self.steps[ledger.next_index - self._first :]:
                server = self._step(server, ledger, step)
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
            server = self._revived(payload, ledger)
        self.folder.drop_lost_states(ledger.next_index - 1)
        self._saved_states = dict(ledger.states)
        resumed = self.folder.events.stat().st_size > int(self.folder.facts().get("inherited_bytes", 0))
        ahead = phases_of(self.steps[ledger.next_index - self._first :])
        rounds = self._first + len(self.steps)
        self._tell("resume" if resumed else "start", next_index=ledger.next_index, rounds=rounds, phases=ahead)
        for text in self.experiment.notes:
            self._tell("note", text=text)
        for text in starting_notes(server):
            self._tell("note", text=text)
        return server, ledger

    def _revived(self, payload: Payload, ledger: Ledger) -> Server:
        """The server that a checkpoint holds."""
        server = Server.from_payload(payload, self.experiment.task, self.rng)
        server.public, server.newcomers = self._public(), self._newcomers(ledger)
        return server

    def _newcomers(self, ledger: Ledger) -> tuple[str, ...]:
        """Who is to be welcomed: whom the settings name, then who came by itself."""
        return (*self.experiment.split.newcomers, *(name for name, row in ledger.joined.items() if row["newcomer"]))

    def _first_classes(self, initial: Initial | None) -> ClassRegistry:
        """The classes to begin with: those that are known, and where the registry grows, all of the earlier run's."""
        dealt = self.experiment.split.known
        grows = self.method.grows and initial is not None
        registry = ClassRegistry(list(initial.registry.entries)) if initial and grows else ClassRegistry()
        for name in dealt:
            registry.add(name, "known", since=0)
        if not self.method.grows:
            for client in self.experiment.split.clients:
                for name in client.known:
                    registry.add(name, client.name, since=self._first)
        return registry

    def _initial(self) -> Initial | None:
        """The earlier run's model, if it is still the one that this run was made to begin with."""
        initial = self.experiment.initial
        if initial is not None and initial.fingerprint != self.folder.facts().get("start_from"):
            path = self.experiment.config.federation.start_from
            raise UserError(
                f"federation.start_from = {path!r}: its model is not the one that run {str(self.folder.path)!r} was "
                "made to start from. Put the old one back, or start a new run."
            )
        return initial

    def _public(self) -> Samples | None:
        """The server's unlabelled public data, if the split sets some apart."""
        split = self.experiment.split
        if not len(split.public):
            return None
        return samples_of(self.experiment.dataset, split.public, split.public_from, {}, self.experiment.config.data)

    def _checkpoint(self, server: Server, ledger: Ledger) -> Server:
        """Write a checkpoint, and return the server that it holds: a resumed run goes on from the very same."""
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
        return self._revived(Payload.decode(data), ledger)

    def _finish(self, server: Server, ledger: Ledger) -> dict[str, Any]:
        """Evaluate if the last round was not, and write the model and the result."""
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

    def _step(self, server: Server, ledger: Ledger, step: Step) -> Server:
        """One round, from choosing its clients to its checkpoint; returns the server to go on with."""
        server.step, server.rng = step, self.rng.child(step.phase, step.round, "server")
        with server.rng.seeded("server"):
            if self.method.wants(server):
                self._round(server, ledger, step)
            else:
                self._tell_notes(server)
                self._tell("skip", phase=step.phase, round=step.round, index=step.index)
        ledger.next_index = step.index + 1
        now = time.perf_counter()
        ledger.seconds, self._clock = ledger.seconds + now - self._clock, now
        return self._checkpoint(server, ledger)

    def _round(self, server: Server, ledger: Ledger, step: Step) -> None:
        begin = time.perf_counter()
        federation = self.experiment.config.federation
        present = self._present(server, ledger, step)
        server.clients = tuple(present)
        chosen = self.method.participants(server, present, federation.participation, server.rng) if present else []
        self._tell("round-start", phase=step.phase, round=step.round, index=step.index, clients=len(chosen))
        accepted, losses, reasons = self._collect(server, ledger, step, chosen)
        if len(accepted) < min(federation.min_clients, len(chosen)) and not self.method.bears_silence(server):
            raise RoundFailed(
                f"round {step.index + 1} ({step.phase}): {len(accepted)} of {len(chosen)} clients answered, "
                f"federation.min_clients = {federation.min_clients}. Most often: {max(reasons, key=reasons.count)}. "
                f"{self.folder.events} tells all; `fedwild resume {self.folder.path}` tries the round again."
            )
        self._listener({"event": "merging", "index": step.index})
        self.method.merge(server, Replies(accepted))
        self._sweep()
        trained = time.perf_counter() - begin
        ledger.evaluation = self._evaluate(server, ledger) if self._evaluation_due(step) else None
        self._tell_notes(server)
        self._tell(
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
        """The members that have arrived by now and can be asked; who came by itself joins them."""
        here = self._engine.present()
        for name in sorted((here or {}).keys() - set(self._names)):
            assert here is not None
            if here[name].newcomer and not self._can_welcome(name, ledger, step):
                self._put_off(here[name], step)
            else:
                self._take_in(here[name], server, ledger, step)
        arrived = [name for name in self._names if self._arrivals.get(name, self._first) <= step.index]
        if here is None:
            return arrived
        needed, connected = self.experiment.config.federation.min_clients, here.keys() & set(self._names)
        if len(connected) < needed:
            raise RoundFailed(
                f"round {step.index + 1} ({step.phase}): {len(connected)} sites are connected, federation.min_clients "
                f"= {needed}. `fedwild resume {self.folder.path}` goes on when they are there."
            )
        return [name for name in arrived if name in connected]

    def _can_welcome(self, name: str, ledger: Ledger, step: Step) -> bool:
        """Whether a stage is still to come that welcomes one more newcomer."""
        stages = self.method.arrivals((*self._newcomers(ledger), name))
        if name not in stages:
            return True
        when = arrivals_of({name: stages[name]}, self.steps)[name]
        return step.index <= when <= self.steps[-1].index

    def _put_off(self, who: Presence, step: Step) -> None:
        """Let a site wait for another run; that is said once."""
        if who.name not in self._waiting:
            self._waiting.add(who.name)
            self._tell("wait", index=step.index, client=who.name)
            who.tell("no stage of this run is left to welcome us: we have to wait until we are welcomed into the next")

    def _take_in(self, who: Presence, server: Server, ledger: Ledger, step: Step) -> None:
        """Count a client that came by itself among the run's from now on."""
        ledger.joined[who.name] = {"since": step.index, "newcomer": who.newcomer, "identity": who.identity}
        self._enrol(who.name, ledger)
        server.newcomers = self._newcomers(ledger)
        about = {"newcomer": who.newcomer, "samples": who.samples, "classes": list(who.classes)}
        self._tell("join", index=step.index, client=who.name, **about)

    def _enrol(self, name: str, ledger: Ledger) -> None:
        """Count a client that came by itself among the run's; one to be welcomed waits for the stage that does so."""
        self._names, self._loads[name] = tuple(sorted({*self._names, name})), 0
        if ledger.joined[name]["newcomer"]:
            stages = self.method.arrivals(self._newcomers(ledger))
            self._arrivals |= arrivals_of({name: stages[name]} if name in stages else {}, self.steps)

    def _evaluation_due(self, step: Step) -> bool:
        """Every so many rounds, and always at the end of the run."""
        every = self.experiment.config.evaluation.every
        return step.index == self.steps[-1].index or (every > 0 and (step.index + 1) % every == 0)

    def _collect(
        self, server: Server, ledger: Ledger, step: Step, chosen: Iterable[str]
    ) -> tuple[dict[str, Callable[[], Payload]], dict[str, float], list[str]]:
        """Send the round's jobs; returns how to read each reply that passed every check, losses, and refusals."""
        outbox = Outbox(self._spool, step.index)

        def jobs() -> Iterator[Job]:
            # Large clients first, so that no worker is left with one at the end.
            for name in sorted(chosen, key=lambda name: (-self._loads[name], name)):
                path = outbox.file(self.method.send(server, name))
                yield Job("local", step, path, name, server.classes.names, ledger.states.get(name))

        accepted: dict[str, Callable[[], Payload]] = {}
        losses: dict[str, float] = {}
        reasons: list[str] = []
        for answer in self._engine.run(jobs(), self._started):
            name = answer.job.client or ""
            if answer.disk_failed:
                raise OSError(answer.error)
            reason, payload = self._examine(server, answer)
            info = told(payload.info)
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
            self._tell(
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
        except Exception as problem:
            # What a client sent must never end the run, whatever it makes a check stumble over.
            return f"bad reply: {type(problem).__name__}: {problem}", Payload()
        return None, payload

    def _evaluate(self, server: Server, ledger: Ledger) -> Evaluation:
        """Measure the server as it is now."""
        self._listener({"event": "measuring", "index": server.step.index})
        snapshot = self._spool / f"server-{server.step.index}.safetensors"
        server.to_payload().write(snapshot, durable=False)
        e = self.experiment
        examiner = Examiner(e.method, e.dataset, e.split, e.config.evaluation.accept, self._engine.run)
        if e.config.data.at_sites:
            evaluation = evaluated_at_sites(examiner, server, str(snapshot), ledger.states)
        else:
            evaluation = examiner.evaluate(server, str(snapshot), ledger.states)
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
        for figures in server.findings:
            self._tell("finding", index=server.step.index, phase=server.step.phase, **figures)
        server.notes.clear()
        server.findings.clear()


def starting_notes(server: Server) -> list[str]:
    """Where the first weights come from, and which classes are new to them."""
    if server.initial is None:
        return []
    new = [name for name in server.classes.names if name not in server.initial.classes]
    return [f"starts from {server.initial.origin}", *([f"classes it did not have: {', '.join(new)}"] if new else [])]


def told(info: dict[str, Any]) -> dict[str, Any]:
    """What of a reply's JSON part goes into the log: plain values and short lists of them."""

    def plain(value: Any) -> bool:
        return isinstance(value, (int, float, bool, type(None))) or (isinstance(value, str) and len(value) <= 200)

    # What the display shows comes first, whatever else a client says.
    ordered: dict[str, Any] = {key: info[key] for key in ("samples", "loss") if key in info} | info
    return {
        key: value
        for key, value in list(ordered.items())[:100]
        if plain(value) or (isinstance(value, list) and len(value) <= 100 and all(map(plain, value)))
    }
