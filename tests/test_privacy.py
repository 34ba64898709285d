"""Samples never leave a client: for every method, everything that clients send is searched for their samples.

Images are random, so that no two of them are similar by chance. Clients are small, one has a class with a single
sample, and methods run with the settings that send most. What is searched are the results of `Executor.answer`, which
every engine and transport sends.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedwild.api import configure
from fedwild.contract import Client, Welcomes
from fedwild.core.errors import BadReply, UserError
from fedwild.core.header import MAX_NAME
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.data import ClientSplit, Dataset, DataSettings, Samples, Split, samples_of
from fedwild.discovery import ESTIMATORS
from fedwild.methods import METHODS, gains
from fedwild.methods.fedavg import AveragingRounds
from fedwild.methods.gains.probes import class_moments
from fedwild.models import build
from fedwild.runs.experiment import check_embedding
from fedwild.sites.redaction import redact
from fedwild.training.corrections import CORRECTIONS
from fedwild.training.objectives import OBJECTIVES
from tests.leaks import Search, Sent, record
from tests.tiny import own, run_experiment, tiny_experiment

SHAPE = (2, 8, 9)
LEVELS: dict[str, Any] = {"mean": [0.4, 0.5], "std": [0.25, 0.3]}
NETWORKS = {
    # No row of a tensor is as long as a sample.
    "convolutions": {"name": "digit-cnn", "width": 0.05},
    # The first layer has rows as long as a sample.
    "dense": {"name": "mlp", "hidden": [8, 6]},
}
NEWCOMER = "newcomer"
AT_SITES = {"local", "validate", "measure"}
"""The jobs that sites get. (Jobs of kind "test" are about data of the coordinator.)"""
WITHOUT_CLIENTS = {"distil"}
"""Phases in which only the server works."""


# --- the federation -----------------------------------------------------------------------------------------


def random_images(seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Return `count` images of each of three classes: noise with a row that is a little brighter."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(3).repeat(count)
    x = torch.randint(0, 200, (len(y), *SHAPE), generator=generator, dtype=torch.uint8)
    for i, label in enumerate(y.tolist()):
        x[i, :, label] += 55
    return x, y


@pytest.fixture(scope="module")
def data() -> Dataset:
    (x_train, y_train), (x_test, y_test) = random_images(0, 24), random_images(1, 3)
    zeros = torch.zeros_like(y_train), torch.zeros_like(y_test)
    return Dataset("random", x_train, y_train, x_test, y_test, ("a", "b", "c"), ("random",), *zeros)


def split_for(method: str) -> Split:
    """Return clients with samples of every part: one has ten of a class, the other a class with one sample.

    There is a newcomer for methods that welcome them, and public data for methods that need it. Only clients have test
    data.
    """
    a, b, c = (np.arange(label, 72, 3) for label in range(3))
    test = np.arange(9)
    clients = [
        ClientSplit("large", np.r_[a[:10], b[:3]], np.r_[a[10:11], b[4:5]], c[:4], test[:3], ("a", "b")),
        ClientSplit("small", np.r_[a[12:15], b[6:7]], np.r_[a[15:16], b[7:8]], c[5:8], test[3:6], ("a", "b")),
    ]
    newcomers: tuple[str, ...] = ()
    if issubclass(METHODS.get(method), Welcomes):
        clients.append(ClientSplit(NEWCOMER, np.r_[a[16:17], c[9:15]], c[15:17], c[:0], test[6:9], ("a", "c")))
        newcomers = (NEWCOMER,)
    public = np.r_[a[20:], b[20:]] if METHODS.get(method).traits.public_data else a[:0]
    return Split(tuple(clients), ("a", "b"), (), ("c",), test[:0], public, "train", newcomers=newcomers)


def samples_at(client: ClientSplit, data: Dataset) -> tuple[Tensor, Tensor]:
    """Return all samples of a client, training, validation, unlabelled and test, as stored and as networks see them."""
    settings = DataSettings(**LEVELS)
    here = np.concatenate([client.train, client.validation, client.unlabelled])
    parts = [samples_of(data, rows, part, data=settings) for part, rows in (("train", here), ("test", client.test))]
    return torch.cat([part.x[part.index] for part in parts]), torch.cat([part.all()[0] for part in parts])


@pytest.fixture(scope="module")
def searches(data: Dataset) -> dict[str, Search]:
    """Return a search for the samples of each client."""
    return {client.name: Search(*samples_at(client, data)) for client in split_for("gains").clients}


def verbose(method: str) -> dict[str, Any]:
    """Return the settings with which a method sends most: no limit on small groups, and many groups to send."""
    if method.startswith("gal"):
        everything_novel = {"novelty": "fixed", "r": 1.0, "min_count": 1, "min_known_count": 1}
        return {"method": everything_novel, "estimator": {"name": "given", "classes": 2}}
    if method.startswith("gains"):
        return {"method": {"min_count": 1}}
    if method.startswith("fedoss"):
        return {"method": {"min_count": 1, "boundary": "all"}}
    return {}


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch) -> list[Sent]:
    """Return a list of everything that clients send in this test."""
    return record(monkeypatch)


def run_at_sites(
    folder: Path,
    data: Dataset,
    method: str,
    network: str = "convolutions",
    split: Split | None = None,
    /,
    **tables: Any,
) -> tuple[set[str], set[str]]:
    """Run a federation whose clients measure themselves; return the phases in which clients work and kinds of jobs."""
    own = verbose(method)
    tables = {**own, **tables, "method": {**own.get("method", {}), **tables.get("method", {})}}
    settings = {
        "data": {"name": "sites", **LEVELS},
        "model": NETWORKS.get(network, {"name": network}),
        "engine": {"workers": 0},
        "evaluation": {"every": 0},
        **tables,
    }
    experiment = tiny_experiment(method, data, split or split_for(method), settings)
    run_experiment(folder, experiment)
    phases = {phase.name for phase in experiment.method.phases() if phase.rounds} - WITHOUT_CLIENTS
    # Only networks with batch-norm measure statistics again.
    phases -= {"calibrate"} if network == "dense" else set()
    return phases, AT_SITES


def check_all_sent(uploads: list[Sent], expected: tuple[set[str], set[str]], clients: set[str]) -> None:
    """Check that every phase, kind of job and client has sent something, so that the search covers all of them."""
    phases, kinds = expected
    assert {sent.kind for sent in uploads} == kinds
    assert {sent.phase for sent in uploads if sent.kind == "local"} == phases
    for kind in kinds:
        assert {sent.client for sent in uploads if sent.kind == kind} == clients
    assert all(sent.reply for sent in uploads)


def found(uploads: list[Sent], searches: dict[str, Search]) -> list[str]:
    return [place for sent in uploads for place in searches[sent.client].found_in(sent)]


# --- no method sends samples --------------------------------------------------------------------------------


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("method", own(METHODS))
def test_no_method_sends_a_sample(
    method: str, network: str, data: Dataset, searches: dict[str, Search], uploads: list[Sent], tmp_path: Path
) -> None:
    expected = run_at_sites(tmp_path / "run", data, method, network, evaluation={"every": 1})
    check_all_sent(uploads, expected, {client.name for client in split_for(method).clients})
    assert found(uploads, searches) == []


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("objective", own(OBJECTIVES))
def test_no_objective_sends_a_sample(
    objective: str,
    network: str,
    data: Dataset,
    searches: dict[str, Search],
    uploads: list[Sent],
    tmp_path: Path,
) -> None:
    expected = run_at_sites(tmp_path / "run", data, "fedavg", network, objective={"name": objective})
    check_all_sent(uploads, expected, {"large", "small"})
    assert found(uploads, searches) == []


CORRECTED = [(name, network) for name in own(CORRECTIONS) for network in NETWORKS]


@pytest.mark.parametrize(("correction", "network"), [case for case in CORRECTED if case != ("scaffold", "dense")])
def test_no_correction_sends_a_sample(
    correction: str,
    network: str,
    data: Dataset,
    searches: dict[str, Search],
    uploads: list[Sent],
    tmp_path: Path,
) -> None:
    expected = run_at_sites(tmp_path / "run", data, "fedavg", network, correction={"name": correction})
    check_all_sent(uploads, expected, {"large", "small"})
    assert found(uploads, searches) == []


@pytest.mark.parametrize("estimator", own(ESTIMATORS))
def test_no_estimator_sends_a_sample(
    estimator: str, data: Dataset, searches: dict[str, Search], uploads: list[Sent], tmp_path: Path
) -> None:
    quick = {key: 3 for key in ("epochs", "largest") if key in ESTIMATORS.get(estimator).Params.model_fields}
    expected = run_at_sites(tmp_path / "run", data, "gal", "dense", estimator={"name": estimator, **quick})
    check_all_sent(uploads, expected, {"large", "small"})
    assert found(uploads, searches) == []


# --- the search finds samples -------------------------------------------------------------------------------


@dataclass
class Stolen:
    """A sample as it is stored and as a network sees it, each (C, H, W)."""

    stored: Tensor
    seen: Tensor

    @property
    def grey(self) -> Tensor:
        """The sample in [0, 1], before normalisation."""
        return self.stored / 255

    @property
    def raw(self) -> bytes:
        return self.stored.numpy().tobytes()

    def __iter__(self) -> Iterator[float]:
        return iter(self.seen.flatten().tolist())


def honest() -> Payload:
    """Return a reply like those of methods."""
    generator = torch.Generator().manual_seed(5)
    weights = {
        "fc.weight": torch.randn(8, math.prod(SHAPE), generator=generator),
        "fc.bias": torch.randn(8, generator=generator),
        "norm.num_batches_tracked": torch.tensor(7),
        "mask": torch.randint(0, 256, (200,), generator=generator, dtype=torch.uint8),
    }
    return Payload.of({"samples": 14, "loss": 1.234, "labels": [10, 4], "held": ["a", "b"]}, model=weights)


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(6))


def batch_with(seen: Tensor) -> Tensor:
    """Return a batch of images (5, C, H, W), one of which is the sample."""
    batch = noise(5, *seen.shape)
    batch[3] = seen
    return batch


def single_sample(stolen: Stolen, name: str) -> Tensor:
    """Return the moments of Gains for a class with one sample."""
    return class_moments(Samples(stolen.stored[None], torch.tensor([1]), torch.tensor([0])), 3, at_least=1)[name]


def replaced_row(stolen: Stolen) -> Tensor:
    rows = honest().tensors["model/fc.weight"].clone()
    rows[4] = 0.1 * stolen.seen.flatten()
    return rows


IN_TENSORS: dict[str, Callable[[Stolen], dict[str, Tensor]]] = {
    "as stored": lambda s: {"x": s.stored},
    "as int64": lambda s: {"x": s.stored.long()},
    "as int16": lambda s: {"x": s.stored.short()},
    "as int8": lambda s: {"x": (s.stored.short() - 128).to(torch.int8)},
    "as float64": lambda s: {"x": s.grey.double()},
    "as float32": lambda s: {"x": s.grey},
    "as float16": lambda s: {"x": s.grey.half()},
    "as bfloat16": lambda s: {"x": s.grey.bfloat16()},
    "as bytes in floats": lambda s: {"x": s.stored.flatten().float()},
    "normalised": lambda s: {"x": s.seen},
    "normalised, float16": lambda s: {"x": s.seen.half()},
    "negated": lambda s: {"x": -s.seen},
    "scaled": lambda s: {"x": 1e-6 * s.seen},
    "scaled and shifted": lambda s: {"x": 3.0 - 0.01 * s.seen},
    "squared": lambda s: {"x": s.seen.square()},
    "logarithms": lambda s: {"x": (1 + s.grey).log()},
    "squashed": lambda s: {"x": s.seen.sigmoid()},
    "with a little noise": lambda s: {"x": s.grey + 0.01 * noise(*SHAPE)},
    "rounded to sixteen levels": lambda s: {"x": (16 * s.grey).floor()},
    "flat": lambda s: {"x": s.seen.flatten()},
    "channels last": lambda s: {"x": s.seen.permute(1, 2, 0)},
    "transposed": lambda s: {"x": s.seen.permute(0, 2, 1)},
    "transposed, channels last": lambda s: {"x": s.seen.permute(2, 1, 0)},
    "in another shape": lambda s: {"x": s.seen.reshape(6, 24)},
    "in a batch": lambda s: {"x": batch_with(s.seen)},
    "in a batch, channels last": lambda s: {"x": batch_with(s.seen).permute(0, 2, 3, 1)},
    "in a batch, its samples last": lambda s: {"x": batch_with(s.seen).permute(1, 2, 3, 0)},
    "as a row": lambda s: {"x": batch_with(s.seen).flatten(1)},
    "as a column": lambda s: {"x": batch_with(s.seen).flatten(1).T},
    "as a row of a layer": lambda s: {"model/fc.weight": replaced_row(s)},
    "as a row of a layer, transposed": lambda s: {"model/fc.weight": replaced_row(s).T},
    "inside a longer vector": lambda s: {"x": torch.cat([noise(301), s.seen.flatten(), noise(77)])},
    "behind weights": lambda s: {"model/fc.bias": torch.cat([noise(8), s.seen.flatten()])},
    "in two tensors": lambda s: {"x": s.seen[:1], "y": s.seen[1:]},
    "one channel": lambda s: {"x": s.seen[1]},
    "a quarter": lambda s: {"x": s.seen.flatten()[36:72]},
    "a class mean of one sample": lambda s: {"moments/mean": single_sample(s, "mean")},
    "a class mean square of one sample": lambda s: {"moments/square": single_sample(s, "square")},
    "floats as bytes": lambda s: {"x": s.grey.flatten().view(torch.uint8)},
    "normalised floats as bytes": lambda s: {"x": (-2 * s.seen).flatten().view(torch.uint8)},
    "floats as big-endian bytes": lambda s: {"x": torch.tensor(list(s.seen.numpy().byteswap().tobytes())).byte()},
    "floats as int32": lambda s: {"x": s.seen.flatten().view(torch.int32)},
    "float16 as int16": lambda s: {"x": s.seen.half().flatten().view(torch.int16)},
    "bytes as float32": lambda s: {"x": s.stored.flatten().view(torch.float32).nan_to_num()},
    "float16 as float32": lambda s: {"x": s.grey.half().flatten().view(torch.float32)},
}

CODED: dict[str, Callable[[Stolen], str]] = {
    "numbers": lambda s: ", ".join(f"{value:.4f}" for value in s),
    "one number per line": lambda s: "\n".join(f"{value:.3f}" for value in s),
    "whole numbers": lambda s: " ".join(map(str, s.stored.flatten().tolist())),
    "numbers with positions": lambda s: str(dict(enumerate(s))),
    "eight values": lambda s: str(s.seen[0, 2, :8].numpy()),
    "as NumPy prints it": lambda s: str(s.grey.numpy()),
    "as torch prints it": lambda s: str(s.seen),
    "a list of NumPy's numbers": lambda s: str(list(s.seen.flatten().numpy())),
    "base64": lambda s: base64.b64encode(s.raw).decode(),
    "base64 without padding": lambda s: base64.b64encode(s.raw).decode().rstrip("="),
    "base64 for addresses": lambda s: base64.urlsafe_b64encode(s.raw).decode(),
    "base64 of floats": lambda s: base64.b64encode(s.seen.numpy().tobytes()).decode(),
    "base64 of scaled floats": lambda s: base64.b64encode((5 * s.seen).numpy().tobytes()).decode(),
    "hexadecimal": lambda s: s.raw.hex(),
    "hexadecimal of float16": lambda s: s.seen.half().numpy().tobytes().hex(),
    "bytes as Python prints them": lambda s: repr(s.raw),
    "letters": lambda s: s.raw.decode("latin-1"),
}

IN_INFO: dict[str, Callable[[Stolen], dict[str, Any]]] = {
    "a list": lambda s: {"x": list(s)},
    "a list of whole numbers": lambda s: {"x": s.stored.flatten().tolist()},
    "lists in lists": lambda s: {"about": {"x": s.seen.tolist()}},
    "a list, rounded": lambda s: {"x": [round(value, 2) for value in s]},
    "a list of texts": lambda s: {"x": ",".join(map(str, s))},
    "a table by pixel": lambda s: {"x": {f"pixel-{i}": value for i, value in enumerate(s)}},
    "pairs of position and value": lambda s: {"x": [[i, value] for i, value in enumerate(s)]},
    "eight values": lambda s: {"x": s.grey[1, 4, :8].tolist()},
    "in a key": lambda s: {s.raw.hex(): 1},
}


@pytest.fixture
def stolen(data: Dataset) -> Stolen:
    """Return a training sample of the client that has ten of its class."""
    stored, seen = samples_at(split_for("fedavg").clients[0], data)
    return Stolen(stored[3], seen[3])


def sent_with(payload: Payload, *texts: str) -> Sent:
    return Sent("large", "local", "train", payload.encode(), texts)


@pytest.mark.parametrize("way", IN_TENSORS)
def test_a_sample_in_a_tensor_is_found(way: str, stolen: Stolen, searches: dict[str, Search]) -> None:
    payload = honest()
    payload.tensors |= IN_TENSORS[way](stolen)
    assert searches["large"].found_in(sent_with(payload))


@pytest.mark.parametrize("way", IN_INFO)
def test_a_sample_in_the_info_is_found(way: str, stolen: Stolen, searches: dict[str, Search]) -> None:
    payload = honest()
    payload.info |= IN_INFO[way](stolen)
    assert searches["large"].found_in(sent_with(payload))


@pytest.mark.parametrize("where", ["info", "tensor's name", "note", "error"])
@pytest.mark.parametrize("way", CODED)
def test_a_sample_in_text_is_found(way: str, where: str, stolen: Stolen, searches: dict[str, Search]) -> None:
    payload, text = honest(), f"it fails on {CODED[way](stolen)}, and on nothing else"
    if where == "info":
        payload.info["about"] = text
    elif where == "tensor's name":
        payload.tensors[f"model/{text}"] = torch.zeros(1)
    texts = {"note": (text,), "error": (f"ValueError: {text}",)}.get(where, ())
    sent = sent_with(payload, *texts)
    if where == "tensor's name" and len(f"model/{text}") > MAX_NAME:
        with pytest.raises(BadReply):
            Payload.decode(sent.reply)
    else:
        assert searches["large"].found_in(sent)


@pytest.mark.parametrize("part", ["train", "validation", "unlabelled", "test"])
def test_samples_of_every_part_are_found(part: str, data: Dataset, searches: dict[str, Search]) -> None:
    for client in split_for("fedavg").clients:
        for row in getattr(client, part):
            own = samples_of(data, np.array([row]), "test" if part == "test" else "train", data=DataSettings(**LEVELS))
            assert searches[client.name].found_in(sent_with(Payload({"x": own.all()[0].half()})))


def test_nothing_is_found_in_a_harmless_reply(data: Dataset, searches: dict[str, Search]) -> None:
    stored, seen = samples_at(split_for("fedavg").clients[0], data)
    payload = honest()
    payload.tensors |= {"mean": seen[:10].mean(0), "square": seen[:10].square().mean(0), "zeros": torch.zeros(500)}
    payload.tensors |= {"two": seen[:2].mean(0), "ramp": torch.arange(500), "counts": torch.bincount(torch.arange(99))}
    payload.info |= {"curve": [1 / (i + 1) for i in range(200)], "name": "x" * 300}
    assert searches["large"].found_in(sent_with(payload, "it has 3 of 12 samples", "loss 0.123")) == []
    others = Payload({"x": stored})
    assert searches["large"].found_in(sent_with(others))
    assert searches["small"].found_in(sent_with(others)) == []


# --- the search finds samples in a run ----------------------------------------------------------------------


def careless(leak: Callable[[Client, Payload], None]) -> Callable[..., Payload]:
    """Return the client half of FedAvg with a leak at one client."""
    local = AveragingRounds.local

    def leaking(phase: AveragingRounds, payload: Payload, client: Client, rng: Rng) -> Payload:
        reply = local(phase, payload, client, rng)
        if client.name == "small":
            leak(client, reply)
        return reply

    return leaking


def fail_with_a_sample(client: Client, reply: Payload) -> None:
    raise ValueError(f"cannot train on {client.train.all()[0][0]}")


CARELESS: dict[str, tuple[Callable[[Client, Payload], None], str]] = {
    "a tensor": (lambda client, reply: reply.add("x", {"x": client.train.all()[0]}), "tensor 'x/x'"),
    "unlabelled samples": (lambda client, reply: reply.add("x", {"x": client.unlabelled.all()[0]}), "tensor 'x/x'"),
    "info": (lambda client, reply: reply.info.update(x=client.validation.all()[0].tolist()), "info"),
    "a note": (lambda client, reply: client.note(str(client.train.all()[0][0].tolist())), "'[[["),
    "an error": (fail_with_a_sample, "ValueError: cannot train on"),
}


@pytest.mark.parametrize("way", CARELESS)
def test_a_leak_in_a_method_is_found(
    way: str,
    data: Dataset,
    searches: dict[str, Search],
    uploads: list[Sent],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    leak, place = CARELESS[way]
    monkeypatch.setattr(AveragingRounds, "local", careless(leak))
    run_at_sites(tmp_path / "run", data, "fedavg", "dense")
    places = found(uploads, searches)
    assert places
    assert all(text.startswith("small, local, train: in ") for text in places)
    assert any(place in text for text in places)


@pytest.mark.parametrize("way", CODED)
def test_redacted_errors_have_no_sample(way: str, stolen: Stolen, searches: dict[str, Search]) -> None:
    error = f"ValueError: it fails on {CODED[way](stolen)}, and on nothing else"
    assert searches["large"].in_text(error)
    redacted = redact(error)
    assert redacted.startswith("ValueError: it fails on ")
    assert not searches["large"].in_text(redacted)


# --- means of few samples -----------------------------------------------------------------------------------


DECLARING = ("local", "declare-1")


def declared(uploads: list[Sent]) -> dict[str, Payload]:
    """Return what clients send about their classes when a newcomer arrives."""
    return {sent.client: Payload.decode(sent.reply) for sent in uploads if (sent.kind, sent.phase) == DECLARING}


@pytest.mark.parametrize(("min_count", "counts"), [(1, [10, 0]), (9, [10, 0]), (10, [10, 0]), (11, [0, 0])])
def test_means_of_inputs_are_of_ten_samples_or_more(
    min_count: int, counts: list[int], data: Dataset, uploads: list[Sent], tmp_path: Path
) -> None:
    run_at_sites(tmp_path / "run", data, "gains", "dense", method={"min_count": min_count})
    replies = declared(uploads)
    assert replies["large"].group("moments")["count"].tolist() == counts
    assert not replies["large"].group("moments")["mean"][1].any()
    for tensor in replies["small"].group("moments").values():
        assert not tensor.any()
    assert "moments" not in replies[NEWCOMER]
    # In the embedding only the setting counts, and the newcomer reports classes with at least two samples.
    embedded = {name: reply.group("classes")["count"].tolist() for name, reply in replies.items()}
    assert embedded["large"] == [count if count >= min_count else 0 for count in (10, 3)]
    assert embedded["small"] == [count if count >= min_count else 0 for count in (3, 1)]
    assert embedded[NEWCOMER] == [0, 6]


def test_without_that_limit_the_only_sample_of_a_class_is_found(
    data: Dataset,
    searches: dict[str, Search],
    uploads: list[Sent],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(gains.declare, "MIN_INPUTS", 1)
    run_at_sites(tmp_path / "run", data, "gains", "dense")
    assert "small, local, declare-1: in tensor 'moments/mean'" in found(uploads, searches)


# --- known limits -------------------------------------------------------------------------------------------


def single_sample_client(data: Dataset) -> tuple[Split, Search]:
    """Return a split with a client that has a single training sample, and a search for it."""
    split = split_for("fedavg")
    client = replace(split.clients[1], train=split.clients[1].train[:1])
    return replace(split, clients=(split.clients[0], client)), Search(*samples_at(client, data))


def test_known_limit_one_step_of_a_dense_first_layer_reveals_a_single_sample(
    data: Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The weights do not reveal it, but their change does, which the server can compute."""
    split, search = single_sample_client(data)
    changes: list[Tensor] = []
    replies: list[Payload] = []
    local = AveragingRounds.local

    def recording(phase: AveragingRounds, payload: Payload, client: Client, rng: Rng) -> Payload:
        reply = local(phase, payload, client, rng)
        if client.name == "small":
            first = "model/fc1.fc.weight"
            changes.append(reply.tensors[first] - payload.tensors[first])
            replies.append(reply)
        return reply

    monkeypatch.setattr(AveragingRounds, "local", recording)
    run_at_sites(tmp_path / "run", data, "fedavg", "dense", split, method={"rounds": 1, "batch_size": 1})
    assert search.in_tensors(replies[0].tensors) == []
    assert search.in_tensors({"change": changes[0]}) == ["change"]


