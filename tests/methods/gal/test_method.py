"""GAL: what is found, what grows, what stays as it is, what odd federations do, and what is refused."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedwild import api
from fedwild.core.classes import ClassRegistry
from fedwild.data import ClientSplit, Dataset, Split
from fedwild.data.samples import samples_of
from fedwild.discovery import ESTIMATORS
from fedwild.methods.gal.learning import NovelTargets
from fedwild.methods.gal.novelty import BINS, accepting, histogram, likeness, separating
from fedwild.methods.gal.replies import check_clusters, check_cosines, check_margins
from fedwild.contract.engine import Job
from fedwild.engines.executor import Executor
from fedwild.core.errors import BadReply, UserError
from fedwild.lifecycle.rounds import Federation as Running
from fedwild.methods.gal.method import GAL, NovelModel, labelled
from fedwild.models import build
from fedwild.openset import SCORES, Score
from fedwild.core.payload import Payload
from fedwild.contract import Outcome, Phase, Prediction, Replies, Server, Step
from fedwild.core.rng import Rng
from fedwild.runs.events import read_events
from fedwild.runs.folder import RunFolder
from tests.tiny import model_bytes, run_tiny, tiny_dataset, tiny_experiment

KNOWN, NOVEL, WIDTH = 3, 2, 8
SETTINGS: dict[str, Any] = {
    "rounds": 2,
    "epochs": 1,
    "batch_size": 8,
    "optimizer": "sgd",
    "lr": 0.05,
    "momentum": 0.5,
    "weight_decay": 0.0,
    "stages": 1,
    "novel_rounds": 2,
    "min_count": 1,
    "min_known_count": 1,
    # All that clients hold without labels is novel, whatever the network makes of it.
    "novelty": "fixed",
    "r": 1.0,
    "accept": 0.95,
    "init": "prototypes",
    "rows": "scaled",
    "loss": "swl",
    "rehearse": False,
    "prototypes": "frozen",
    "temperature": 0.07,
    "normalised": True,
    "against_forgetting": "ema",
    "beta": 0.5,
    "pseudo_labels": False,
    "keep_known": 0.0,
}
"""All of GAL's settings, so that its defaults may change; the ones that differ in a test are named there."""
PARTS: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [16, WIDTH]},
    "estimator": {"name": "given", "classes": 2},
    "objective": {"name": "prototype-contrast", "eta": 0.1, "temperature": 0.07, "balanced": True},
}
NORMS = {"model": {"name": "digit-cnn", "width": 0.1}}


@pytest.fixture(scope="module")
def data() -> Dataset:
    """Three classes to be known, two to be found, one that stays unknown."""
    return tiny_dataset(classes=KNOWN + NOVEL, per_class=24)


def dealt(
    data: Dataset,
    clients: int = 3,
    stages: tuple[int, ...] = (),
    pools: list[list[int]] | None = None,
    validation: bool = True,
    novel: int = NOVEL,
) -> Split:
    """Known samples dealt in order and, unless `pools` are given, all novel ones in turn."""
    y = data.y_train.numpy()
    rows = np.nonzero((y >= KNOWN) & (y < KNOWN + novel))[0]
    test = np.arange(len(data.y_test))
    found = []
    for i, mine in enumerate(np.array_split(np.nonzero(y < KNOWN)[0], clients)):
        held = mine[3::4] if validation else mine[:0]
        pool = np.array(pools[i] if pools is not None else rows[i::clients], dtype=np.int64)
        name = f"client-{i:02d}"
        found.append(ClientSplit(name, np.setdiff1d(mine, held), held, np.sort(pool), test, data.classes[:KNOWN]))
    roles = data.classes[:KNOWN], data.classes[KNOWN : KNOWN + novel], data.classes[KNOWN + novel :]
    return Split(tuple(found), *roles, test, np.zeros(0, dtype=np.int64), "train", stages)


def tables(parts: dict[str, Any] | None = None, **method: Any) -> dict[str, Any]:
    """All settings, with some of the method's own changed, and other sections."""
    return {**PARTS, **(parts or {}), "method": {**SETTINGS, **method}}


def run(
    folder: Path, data: Dataset, split: Split | None = None, parts: dict[str, Any] | None = None, **method: Any
) -> Payload:
    """Run to the end; no client may fail. Returns the final server."""
    settings = tables(parts, **method)
    run_tiny(folder, "gal", data, dealt(data) if split is None else split, settings)
    assert not [event for event in read_events(folder / "events.jsonl") if event["event"] == "client-failed"]
    return final(folder)


def final(folder: Path) -> Payload:
    return Payload.read(folder / "model.safetensors")


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_events(folder / "events.jsonl") if event["event"] == kind]


def notes(folder: Path) -> list[str]:
    return [event["text"] for event in events(folder, "note")]


def extractor(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in weights.items() if not name.startswith("head.")}


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


class Federation:
    """A federation by hand, led through its rounds one by one."""

    def __init__(self, data: Dataset, split: Split, folder: Path, settings: dict[str, Any]) -> None:
        experiment = tiny_experiment("gal", data, split, settings)
        assert isinstance(experiment.method, GAL)
        self.method: GAL = experiment.method
        self.names = [client.name for client in split.clients]
        registry = ClassRegistry.of(split.known)
        self.server = Server(experiment.task, registry, Step("known", 0, 0), Rng(0), tuple(self.names))
        self.method.start(self.server)
        self.executor = Executor(data, split, experiment.config.data, self.method, experiment.task, 0, folder, folder)
        self.index = 0

    def client(self, name: str) -> Any:
        return self.executor.client(Job("local", self.server.step, "", name, self.server.classes.names))

    def at(self, phase: str, round_: int = 0) -> Federation:
        """Go to a round."""
        self.index += 1
        self.server.step = Step(phase, round_, self.index)
        self.server.rng = Rng(0).child(phase, round_, "server")
        return self

    def replies(self) -> dict[str, Payload]:
        found = {}
        for name in self.names:
            rng = Rng(0).child(self.server.step.phase, self.server.step.round, "client", name)
            reply = self.method.local(self.method.send(self.server, name), self.client(name), rng)
            found[name] = Payload.decode(reply.encode())
            self.method.check(self.server, found[name])
        return found

    def merge(self, replies: dict[str, Payload] | None = None) -> None:
        made = self.replies() if replies is None else replies
        self.method.merge(self.server, Replies({name: lambda reply=reply: reply for name, reply in made.items()}))


