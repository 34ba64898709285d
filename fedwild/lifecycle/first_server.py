"""The server before the first round: its classes, public data and initial model."""

from __future__ import annotations

from fedwild.contract import Initial, Rng, Server, Step, Welcomes
from fedwild.core.classes import ClassRegistry
from fedwild.core.errors import UserError
from fedwild.data import Samples, samples_of
from fedwild.runs.experiment import Experiment
from fedwild.runs.folder import RunFolder


def first_server(experiment: Experiment, folder: RunFolder, rng: Rng, first: int) -> Server:
    """Return a new server that the method has started; `first` is the index of the run's first round."""
    initial = initial_model(experiment, folder)
    names = tuple(sorted(client.name for client in experiment.split.clients))
    server = Server(
        experiment.task, first_classes(experiment, initial, first), Step("start", 0, 0), rng.child("start"), names
    )
    server.public, server.newcomers, server.initial = public_samples(experiment), experiment.split.newcomers, initial
    server.thresholds = dict(initial.thresholds) if initial else {}
    with server.rng.seeded("start"):
        experiment.method.start(server)
    return server


def first_classes(experiment: Experiment, initial: Initial | None, first: int) -> ClassRegistry:
    """Return all classes of the earlier run, if there is one, then the known classes that it did not have.

    Methods that do not welcome newcomers have the newcomers' classes from the start.
    """
    registry = ClassRegistry(list(initial.registry.entries) if initial else [])
    for name in experiment.split.known:
        registry.add(name, "known", since=0)
    if not isinstance(experiment.method, Welcomes):
        for client in experiment.split.clients:
            for name in client.known:
                registry.add(name, client.name, since=first)
    return registry


def initial_model(experiment: Experiment, folder: RunFolder) -> Initial | None:
    """Return the earlier run's model, if it is still the one that this run was created with."""
    initial = experiment.initial
    if initial is not None and initial.fingerprint != folder.facts().get("start_from"):
        raise UserError(
            f"federation.start_from = {experiment.config.federation.start_from!r}: its model has changed since run "
            f"{str(folder.path)!r} was created. Restore it, or start a new run."
        )
    return initial


def public_samples(experiment: Experiment) -> Samples | None:
    """Return the server's unlabelled public data, if the split has any."""
    split = experiment.split
    if not len(split.public):
        return None
    return samples_of(experiment.dataset, split.public, split.public_from, {}, experiment.config.data)


def starting_notes(server: Server) -> list[str]:
    """Return notes on where the initial weights come from, and which classes are new to them."""
    if server.initial is None:
        return []
    notes = [f"starts from {server.initial.origin}"]
    new = [name for name in server.classes.names if name not in server.initial.classes]
    found = [entry.name for entry in server.classes.novel]
    if new:
        notes.append(f"classes it did not have: {', '.join(new)}")
    if found:
        notes.append(f"discovered classes that it has: {', '.join(found)}")
    return notes