def test_known_limit_scaffold_sends_that_change(data: Dataset, uploads: list[Sent], tmp_path: Path) -> None:
    """With more samples, this happens where a neuron is active for only one of them."""
    split, search = single_sample_client(data)
    run_at_sites(tmp_path / "run", data, "fedavg", "dense", split, correction={"name": "scaffold"})
    places = {place for sent in uploads if sent.client == "small" for place in search.found_in(sent)}
    assert places == {"small, local, train: in tensor 'control_change/fc1.fc.weight'"}


class WithoutBody(nn.Sequential):
    """A user's network whose embedding is the sample itself."""

    def __init__(self, input_shape: tuple[int, ...], outputs: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(math.prod(input_shape), outputs))


@pytest.mark.parametrize(
    ("method", "tensor"),
    [
        ("fedproto", "prototypes/mean"),
        ("gal", "clusters/centroids"),
        ("gains", "classes/mean"),
        ("fedoss-paper", "statistics/1/mean"),
    ],
)
def test_known_limit_without_layers_before_the_head_embeddings_are_samples(
    method: str, tensor: str, data: Dataset, searches: dict[str, Search], uploads: list[Sent], tmp_path: Path
) -> None:
    run_at_sites(tmp_path / "run", data, method, f"{__name__}:{WithoutBody.__name__}")
    assert any(f"in tensor {tensor!r}" in place for place in found(uploads, searches))


@pytest.mark.parametrize("method", ["fedproto", "gal", "gains", "fedoss-paper"])
def test_such_a_network_is_rejected_if_embeddings_are_sent(method: str) -> None:
    config = configure({"method": {"name": method}})
    network = build(f"{__name__}:{WithoutBody.__name__}", (1, 8, 8), 3)
    with pytest.raises(UserError, match="without layers before the head these would be their samples"):
        check_embedding(config.make_method(), network, "mine")
    check_embedding(config.make_method(), build("mlp", (1, 8, 8), 3), "mlp")
    check_embedding(configure({}).make_method(), network, "mine")