def federation(data: Dataset, folder: Path, split: Split | None = None, **method: Any) -> Federation:
    """Before its clients describe what they know."""
    led = Federation(data, dealt(data) if split is None else split, folder, tables(**method))
    led.merge()
    return led.at("describe")


# --- phases ---------------------------------------------------------------------------------------------------


def test_phases_follow_the_settings(data: Dataset) -> None:
    method = tiny_experiment("gal", data, dealt(data), tables(rounds=4, stages=2, novel_rounds=3)).method
    assert method.phases() == [
        Phase("known", 4),
        Phase("describe", 1),
        Phase("discover-1", 1),
        Phase("novel-1", 3),
        Phase("describe", 1),
        Phase("discover-2", 1),
        Phase("novel-2", 3),
        Phase("describe", 1),
    ]
    assert [Step(f"discover-{n}", 0, 0).stage for n in (1, 2, 12)] == [1, 2, 12]


def test_phases_come_in_order_and_everybody_has_a_say_between_the_rounds_of_training(
    data: Dataset, tmp_path: Path
) -> None:
    run(tmp_path / "run", data, parts={"federation": {"participation": 0.3}})
    rounds = events(tmp_path / "run", "round")
    phases = ["known", "known", "describe", "discover-1", "novel-1", "novel-1", "describe"]
    assert [event["phase"] for event in rounds] == phases
    assert [len(event["participants"]) for event in rounds] == [1, 1, 3, 3, 1, 1, 3]


# --- discovery ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [1, 2, 4])
def test_the_head_grows_by_the_estimated_number(classes: int, data: Dataset, tmp_path: Path) -> None:
    server = run(tmp_path / "run", data, parts={"estimator": {"name": "given", "classes": classes}})
    assert server.group("model")["head.weight"].shape == (KNOWN + classes, WIDTH)
    assert [entry["name"] for entry in server.info["classes"][KNOWN:]] == [f"novel-{i + 1}" for i in range(classes)]
    assert server.info["state"]["estimates"][0]["number"] == classes
    assert "head.bias" not in server.group("model")
    words = "1 novel class (" if classes == 1 else f"{classes} novel classes ("
    assert words in " ".join(notes(tmp_path / "run"))


def test_the_registry_tells_when_and_in_whose_samples_a_class_was_found(data: Dataset, tmp_path: Path) -> None:
    split = dealt(data)
    entries = run(tmp_path / "run", data, split).info["classes"]
    assert all((entry["stage"], entry["samples"], entry["origin"]) == (0, {}, "known") for entry in entries[:KNOWN])
    discovered = events(tmp_path / "run", "round")[3]
    for entry in entries[KNOWN:]:
        assert (entry["origin"], entry["stage"], entry["since"]) == ("novel", 1, discovered["index"])
        assert all(count > 0 for count in entry["samples"].values())
    for client in split.clients:
        found = sum(entry["samples"].get(client.name, 0) for entry in entries)
        assert found == len(client.unlabelled) == 16


def test_small_clusters_stay_at_the_client(data: Dataset, tmp_path: Path) -> None:
    found = {}
    for least in (1, 5, 1000):
        led = federation(data, tmp_path, min_count=least, clusters=6)
        led.merge()
        replies = led.at("discover-1").replies()
        counts = [count for reply in replies.values() for count in reply.group("clusters")["counts"].tolist()]
        assert all(count >= least for count in counts)
        assert all(reply.info["samples"] == reply.info["pool"] == 16 for reply in replies.values())
        found[least] = sum(counts)
    assert found[1] == 48 > found[5] > found[1000] == 0


def test_small_clusters_of_validation_samples_stay_at_the_client_if_told_so(data: Dataset, tmp_path: Path) -> None:
    found = {}
    for least in (1, 3, 7):
        replies = federation(data, tmp_path, clusters=4, min_known_count=least).replies()
        for reply in replies.values():
            group = reply.group("clusters")
            assert all(count >= least for count in group["counts"].tolist())
            assert torch.equal(group["labels"].sum(1), group["counts"])
            assert reply.info["samples"] == 6
        found[least] = sum(int(reply.group("clusters")["counts"].sum()) for reply in replies.values())
    assert found[1] == 18 >= found[3] > found[7] == 0


def test_what_a_client_tells_are_means_of_its_novel_samples_embeddings(data: Dataset, tmp_path: Path) -> None:
    led = federation(data, tmp_path)
    led.merge()
    cosines = likeness(*embedded(led, data, "client-01"))
    led.server.state.info["novelty"] = float(cosines.sort().values[9])
    reply = led.at("discover-1").replies()["client-01"]
    z, _ = embedded(led, data, "client-01")
    assert reply.info["samples"] == 9
    group = reply.group("clusters")
    assert len(group["counts"]) == KNOWN
    mean = (group["centroids"] * group["counts"][:, None]).sum(0) / 9
    assert torch.allclose(mean, z[cosines < led.server.state.info["novelty"]].mean(0), atol=1e-5)


