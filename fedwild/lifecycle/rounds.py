"""The rounds of a run, from its last checkpoint to its result. The same for every method and engine."""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedwild.contract import Payload, Phase, Rng, Server, Step
from fedwild.contract.schedule import phase_lengths, plan_of
from fedwild.core.errors import RoundFailed, UserError
from fedwild.engines.choice import Connect, engine_of
from fedwild.engines.executor import Executor
from fedwild.evaluation.at_sites import evaluate_at_sites
from fedwild.evaluation.examiner import Evaluation, Examiner
from fedwild.lifecycle.exchange import Collected, Exchange
from fedwild.lifecycle.first_server import first_server, public_samples, starting_notes
from fedwild.lifecycle.ledger import Ledger
from fedwild.lifecycle.merging import merge_replies, merge_sum
from fedwild.lifecycle.presence import Attendance
from fedwild.lifecycle.privacy import Privacy
from fedwild.runs.events import EventLog, Listener, check_log, ignore_event
from fedwild.runs.experiment import Experiment
from fedwild.runs.folder import RunFolder
from fedwild.runs.protection import is_protected, protection_notes

if TYPE_CHECKING:
    from fedwild.lifecycle.secure_exchange import SecureExchange


class Federation:
    """Runs the remaining rounds of an experiment in its run folder."""

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder,
        listener: Listener = ignore_event,
        connect: Connect | None = None,
    ) -> None:
        self.experiment, self.folder = experiment, folder
        self._connect = connect or engine_of(experiment.config.engine)
        self._listener = listener
        self._rng = Rng(experiment.config.seed)
        federation = experiment.config.federation
        self._privacy = Privacy(experiment.config.privacy, federation.participation, len(experiment.split.clients))
        self._first = int(folder.facts().get("first_index", 0))
        self._plan = plan_of(experiment.method, self._first)
        self._steps = [planned.step for planned in self._plan]

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
            cleanup.callback(shutil.rmtree, self._spool, ignore_errors=True)
            self._engine = self._connect(self._executor(self._spool))
            cleanup.callback(self._engine.close)
            self._log = EventLog(self.folder.events, self._listener)
            cleanup.callback(self._log.close)
            self._clock = time.perf_counter()
            config = self.experiment.config
            limits = config.engine.max_reply_mb * 1e6, self._privacy.max_update(config.federation.max_update)
            self._exchange = Exchange(self._engine, self._spool, self._log, *limits)
            self._secure = self._secure_exchange()
            server, ledger = self._restore()
            for step, phase in self._plan[ledger.next_index - self._first :]:
                server = self._step(server, ledger, step, phase)
            return self._finish(server, ledger)

    def _secure_exchange(self) -> SecureExchange | None:
        """Return the exchange of rounds with secure sums, if the run has any."""
        config = self.experiment.config
        if config.federation.secure == "no":
            return None
        # Only these runs need ciphers, which take time to import.
        from fedwild.lifecycle.secure_exchange import SecureExchange

        limit = config.engine.max_reply_mb * 1e6
        return SecureExchange(self._engine, self._spool, self._log, limit, config.federation, self.folder.path)

    def _executor(self, spool: Path) -> Executor:
        e = self.experiment
        data, seed, privacy = e.config.data, e.config.seed, e.config.privacy
        return Executor(e.dataset, e.split, data, e.method, e.task, seed, self.folder.clients, spool, privacy)

    def _restore(self) -> tuple[Server, Ledger]:
        """Return the server and ledger of the last checkpoint, or new ones."""
        payload, problems = self.folder.checkpoints.newest(with_states=self.folder.keeps_states)
        ledger = Ledger.from_json(payload.info["ledger"]) if payload else Ledger(next_index=self._first)
        self._attendance = Attendance(self.experiment, self._steps, ledger, self._log, self.folder.path)
        if payload is None:
            server = first_server(self.experiment, self.folder, self._rng, self._first)
        else:
            server = self._server_from(payload)
        self.folder.checkpoints.drop_lost_states(ledger.next_index - 1)
        self._saved_states = dict(ledger.states)
        resumed = self.folder.events.stat().st_size > int(self.folder.facts().get("inherited_bytes", 0))
        self._log.write(
            "resume" if resumed else "start",
            next_index=ledger.next_index,
            rounds=self._first + len(self._steps),
            phases=phase_lengths(self._steps[ledger.next_index - self._first :]),
        )
        lost = check_log(self.folder.events).problem(ledger.log)
        if lost:
            problems.append(f"{str(self.folder.events)!r} is damaged ({lost}); only intact lines are used")
        protection = protection_notes(self.experiment.method, self.experiment.config.federation.secure)
        notes = (*starting_notes(server), *protection, *self._privacy.notes(server))
        for text in (*problems, *self.experiment.notes, *notes):
            self._log.write("note", text=text)
        return server, ledger

    def _server_from(self, payload: Payload) -> Server:
        """Return the server that a checkpoint holds."""
        server = Server.from_payload(payload, self.experiment.task, self._rng)
        server.public, server.newcomers = public_samples(self.experiment), self._attendance.newcomers
        return server

    def _step(self, server: Server, ledger: Ledger, step: Step, phase: Phase) -> Server:
        """Run one round, from choosing its clients to its checkpoint, and return the server for the next."""
        server.step, server.rng = step, self._rng.child(step.phase, step.round, "server")
        with server.rng.seeded("server"):
            if phase.wants(server):
                server = self._round(server, ledger, step, phase)
            else:
                self._log_notes(server)
                self._log.write("skip", phase=step.phase, round=step.round, index=step.index)
        ledger.next_index = step.index + 1
        now = time.perf_counter()
        ledger.seconds, self._clock = ledger.seconds + now - self._clock, now
        return self._checkpoint(server, ledger)

    def _round(self, server: Server, ledger: Ledger, step: Step, phase: Phase) -> Server:
        """Exchange messages with the clients of a round, merge their replies, and return the changed server."""
        begin = time.perf_counter()
        federation = self.experiment.config.federation
        present = self._attendance.present(self._engine.present(), step)
        server.clients, server.newcomers = tuple(present), self._attendance.newcomers
        chosen = phase.who(server, present, self._privacy.draw(server.rng)) if present else []
        self._log.write("round-start", phase=step.phase, round=step.round, index=step.index, clients=len(chosen))
        # Large clients first, so that no worker is left with one at the end.
        ordered = sorted(chosen, key=lambda name: (-self._attendance.loads[name], name))
        if chosen and self._secure is not None and is_protected(phase, federation.secure):
            collected = self._secure.run(server, ledger, phase, ordered, self._attendance.claims)
        else:
            collected = self._exchange.run(server, ledger, phase, ordered, self._attendance.claims)
        self._require(phase, collected, min(federation.min_clients, len(chosen)), len(chosen), step)
        self._log.announce("merging", index=step.index)
        server = self._merge(server, phase, collected)
        self._privacy.spend(ledger, phase, collected.samples)
        ledger.states |= collected.states
        self._remove_replies()
        trained = time.perf_counter() - begin
        due = self.experiment.config.evaluation.is_due(step.index, self._steps[-1].index)
        ledger.evaluation = self._evaluate(server, ledger) if due else None
        self._log_notes(server)
        self._log.write(
            "round",
            phase=step.phase,
            round=step.round,
            index=step.index,
            participants=sorted(collected.accepted),
            loss=collected.mean_loss,
            seconds=round(trained, 4),
            evaluation_seconds=round(time.perf_counter() - begin - trained, 4),
            metrics=ledger.evaluation.metrics if ledger.evaluation else None,
            by=ledger.evaluation.by if ledger.evaluation else None,
            **self._privacy.report(ledger),
        )
        return server

    def _require(self, phase: Phase, collected: Collected, needed: int, asked: int, step: Step) -> None:
        """Raise `RoundFailed` if the phase needs more replies than are accepted."""
        accepted, reasons = len(collected.accepted), collected.reasons
        if accepted < needed and phase.requires_replies:
            raise RoundFailed(
                f"round {step.index + 1} ({step.phase}): {accepted} of {asked} clients replied, "
                f"federation.min_clients = {self.experiment.config.federation.min_clients}. Most frequent reason: "
                f"{max(reasons, key=reasons.count)}. See {self.folder.events} for all of them; "
                f"`fedwild resume {self.folder.path}` tries the round again."
            )

    def _merge(self, server: Server, phase: Phase, collected: Collected) -> Server:
        """Merge the accepted replies and return the changed server. A merge that fails costs replies or the round."""
        step = server.step
        if collected.summed is None:
            readers = self._privacy.protect(server, collected.accepted)
            merged = merge_replies(server, phase, readers, [name for name in collected.by_size if name in readers])
        else:
            combined = self._privacy.protect_sum(server, collected.summed, len(collected.accepted))
            merged = merge_sum(server, phase, combined, collected.accepted, collected.problem)
        for name in merged.rejected:
            self._exchange.reject(server, collected, name, f"its reply makes the merge fail: {merged.problem}")
        if merged.failed and phase.rounds == 1:
            raise RoundFailed(
                f"round {step.index + 1} ({step.phase}): the merge of the replies failed: {merged.problem}. "
                f"`fedwild resume {self.folder.path}` tries the round again."
            )
        if merged.failed:
            server.note(f"the merge of the replies failed, so this round changes nothing: {merged.problem}")
            self._log.write("merge-failed", index=step.index, phase=step.phase, reason=merged.problem)
        return merged.server

    def _evaluate(self, server: Server, ledger: Ledger) -> Evaluation:
        """Measure the current server."""
        self._log.announce("measuring", index=server.step.index)
        # The scores of all clients' validation samples are not for each of them to see.
        server.references = {}
        snapshot = self._spool / f"server-{server.step.index}.safetensors"
        server.to_payload().write(snapshot, durable=False)
        e = self.experiment
        examiner = Examiner(
            e.method, e.dataset, e.split, e.config.evaluation.accept, self._engine.run, claims=self._attendance.claims
        )
        if e.config.data.at_sites:
            evaluation = evaluate_at_sites(examiner, server, str(snapshot), ledger.states)
        else:
            evaluation = examiner.evaluate(server, str(snapshot), ledger.states)
        snapshot.unlink()
        self._remove_replies()
        return evaluation

    def _remove_replies(self) -> None:
        for file in self._spool.glob("up-*"):
            file.unlink()

    def _log_notes(self, server: Server) -> None:
        """Move the server's notes and findings into the log."""
        for text in server.notes:
            self._log.write("note", index=server.step.index, text=text)
        for figures in server.findings:
            self._log.write("finding", index=server.step.index, phase=server.step.phase, **figures)
        server.notes.clear()
        server.findings.clear()

    def _checkpoint(self, server: Server, ledger: Ledger) -> Server:
        """Write a checkpoint and return the server that it holds, which a resumed run would continue with."""
        payload = server.to_payload()
        ledger.log = self._log.check
        payload.info["ledger"] = ledger.to_json()
        self._log.sync()
        data = payload.encode(sealed=True)
        self.folder.checkpoints.save(ledger.next_index, data)
        for name, version in self._saved_states.items():
            if ledger.states[name] != version:
                self.folder.checkpoints.prune_states(name, oldest=version)
        self._saved_states = dict(ledger.states)
        return self._server_from(Payload.decode(data))

    def _finish(self, server: Server, ledger: Ledger) -> dict[str, Any]:
        """Evaluate if the last round did not, then write the model and the result."""
        if ledger.evaluation is None:
            ledger.evaluation = self._evaluate(server, ledger)
            self._log_notes(server)
        config, evaluation = self.experiment.config, ledger.evaluation
        result = {
            "run": str(self.folder.path),
            "method": config.method.name,
            "data": config.data.name,
            "seed": config.seed,
            "rounds": self._first + len(self._steps),
            "clients": len(self._attendance.names),
            "classes": list(server.classes.names),
            "metrics": evaluation.metrics,
            "by": evaluation.by,
            "thresholds": server.thresholds,
            "seconds": round(ledger.seconds + time.perf_counter() - self._clock, 3),
            "bytes_up": ledger.bytes_up,
            "bytes_down": ledger.bytes_down,
            **self._privacy.report(ledger),
            "log": self._log.check,
        }
        self._log.sync()
        self.folder.finish(server.to_payload(), result)
        self._log.write("end", **{key: result[key] for key in ("metrics", "seconds", "bytes_up", "bytes_down")})
        return result
