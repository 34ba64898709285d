"""Reading the model and the members of the run that another run starts from, and checking that the two fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from fedwild.contract import Initial, Rng, Server, Task, Welcomes
from fedwild.core.errors import BadReply, UserError
from fedwild.core.layers import Table
from fedwild.core.payload import check_like
from fedwild.core.toml import read_toml
from fedwild.runs.components import Part, starting_methods
from fedwild.runs.config import Config, changes, resolve
from fedwild.runs.folder import RunFolder
from fedwild.runs.ownership import code_in


def earlier_model(path: str, model: Part, task: Task, score: Part | None = None) -> Initial:
    """Return the global model of the finished run at `path`, if a run of this network and task can begin with it."""
    with _reading(path, model) as folder:
        return _read(folder, model, task, score)


def earlier_members(path: str, now: Config, names: str | list[str]) -> dict[str, Table]:
    """Return the newcomers that became members of the run at `path`, if this run has its data `names`, too."""
    with _reading(path, now.model) as folder:
        facts = folder.facts()
        then = resolve(facts["config"])
        if then.data.name != names or then.data.at_sites or then.model is None:
            return {}
        task = Task(tuple(facts["input"]["shape"]), then.model.name, then.model.params.model_dump())
        return members_of(folder, then, Server.from_payload(folder.server(), task, Rng(then.seed)))


def members_of(folder: RunFolder, config: Config, server: Server) -> dict[str, Table]:
    """Return the newcomers that became members of a finished run, with the settings of their data."""
    method, outside = config.make_method(), set[str]()
    if isinstance(method, Welcomes):
        outside = set(folder.split().newcomers) - set(method.welcomed(server))
    newcomers = config.data.newcomers.items()
    return {name: {**data.model_dump(), "welcomed": True} for name, data in newcomers if name not in outside}


@contextmanager
def _reading(path: str, model: Part | None) -> Iterator[RunFolder]:
    """Yield the folder of the finished run at `path`. Errors name the setting."""
    try:
        folder = RunFolder.open(Path(path))
        if folder.result() is None:
            raise UserError(f"that run is unfinished: run `fedwild resume {folder.path}` first.")
        engine = read_toml(folder.path / "config.toml").get("engine", {})
        # The new run names the same network, so its user trusts it.
        with code_in(folder.path, folder.facts(), engine.get("address"), also=[model.name] if model else []):
            yield folder
    except UserError as error:
        raise UserError(*(f"federation.start_from = {path!r}: {problem}" for problem in error.problems)) from error
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"federation.start_from = {path!r} cannot be read: {reason}.") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        # Files written by fedwild are complete, unless a user changed them.
        raise UserError(f"federation.start_from = {path!r}: its files are damaged ({error!r}).") from error


def _read(folder: RunFolder, model: Part, task: Task, score: Part | None) -> Initial:
    facts, config = folder.facts(), resolve(folder.facts()["config"])
    server, method = Server.from_payload(folder.server(), task, Rng(config.seed)), config.method.name
    weights = config.make_method().weights(server)
    if "head.weight" not in weights:
        raise UserError(
            f"a run of method {method!r} has no single global model; use a run of another method, "
            f"such as {', '.join(starting_methods(personal=False))}."
        )
    _check_same_network(config.model, model)
    shape = tuple(facts["input"]["shape"])
    if shape != task.input_shape:
        raise UserError(f"its samples have shape {shape}, those of this run {task.input_shape}: they must be equal.")
    _check_tensors_fit(weights, task)
    origin, then = f"{folder.path} (method {method}, round {server.step.index + 1})", config.parts.get("score")
    same_score = score is not None and then is not None and score.table() == then.table()
    return Initial(weights, server.classes, origin, dict(server.thresholds) if same_score else {})


def _check_same_network(then: Part | None, model: Part) -> None:
    """Reject another network, or the same network with other settings."""
    before, now = then.table() if then else {}, model.table()
    if before.get("name") != now["name"]:
        # The settings of a different network are not worth comparing.
        before, now = {"name": before.get("name")}, {"name": now["name"]}
    changed = changes({"model": before}, {"model": now})
    if changed:
        raise UserError(f"both runs need the same network, but {'; '.join(changed)}.")


def _check_tensors_fit(weights: Mapping[str, Tensor], task: Task) -> None:
    """Reject weights that no longer fit: the code of a user's own network may have changed."""
    try:
        check_like(weights, task.spec(len(weights["head.weight"]), bias="head.bias" in weights), "its model")
    except BadReply as problem:
        reason = "has changed since that run, or its method made it wider"
        raise UserError(f"model.name = {task.model!r} {reason}: {problem}.") from problem