def embedded(led: Federation, data: Dataset, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Embeddings of a client's unlabelled samples, and the rows of the head."""
    weights = led.server.state.group("model")
    model = led.server.task.network(weights, len(weights["head.weight"]), bias=False, slot="by hand").eval()
    split = next(client for client in led.executor.split.clients if client.name == name)
    with torch.no_grad():
        return model.embed(samples_of(data, split.unlabelled).all()[0]), weights["head.weight"]


@pytest.mark.parametrize("novelty", ["separate", "accept", "fixed"])
def test_the_novelty_threshold_comes_from_all_clients_histograms(novelty: str, data: Dataset, tmp_path: Path) -> None:
    led = federation(data, tmp_path, novelty=novelty, accept=0.8, r=0.37)
    weights = led.server.state.group("model")
    model = led.server.task.network(weights, KNOWN, bias=False, slot="by hand").eval()
    known, pool = torch.zeros(BINS), torch.zeros(BINS)
    for client in led.executor.split.clients:
        for part, counts in ((client.validation, known), (client.unlabelled, pool)):
            with torch.no_grad():
                z = model.embed(samples_of(data, part).all()[0])
            counts += histogram(likeness(z, weights["head.weight"]))
    led.merge()
    found = led.server.state.info["novelty"]
    histograms = known.double().numpy(), pool.double().numpy()
    expected = {"fixed": 0.37, "accept": accepting(histograms[0], 0.8), "separate": separating(*histograms, 0.8)}
    assert found == pytest.approx(expected[novelty])


def test_clients_tell_of_validation_samples_only_clusters_with_their_labels(data: Dataset, tmp_path: Path) -> None:
    led = federation(data, tmp_path, clusters=4)
    reply = led.replies()["client-02"]
    client = led.executor.split.clients[2]
    labels = reply.group("clusters")["labels"]
    assert set(reply.tensors) == {
        "cosines/known",
        "cosines/pool",
        "clusters/centroids",
        "clusters/counts",
        "clusters/labels",
    }
    assert reply.info == {"samples": len(client.validation)}
    assert labels.sum(0).tolist() == np.bincount(data.y_train.numpy()[client.validation], minlength=KNOWN).tolist()
    assert torch.equal(labels.sum(1), reply.group("clusters")["counts"])


def test_first_rows_of_novel_classes_are_prototypes_scaled_or_raw_or_random(data: Dataset, tmp_path: Path) -> None:
    heads = {}
    for name, choice in {"scaled": {}, "raw": {"rows": "raw"}, "random": {"init": "random"}}.items():
        server = run(tmp_path / name, data, novel_rounds=0, **choice)
        heads[name] = server.group("model")["head.weight"]
        prototypes = server.group("found")["prototypes"]
        assert torch.equal(heads[name][:KNOWN], server.group("anchor")["head.weight"])
        assert equal(extractor(server.group("model")), extractor(server.group("anchor")))
    length = heads["raw"][:KNOWN].norm(dim=1).mean()
    assert torch.equal(heads["raw"][KNOWN:], prototypes)
    assert torch.allclose(heads["scaled"][KNOWN:], prototypes * length / prototypes.norm(dim=1, keepdim=True))
    assert torch.allclose(heads["random"][KNOWN:].norm(dim=1), length.expand(2))
    assert not torch.allclose(heads["random"][KNOWN:], heads["scaled"][KNOWN:], atol=0.01)


def test_names_count_on_from_stage_to_stage_and_each_stage_has_its_own_samples(data: Dataset, tmp_path: Path) -> None:
    split = dealt(data, stages=(1, 1))
    server = run(tmp_path / "run", data, split, stages=2)
    novel = server.info["classes"][KNOWN:]
    assert [(entry["name"], entry["stage"]) for entry in novel] == [
        ("novel-1", 1),
        ("novel-2", 1),
        ("novel-3", 2),
        ("novel-4", 2),
    ]
    for stage in (1, 2):
        held = sum(len(split.unlabelled_in(client, stage, data)) for client in split.clients)
        assert sum(sum(entry["samples"].values()) for entry in novel if entry["stage"] == stage) == held == 24
    assert server.group("model")["head.weight"].shape == (7, WIDTH)
    # What the first stage found is known to the second.
    assert server.group("anchor")["head.weight"].shape == (5, WIDTH)
    assert server.group("origin")["head.weight"].shape == (3, WIDTH)
    assert torch.equal(server.group("model")["head.weight"][:5], server.group("anchor")["head.weight"])
    found = [event["info"]["samples"] for event in events(tmp_path / "run", "client") if "novel-2" in event["phase"]]
    assert found == [8] * 6


def test_a_client_that_comes_to_discover_takes_part_from_there(data: Dataset, tmp_path: Path) -> None:
    late = {"federation": {"arrivals": {"client-02": "discover-1"}}}
    server = run(tmp_path / "run", data, parts=late)
    here = [(event["phase"], "client-02" in event["participants"]) for event in events(tmp_path / "run", "round")]
    assert here == [
        *[("known", False), ("known", False), ("describe", False)],
        *[("discover-1", True), ("novel-1", True), ("novel-1", True), ("describe", True)],
    ]
    assert sum(entry["samples"].get("client-02", 0) for entry in server.info["classes"]) == 16


def test_a_client_that_missed_the_discovery_learns_with_the_others(data: Dataset, tmp_path: Path) -> None:
    server = run(tmp_path / "run", data, parts={"federation": {"arrivals": {"client-02": "novel-1"}}})
    assert all("client-02" not in entry["samples"] for entry in server.info["classes"])
    infos = [event["info"] for event in events(tmp_path / "run", "client") if event["phase"] == "novel-1"]
    assert [info["samples"] for info in infos] == [16] * 6


# --- what stays as it is --------------------------------------------------------------------------------------


@pytest.mark.parametrize("correction", ["none", "prox", "scaffold", "moon"])
@pytest.mark.parametrize("against_forgetting", ["ema", "distillation", "nothing"])
def test_known_rows_stay_bit_equal_through_stage_u(
    against_forgetting: str, correction: str, data: Dataset, tmp_path: Path
) -> None:
    server = run(
        tmp_path / "run",
        data,
        parts={"correction": {"name": correction}},
        against_forgetting=against_forgetting,
        # Known rows have gradients by then, and weight decay to move them.
        prototypes="learnt",
        weight_decay=0.1,
        pseudo_labels=True,
        r=0.79,
    )
    found = sum(e["info"]["samples"] for e in events(tmp_path / "run", "client") if e["phase"] == "discover-1")
    assert 0 < found < 48
    head, before = server.group("model")["head.weight"], server.group("anchor")["head.weight"]
    assert torch.equal(head[:KNOWN], before)
    assert not equal(extractor(server.group("model")), extractor(server.group("anchor")))


@pytest.mark.parametrize("loss", ["labels", "bce"])
def test_known_rows_stay_with_every_loss_and_learn_on_only_in_rehearsal(
    loss: str, data: Dataset, tmp_path: Path
) -> None:
    for rehearse in (False, True):
        server = run(tmp_path / str(rehearse), data, loss=loss, rehearse=rehearse)
        same = torch.equal(server.group("model")["head.weight"][:KNOWN], server.group("anchor")["head.weight"])
        assert same is not rehearse


@pytest.mark.parametrize("model", [{}, NORMS], ids=["plain", "norms"])
def test_with_beta_1_the_extractor_is_the_anchor_bit_for_bit(
    model: dict[str, Any], data: Dataset, tmp_path: Path
) -> None:
    server = run(tmp_path / "run", data, parts=model, beta=1.0, loss="labels")
    assert equal(extractor(server.group("model")), extractor(server.group("anchor")))
    # Novel rows are no part of the extractor: they have learnt.
    start = run(tmp_path / "start", data, parts=model, beta=1.0, loss="labels", novel_rounds=0)
    assert not torch.equal(server.group("model")["head.weight"][KNOWN:], start.group("model")["head.weight"][KNOWN:])


@pytest.mark.parametrize("model", [{}, NORMS], ids=["plain", "norms"])
def test_the_moving_average_is_that_of_anchor_and_the_mean_of_what_clients_trained(
    model: dict[str, Any], data: Dataset, tmp_path: Path
) -> None:
    beta = 0.7
    plain = run(tmp_path / "plain", data, parts=model, against_forgetting="nothing", novel_rounds=1)
    ema = run(tmp_path / "ema", data, parts=model, against_forgetting="ema", beta=beta, novel_rounds=1)
    anchor, trained, found = plain.group("anchor"), plain.group("model"), ema.group("model")
    assert equal(anchor, ema.group("anchor"))
    for name, tensor in extractor(found).items():
        if tensor.is_floating_point():
            expected = beta * anchor[name].double() + (1 - beta) * trained[name].double()
            assert torch.allclose(tensor.double(), expected, atol=1e-6)
    assert not torch.allclose(trained["fc1.fc.weight"], anchor["fc1.fc.weight"], atol=1e-4)
    assert torch.equal(found["head.weight"], trained["head.weight"])


def test_pseudo_labelled_and_rehearsed_samples_are_trained_on_beside_novel_ones(data: Dataset, tmp_path: Path) -> None:
    choices: dict[str, dict[str, Any]] = {
        "novel": {},
        "pseudo": {"pseudo_labels": True},
        "rehearsed": {"rehearse": True},
        "both": {"pseudo_labels": True, "rehearse": True},
    }
    counts = {}
    for name, choice in choices.items():
        led = federation(data, tmp_path, **choice)
        led.merge()
        z, rows = embedded(led, data, "client-00")
        led.server.state.info["novelty"] = float(likeness(z, rows).sort().values[6])
        led.at("discover-1").merge()
        counts[name] = led.at("novel-1").replies()["client-00"].info["samples"]
    # Six of sixteen are novel; 18 of 24 labelled ones are for training.
    assert counts == {"novel": 6, "pseudo": 16, "rehearsed": 24, "both": 34}


def test_novel_samples_are_labelled_by_the_nearest_prototype_and_others_by_what_they_look_like(
    data: Dataset, tmp_path: Path
) -> None:
    led = federation(data, tmp_path, loss="labels", pseudo_labels=True)
    led.merge()
    z, rows = embedded(led, data, "client-00")
    cosines = likeness(z, rows)
    led.server.state.info["novelty"] = novelty = float(cosines.sort().values[8])
    led.at("discover-1").merge()
    client = led.at("novel-1").client("client-00")
    prototypes = led.server.state.group("found")["prototypes"]
    weights = led.server.state.group("anchor")
    before = led.server.task.network(weights, KNOWN, bias=False, slot="anchor").eval()
    targets = NovelTargets(KNOWN, prototypes, torch.ones(2))
    view = led.method.stage_samples(before, targets, client, novelty)
    expected = []
    for row, cosine in zip(z, cosines, strict=True):
        if cosine < novelty:
            alike = torch.nn.functional.cosine_similarity(row[None], prototypes)
            expected.append(KNOWN + int(alike.argmax()))
        else:
            expected.append(int((rows @ row).argmax()))
    assert view.y.tolist() == expected
    assert set(expected) & {KNOWN, KNOWN + 1}
    assert set(expected) & {0, 1, 2}


# --- odd federations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("why", ["nobody holds any", "none looks novel", "no cluster is large enough"])
def test_where_nothing_is_new_learning_is_skipped_and_the_run_ends(why: str, data: Dataset, tmp_path: Path) -> None:
    split = dealt(data, pools=[[], [], []]) if why == "nobody holds any" else dealt(data)
    choice = {"none looks novel": {"r": -1.0}, "no cluster is large enough": {"min_count": 1000}}.get(why, {})
    server = run(tmp_path / "run", data, split, **choice)
    assert any(note.startswith("nothing new") for note in notes(tmp_path / "run"))
    assert [event["phase"] for event in events(tmp_path / "run", "skip")] == ["novel-1", "novel-1"]
    assert [entry["name"] for entry in server.info["classes"]] == list(data.classes[:KNOWN])
    metrics = api.Run(tmp_path / "run").metrics
    assert (metrics["number_found"], metrics["number_true"]) == (0.0, 2.0)
    assert metrics["novel_accuracy"] == 0.0
    assert metrics["known_accuracy"] == metrics["known_accuracy_told"] == metrics["closed_accuracy"]
    assert metrics["forgetting"] == 0.0
    answers = predictor_of(tmp_path / "run", data, split).predict(samples_of(data, split.test, "test").all()[0])
    assert answers.logits.shape == (len(split.test), KNOWN)


def predictor_of(folder: Path, data: Dataset, split: Split, **method: Any) -> Any:
    experiment = tiny_experiment("gal", data, split, tables(**method))
    return experiment.method.predictor(Server.from_payload(final(folder), experiment.task, Rng(0)))


def test_a_client_without_unlabelled_samples_says_so_and_goes_on(data: Dataset, tmp_path: Path) -> None:
    rows = [i for i, label in enumerate(data.y_train.tolist()) if KNOWN <= label < KNOWN + NOVEL]
    run(tmp_path / "run", data, dealt(data, pools=[rows, [], rows[:1]]))
    told = {event["client"]: event.get("notes", []) for event in events(tmp_path / "run", "client")[9:12]}
    assert told == {"client-00": [], "client-01": ["it has no unlabelled samples"], "client-02": []}


POOLS: dict[str, list[list[int]]] = {
    "fewer samples than clusters": [[3], [4], [9, 10]],
    "one sample in all": [[3], [], []],
    "only known samples": [[0, 1], [2, 6, 7], [8, 12]],
}


@pytest.mark.parametrize("estimator", ESTIMATORS.names())
@pytest.mark.parametrize("odd", POOLS)
def test_odd_pools_run_to_the_end(odd: str, estimator: str, data: Dataset, tmp_path: Path) -> None:
    part = {"name": estimator, **({"epochs": 3} if estimator == "macc-pim" else {})}
    server = run(tmp_path / "run", data, dealt(data, pools=POOLS[odd]), parts={"estimator": part})
    assert server.info["state"]["estimates"][0]["number"] >= 1
    assert all(torch.isfinite(tensor).all() for tensor in server.group("model").values())


@pytest.mark.parametrize("settings", [{"loss": "swl"}, {"loss": "bce"}, {"loss": "labels", "rehearse": True}], ids=str)
@pytest.mark.parametrize("model", [{}, NORMS], ids=["plain", "norms"])
def test_one_client_alone_discovers_and_learns(
    model: dict[str, Any], settings: dict[str, Any], data: Dataset, tmp_path: Path
) -> None:
    server = run(tmp_path / "run", data, dealt(data, clients=1), parts=model, **settings)
    assert [entry["samples"] for entry in server.info["classes"][KNOWN:]] != [{}, {}]
    assert sum(entry["samples"].get("client-00", 0) for entry in server.info["classes"]) == 48


@pytest.mark.parametrize("estimator", ["committee", "ppm", "macc"])
def test_samples_that_all_look_the_same_are_one_class(estimator: str, tmp_path: Path) -> None:
    data = tiny_dataset(classes=KNOWN + NOVEL, per_class=24)
    data.x_train[data.y_train >= KNOWN] = data.x_train[3].clone()
    server = run(tmp_path / "run", data, parts={"estimator": {"name": estimator}})
    assert [entry["name"] for entry in server.info["classes"][KNOWN:]] == ["novel-1"]


def test_without_validation_samples_novel_rows_may_answer(data: Dataset, tmp_path: Path) -> None:
    server = run(tmp_path / "run", data, dealt(data, validation=False), keep_known=0.95)
    assert server.info["state"]["bias"] == 0.0


@pytest.mark.parametrize("phase", ["discover-1", "novel-1"])
def test_a_federation_that_nobody_has_joined_yet_waits(phase: str, data: Dataset, tmp_path: Path) -> None:
    late = {"federation": {"arrivals": {f"client-{i:02d}": phase for i in range(3)}}}
    server = run(tmp_path / "run", data, parts=late, keep_known=0.9)
    assert len(server.info["classes"]) == (KNOWN + 2 if phase == "discover-1" else KNOWN)


def test_more_stages_than_the_data_has_find_nothing_more(data: Dataset, tmp_path: Path) -> None:
    server = run(tmp_path / "run", data, stages=2)
    assert [estimate["number"] for estimate in server.info["state"]["estimates"]] == [2, 0]


def test_without_stages_there_is_only_what_is_known(data: Dataset, tmp_path: Path) -> None:
    server = run(tmp_path / "run", data, stages=0)
    assert [event["phase"] for event in events(tmp_path / "run", "round")] == ["known", "known", "describe"]
    assert "anchor" not in server
    assert "known_accuracy" not in api.Run(tmp_path / "run").metrics


def test_an_earlier_run_is_a_start_without_rounds_of_known_classes(tmp_path: Path) -> None:
    common: dict[str, Any] = {
        "data": {"name": "synthetic:8x8x1:5:200", "known": 3, "novel": 2},
        "model": {"name": "mlp", "hidden": [8, 6]},
        "partition": {"name": "iid"},
    }
    first = {**common, "method": {"name": "fedavg", "rounds": 2}}
    api.run(first, clients=2, workers=0, out=tmp_path / "first")
    second = {
        **common,
        "method": {"name": "gal", **SETTINGS, "rounds": 0, "novel_rounds": 0},
        "estimator": {"name": "given", "classes": 2},
        "federation": {"start_from": str(tmp_path / "first")},
    }
    api.run(second, clients=2, workers=0, out=tmp_path / "second")
    begun, ended = (final(tmp_path / name).group("model") for name in ("first", "second"))
    assert torch.equal(ended["head.weight"][:3], begun["head.weight"])
    assert len(ended["head.weight"]) == 5
    assert "head.bias" not in ended
    assert equal(extractor(begun), extractor(ended))
    assert [e["phase"] for e in events(tmp_path / "second", "round")] == ["describe", "discover-1", "describe"]


def test_an_objective_with_an_output_for_unknown_is_refused(data: Dataset) -> None:
    method = tiny_experiment("gal", data, dealt(data), tables({"objective": {"name": "proser"}})).method
    with pytest.raises(UserError, match=r"objective\.name = 'proser' is not allowed"):
        method.check_network(build("mlp", (1, 8, 8), 3))


def test_a_method_without_a_round_is_refused(data: Dataset) -> None:
    # There is always one in which clients describe what they know.
    method = tiny_experiment("gal", data, dealt(data), tables(rounds=0, stages=0)).method
    assert method.phases() == [Phase("known", 0), Phase("describe", 1)]


# --- equal bytes ----------------------------------------------------------------------------------------------


def test_the_result_is_bit_equal_with_workers_and_after_a_kill_in_every_round(data: Dataset, tmp_path: Path) -> None:
    split = dealt(data, stages=(1, 1))
    settings = tables(
        {"estimator": {"name": "committee"}, "correction": {"name": "scaffold"}}, stages=2, novel_rounds=1, rounds=1
    )

    class Killed(Exception):
        pass

    killed: list[int] = []

    def kill_once(event: dict[str, Any]) -> None:
        if event["event"] == "client" and event["index"] not in killed:
            killed.append(event["index"])
            raise Killed

    for workers in (0, 2):
        run_tiny(tmp_path / str(workers), "gal", data, split, settings, workers=workers)
    with pytest.raises(Killed):
        run_tiny(tmp_path / "killed", "gal", data, split, settings, listener=kill_once)
    for _ in range(20):
        experiment = tiny_experiment("gal", data, split, {"engine": {"workers": 0}, **settings})
        try:
            Running(experiment, RunFolder.open(tmp_path / "killed"), kill_once).run()
            break
        except Killed:
            continue
    assert killed == list(range(8))
    assert model_bytes(tmp_path / "0") == model_bytes(tmp_path / "2") == model_bytes(tmp_path / "killed")
    assert len(final(tmp_path / "0").info["classes"]) > KNOWN + 1


# --- bad replies ----------------------------------------------------------------------------------------------


def clusters(**changed: Any) -> dict[str, torch.Tensor]:
    group = {
        "centroids": torch.zeros(2, 6),
        "counts": torch.tensor([3, 4]),
        "labels": torch.tensor([[3, 0, 0], [1, 1, 2]]),
    }
    return {name: tensor for name, tensor in {**group, **changed}.items() if tensor is not None}


BAD_CLUSTERS = [
    ({"centroids": torch.zeros(2, 5)}, r"centroids are \(2, 5\) torch.float32, expected \(m, 6\) float32"),
    ({"centroids": torch.zeros(2, 6, dtype=torch.float64)}, "float64, expected"),
    ({"centroids": torch.zeros(12)}, r"centroids are \(12,\)"),
    ({"centroids": torch.zeros(3, 6)}, r"counts are \(2,\) torch.int64, expected \(3,\) int64"),
    ({"counts": torch.tensor([3.0, 4.0])}, "counts are .* torch.float32"),
    ({"counts": torch.tensor([[3, 4]])}, "counts are"),
    ({"counts": torch.tensor([-1, 4])}, "counts add up to 3"),
    ({"counts": torch.tensor([0, 4])}, "counts add up to 4"),
    ({"counts": torch.tensor([3, 5])}, "counts add up to 8, with 7 samples"),
    ({"counts": torch.tensor([3, 2**62])}, "with 7 samples"),
    ({"labels": torch.tensor([[3, 0], [1, 3]])}, r"labels are \(2, 2\)"),
    ({"labels": torch.tensor([[3.0, 0, 0], [1, 1, 2]])}, "labels are .* torch.float32"),
    ({"labels": torch.tensor([[3, 0, 0], [1, 1, 1]])}, "labels do not add up"),
    ({"labels": torch.tensor([[4, -1, 0], [1, 1, 2]])}, "labels do not add up"),
    ({"labels": None}, "clusters have"),
    ({"centroids": None}, "clusters have"),
    ({"extra": torch.zeros(1)}, "clusters have"),
]


@pytest.mark.parametrize(("change", "words"), BAD_CLUSTERS)
def test_clusters_that_cannot_be_true_are_refused(change: dict[str, Any], words: str) -> None:
    check_clusters(clusters(), 6, 4, 7, labels=3)
    with pytest.raises(BadReply, match=words):
        check_clusters(clusters(**change), 6, 4, 7, labels=3)


def test_clusters_of_unlabelled_samples_have_no_labels() -> None:
    check_clusters(clusters(labels=None), 6, 4, 7)
    check_clusters({"centroids": torch.zeros(0, 6), "counts": torch.zeros(0, dtype=torch.int64)}, 6, 4, 0)
    with pytest.raises(BadReply, match="clusters have"):
        check_clusters(clusters(), 6, 4, 7)


def test_more_clusters_than_a_client_makes_are_refused() -> None:
    check_clusters(clusters(), 6, 2, 7, labels=3)
    with pytest.raises(BadReply, match="2 clusters, where a client makes at most 1"):
        check_clusters(clusters(), 6, 1, 7, labels=3)


def test_counts_that_wrap_around_are_refused() -> None:
    hostile = {"centroids": torch.zeros(1025, 6), "counts": torch.full((1025,), 2**53)}
    with pytest.raises(BadReply, match="counts add up to"):
        check_clusters(hostile, 6, 2000, 2**53)


@pytest.mark.parametrize(
    "group",
    [
        {"novel": torch.zeros(6)},
        {"novel": torch.zeros(7, 1)},
        {"novel": torch.zeros(7, dtype=torch.int64)},
        {"other": torch.zeros(7)},
    ],
)
def test_margins_that_are_not_one_number_per_sample_are_refused(group: dict[str, torch.Tensor]) -> None:
    check_margins({"novel": torch.zeros(7)}, 7)
    check_margins({}, 7)
    with pytest.raises(BadReply, match="margins/"):
        check_margins(group, 7)


def test_histograms_that_count_no_samples_are_refused() -> None:
    known, pool = torch.zeros(BINS), torch.zeros(BINS)
    known[[3, 50]] = torch.tensor([5.0, 2.0])
    check_cosines({"known": known, "pool": pool}, 7)
    less = pool.clone()
    less[9] = -1
    for group in ({"known": known, "pool": less}, {"known": known + less + less.abs() * 2, "pool": pool}):
        with pytest.raises(BadReply, match="no counts of samples, of which 7"):
            check_cosines(group, 7)


@pytest.mark.parametrize(
    ("phase", "change", "words"),
    [
        ("describe", lambda reply: reply.drop("clusters"), "clusters have"),
        ("describe", lambda reply: reply.drop("cosines"), "cosines lacks"),
        ("describe", lambda reply: reply.put("margins", {"novel": torch.zeros(1)}), "margins/novel"),
        ("describe", lambda reply: reply.info.update(samples=99), "of which 99"),
        ("describe", lambda reply: reply.info.update(samples=-1), "'samples'"),
        ("discover-1", lambda reply: reply.info.update(samples=2), "with 2 samples"),
        ("discover-1", lambda reply: reply.put("clusters", {}), "clusters have"),
        ("novel-1", lambda reply: reply.drop("model"), "model lacks"),
        (
            "novel-1",
            lambda reply: reply.add("model", {"head.weight": reply.group("model")["head.weight"][:KNOWN]}),
            "head.weight",
        ),
    ],
)
def test_replies_that_do_not_fit_are_refused(
    phase: str, change: Any, words: str, data: Dataset, tmp_path: Path
) -> None:
    led = federation(data, tmp_path)
    for name in ("discover-1", "novel-1"):
        if led.server.step.phase == phase:
            break
        led.merge()
        led.at(name)
    reply = led.replies()["client-00"]
    change(reply)
    with pytest.raises(BadReply, match=words):
        led.method.check(led.server, reply)


# --- answers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0.5, 0.8, 0.95, 1.0])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_at_least_the_asked_share_of_validation_samples_is_answered_with_known_classes(
    keep: float, seed: int, data: Dataset, tmp_path: Path
) -> None:
    split = dealt(data)
    run(tmp_path / "run", data, split, parts={"seed": seed}, keep_known=keep, loss="labels", rehearse=True)
    predictor = predictor_of(tmp_path / "run", data, split, keep_known=keep)
    rows = np.concatenate([client.validation for client in split.clients])
    answers = predictor.predict(samples_of(data, rows).all()[0]).logits.argmax(1)
    assert len(rows) == 18
    kept = (answers < KNOWN).double().mean().item()
    assert kept >= keep
    # And no more than are needed for that, for which one sample less would do, unless plain argmax keeps more.
    assert kept <= keep + 1 / 18 or predictor.bias == 0
    assert predictor.bias >= 0


def test_right_after_discovery_known_clusters_keep_their_answers(data: Dataset, tmp_path: Path) -> None:
    led = federation(data, tmp_path, keep_known=0.9)
    led.merge()
    led.at("discover-1").merge()
    told, head = led.server.state.group("known_clusters"), led.server.state.group("model")["head.weight"]
    logits = told["centroids"] @ head.T
    logits[:, KNOWN:] -= led.server.state.info["bias"]
    kept = told["counts"][logits.argmax(1) < KNOWN].sum() / told["counts"].sum()
    assert kept >= 0.9
    led = federation(data, tmp_path, keep_known=0.0)
    led.merge()
    led.at("discover-1").merge()
    assert led.server.state.info["bias"] == 0.0


def test_novel_rows_answer_where_they_win_by_more_than_the_bias(data: Dataset) -> None:
    model = build("mlp", (1, 8, 8), 5, bias=False, params={"hidden": [8, 6]}).eval()
    x = samples_of(data, np.arange(40)).all()[0]
    with torch.no_grad():
        outputs = model(x)
    score = Score(SCORES["msp"], SCORES["msp"].Params())
    answers = NovelModel(model, 5, score, known=3, bias=0.25, before=None).predict(x)
    assert torch.allclose(answers.logits[:, :3], outputs[:, :3])
    assert torch.allclose(answers.logits[:, 3:], outputs[:, 3:] - 0.25)
    assert torch.allclose(answers.unknown.double(), -answers.logits.softmax(1).amax(1).double(), atol=1e-6)
    assert dict(answers.details) == {}


# --- figures --------------------------------------------------------------------------------------------------

NAMES = ("cat", "dog")


def server_with(found: int, stages: int = 1) -> Server:
    registry = ClassRegistry.of(NAMES)
    for i in range(found):
        registry.add(f"novel-{i + 1}", "novel", since=3, stage=1)
    task: Any = None
    server = Server(task, registry, Step("describe", 1, 9), Rng(0))
    numbers = [found, *[0] * (stages - 1)] if stages else []
    server.state.info["estimates"] = [{"number": n, "low": n, "high": n, "curve": []} for n in numbers]
    return server


def outcome(server: Server, true: list[str], logits: torch.Tensor, before: list[int], novel: Any) -> Outcome:
    prediction = Prediction(logits, torch.zeros(len(true)), {"before": torch.tensor(before)})
    ids = {name: i for i, name in enumerate(server.classes.names)}
    truth = torch.tensor([ids.get(name, -1) for name in true])
    return Outcome(prediction, logits.argmax(1), truth, true, novel)


def gal_method() -> GAL:
    return GAL.__new__(GAL)


def best_matched(answers: list[int], truth: list[str], found: list[int], names: list[str]) -> int:
    """The most hits of any one-to-one assignment of found classes to true names, by trying all."""
    slots = [*names, *[""] * len(found)]
    return max(
        sum(dict(zip(found, chosen, strict=True)).get(a) == t for a, t in zip(answers, truth, strict=True))
        for chosen in set(permutations(slots, len(found)))
    )


@pytest.mark.parametrize("found", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(4))
def test_figures_are_those_of_the_best_of_all_assignments(found: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    server = server_with(found)
    true = ["cat", "dog", "fox", "hen", "owl", "alien"] * 9
    logits = torch.randn(len(true), 2 + found, generator=generator)
    before = torch.randint(0, 2, (len(true),), generator=generator).tolist()
    figures = gal_method().measure(server, outcome(server, true, logits, before, (("fox", "hen", "owl"),)))
    answers = logits.argmax(1).tolist()
    known = [i for i, name in enumerate(true) if name in NAMES]
    novel = [i for i, name in enumerate(true) if name in ("fox", "hen", "owl")]
    ids = list(range(2, 2 + found))
    old_hits = sum(answers[i] == NAMES.index(true[i]) for i in known)
    new_hits = best_matched([answers[i] for i in novel], [true[i] for i in novel], ids, ["fox", "hen", "owl"])
    assert figures["known_accuracy"] == pytest.approx(old_hits / 18)
    assert figures["novel_accuracy"] == pytest.approx(new_hits / 27)
    assert figures["all_accuracy"] == pytest.approx((old_hits + new_hits) / 45)
    was = sum(before[i] == NAMES.index(true[i]) for i in known) / 18
    assert figures["forgetting"] == pytest.approx(was - old_hits / 18)
    assert (figures["number_found"], figures["number_true"]) == (found, 3)
    # Told which samples are known and which are not.
    told_old = sum(int(logits[i, :2].argmax()) == NAMES.index(true[i]) for i in known)
    apart = [2 + int(logits[i, 2:].argmax()) for i in novel]
    assert figures["known_accuracy_told"] == pytest.approx(told_old / 18)
    told_new = best_matched(apart, [true[i] for i in novel], ids, ["fox", "hen", "owl"])
    assert figures["novel_accuracy_told"] == pytest.approx(told_new / 27)
    assert figures["novel_accuracy_told"] >= figures["novel_accuracy"]


def test_clusters_that_are_the_classes_have_figures_of_1() -> None:
    server = server_with(2)
    true = ["cat", "dog", "hen", "fox"] * 3
    logits = 9.0 * torch.eye(4).repeat(3, 1)
    figures = gal_method().measure(server, outcome(server, true, logits, [0, 1, 0, 0] * 3, (("fox", "hen"),)))
    for key in ("known_accuracy", "novel_accuracy", "all_accuracy", "novel_nmi", "novel_ari", "novel_accuracy_told"):
        assert figures[key] == 1.0
    assert figures["forgetting"] == 0.0


def test_classes_of_stages_to_come_do_not_count_yet() -> None:
    server = server_with(1)
    true = ["cat", "dog", "fox", "hen"]
    logits = 9.0 * torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]])
    stages = (("fox",), ("hen",))
    figures = gal_method().measure(server, outcome(server, true, logits, [0, 1, 0, 0], stages))
    assert (figures["novel_accuracy"], figures["all_accuracy"], figures["number_true"]) == (1.0, 1.0, 1.0)
    server = server_with(1, stages=2)
    figures = gal_method().measure(server, outcome(server, true, logits, [0, 1, 0, 0], stages))
    assert (figures["novel_accuracy"], figures["all_accuracy"], figures["number_true"]) == (0.5, 0.75, 2.0)


def test_before_anything_was_looked_for_there_are_no_such_figures() -> None:
    server = server_with(0, stages=0)
    assert gal_method().measure(server, outcome(server, ["cat"], torch.zeros(1, 2), [0], ())) == {}


def test_where_nothing_was_found_novel_samples_are_wrong() -> None:
    server = server_with(0)
    figures = gal_method().measure(
        server, outcome(server, ["cat", "fox", "hen"], torch.tensor([[1.0, 0]] * 3), [0, 0, 0], (("fox", "hen"),))
    )
    assert (figures["novel_accuracy"], figures["number_found"]) == (0.0, 0.0)
    # Told apart they are one cluster, which may stand for one of two classes.
    assert figures["novel_accuracy_told"] == 0.5


def test_a_discovered_class_stands_for_the_true_one_that_it_covers_best() -> None:
    server = server_with(2)
    true = ["cat", "fox", "fox", "hen", "hen", "hen", "alien"]
    logits = torch.zeros(7, 4)
    for row, answer in enumerate([0, 3, 3, 2, 2, 3, 2]):
        logits[row, answer] = 1.0
    seen = outcome(server, true, logits, [0] * 7, (("fox", "hen"),))
    assert gal_method().truth(server, seen).tolist() == [0, 3, 3, 2, 2, 2, -1]
    # One that was given its true name keeps it.
    server.classes.rename("novel-1", "fox")
    named = outcome(server, true, logits, [0] * 7, (("fox", "hen"),))
    assert gal_method().truth(server, named).tolist() == [0, 2, 2, 3, 3, 3, -1]


def test_known_classes_are_counted_without_those_that_were_found() -> None:
    assert [labelled(server_with(found)) for found in (0, 1, 3)] == [2, 2, 2]
