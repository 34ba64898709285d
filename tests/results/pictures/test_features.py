"""Maps of embeddings: who is on them, the neighbours' shares by brute force, what is drawn, and every refusal."""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex

from fedwild import api
from fedwild.core.errors import UserError
from fedwild.core.rng import Rng
from fedwild.lifecycle.run import Run
from fedwild.results.pictures import features as module
from fedwild.results.pictures.drawing import COLOURS, INK, write_figure
from fedwild.results.pictures.features import (
    MIN_SAMPLES,
    Features,
    Real,
    by_chance,
    check_embeddings,
    draw,
    drawn,
    feature_figures,
    figures,
    map_embeddings,
    perplexity_for,
    same_kind_shares,
)
from fedwild.results.pictures.shown_run import ShownRun
from tests.conftest import Cli, Refused, unfinish

SHOW = ("show", "features")
SAMPLES = 30


def tiny_run(folder: Path, method: str, test: int = 40) -> Run:
    """Three known classes and one unknown, two clients."""
    tables = {
        "data": {"name": "synthetic:8x8x1:4:240", "known": 3, "test_samples": test},
        "model": {"name": "mlp", "hidden": [12, 5]},
        "method": {"name": method, "epochs": 1},
        "partition": {"name": "iid"},
    }
    return api.run(tables, clients=2, workers=0, out=folder)


@pytest.fixture(scope="module")
def fedavg(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run. Do not change it."""
    return tiny_run(tmp_path_factory.mktemp("fedavg") / "run", "fedavg")


@pytest.fixture(scope="module")
def shown(fedavg: Run) -> Features:
    return feature_figures(fedavg, SAMPLES)


def features_of(
    points: Real, true: list[str], known: tuple[str, ...] = ("a", "b"), client: str | None = None
) -> Features:
    """A map without a run."""
    others = tuple(sorted(set(true) - set(known)))
    about = ShownRun("runs/some", "fedavg", client, 3, known, others)
    shares = np.linspace(0, 1, len(true))
    return Features(about, 0, list(range(len(true))), points, true, ["a"] * len(true), shares)


def random_points(count: int) -> Real:
    return np.random.default_rng(0).normal(size=(count, 2))


# --- figures ---------------------------------------------------------------------------------------------------


def test_the_figures_are_of_a_sample_of_the_test_data(fedavg: Run, shown: Features) -> None:
    found = shown.described()
    dataset, test = fedavg.experiment.dataset, fedavg.experiment.split.test
    assert len(test) == 40
    assert found["samples"] == len(set(found["rows"])) == len(found["points"]) == SAMPLES
    assert set(found["rows"]) < set(test.tolist())
    assert found["true"] == [dataset.classes[label] for label in dataset.y_test[found["rows"]].tolist()]
    assert found["answers"] == fedavg.predict(dataset.x_test[found["rows"]]).labels
    assert np.array(found["points"]) == pytest.approx(shown.points, abs=1e-4)
    about = {"run": str(fedavg.path), "method": "fedavg", "client": None, "seed": 0}
    assert {key: found[key] for key in about} == about
    assert (found["known"], found["unknown"]) == (["0", "1", "2"], ["3"])
    json.dumps(found, allow_nan=False)


def test_the_neighbours_are_those_in_the_embedding_space_by_brute_force(fedavg: Run, shown: Features) -> None:
    found = shown.described()
    with torch.inference_mode():
        server = fedavg.server()
        network = fedavg.task.network(server.state.group("model"), 3).eval()
        x = fedavg.experiment.dataset.x_test[found["rows"]].float() / 255
        embeddings = network.embed(x).double().numpy()
    is_known = [name in ("0", "1", "2") for name in found["true"]]
    shares = []
    for i in range(SAMPLES):
        others = sorted(
            (j for j in range(SAMPLES) if j != i), key=lambda j: ((embeddings[i] - embeddings[j]) ** 2).sum()
        )
        shares.append(sum(is_known[j] == is_known[i] for j in others[:10]) / 10)
    assert shown.same_kind == pytest.approx(shares)
    neighbours = found["neighbours"]
    assert neighbours["count"] == 10
    for kind, wanted in (("known", True), ("unknown", False)):
        own = [share for share, known in zip(shares, is_known, strict=True) if known == wanted]
        assert neighbours["same_kind"][kind] == pytest.approx(np.mean(own), abs=1e-4)
        assert neighbours["by_chance"][kind] == pytest.approx((len(own) - 1) / (SAMPLES - 1), abs=1e-4)
    assert list(neighbours["by_class"]) == ["0", "1", "2", "3"]
    for name, value in neighbours["by_class"].items():
        own = [share for share, true in zip(shares, found["true"], strict=True) if true == name]
        assert value == pytest.approx(np.mean(own), abs=1e-4)


def test_apart_is_one_and_mixed_is_chance() -> None:
    rng = np.random.default_rng(0)
    kinds = rng.random(400) < 0.7
    far_apart = rng.normal(size=(400, 3)) + 100 * kinds[:, None]
    assert same_kind_shares(far_apart, kinds).tolist() == [1] * 400
    mixed = same_kind_shares(rng.normal(size=(400, 3)), kinds)
    for members in (kinds, ~kinds):
        assert mixed[members].mean() == pytest.approx(by_chance(members), abs=0.05)


def test_a_kind_that_is_not_there_has_no_share() -> None:
    found = features_of(random_points(12), ["a"] * 12).described()["neighbours"]
    assert found["same_kind"] == {"known": 0.5, "unknown": None}
    assert found["by_chance"] == {"known": 1.0, "unknown": None}
    assert found["by_class"] == {"a": 0.5}


def test_samples_are_drawn_by_the_seed_without_repeats() -> None:
    rows = np.arange(100, 300)
    first, again, other = (drawn(rows, 50, Rng(seed)) for seed in (0, 0, 1))
    assert first.tolist() == again.tolist() != other.tolist()
    assert len(set(first.tolist())) == 50
    assert set(first.tolist()) < set(rows.tolist())
    assert drawn(rows, 200, Rng(0)).tolist() == drawn(rows, 999, Rng(0)).tolist() == rows.tolist()


@pytest.mark.parametrize(("samples", "columns"), [(MIN_SAMPLES, 1), (MIN_SAMPLES, 2), (25, 40)])
def test_the_map_is_made_of_few_samples_and_columns_too(samples: int, columns: int) -> None:
    embeddings = np.random.default_rng(0).normal(size=(samples, columns))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        points = map_embeddings(embeddings, 0)
    assert points.shape == (samples, 2)
    assert np.isfinite(points).all()
    assert len(np.unique(points, axis=0)) == samples


def test_the_perplexity_suits_the_number_of_samples() -> None:
    found = [perplexity_for(samples) for samples in range(MIN_SAMPLES, 3000)]
    assert all(1 < value < samples / 2 for samples, value in enumerate(found, start=MIN_SAMPLES))
    assert found == sorted(found)
    assert found[-1] == perplexity_for(1500) == 30


def test_neighbours_in_the_embedding_are_neighbours_on_the_map() -> None:
    groups = np.repeat(np.arange(3), 15)
    embeddings = np.random.default_rng(0).normal(size=(45, 6)) + 50 * np.eye(3, 6)[groups]
    points = map_embeddings(embeddings, 0)
    distances = np.linalg.norm(points[:, None] - points[None], axis=2) + np.diag([np.inf] * 45)
    assert (groups[distances.argmin(axis=1)] == groups).all()


@pytest.mark.parametrize(
    ("value", "said"), [(np.nan, "NaN or infinite"), (np.inf, "NaN or infinite"), (2.0, "equal for all samples")]
)
def test_embeddings_that_cannot_be_mapped_are_one_sentence(value: float, said: str) -> None:
    embeddings = np.full((12, 3), 2.0)
    embeddings[4, 1] = value
    with pytest.raises(UserError, match=said):
        check_embeddings(embeddings)


def test_an_unfinished_run_shows_its_last_checkpoint(fedavg: Run, tmp_path: Path) -> None:
    run = Run(unfinish(Path(shutil.copytree(fedavg.path, tmp_path / "run")), rounds=9))
    assert figures(run, SAMPLES)["round"] == 9


def test_a_client_with_its_own_model_is_shown_on_its_own_test_data(tmp_path: Path) -> None:
    run = tiny_run(tmp_path / "run", "local-only")
    experiment = run.experiment
    clients = tuple(replace(c, test=c.test[i::2]) for i, c in enumerate(experiment.split.clients))
    run.experiment = replace(experiment, split=replace(experiment.split, clients=clients))
    found = figures(run, 15, client="client-01")
    assert found["client"] == "client-01"
    assert len(found["rows"]) == 15
    assert set(found["rows"]) < set(clients[1].test.tolist())
    assert found["answers"] == run.predict(experiment.dataset.x_test[found["rows"]], "client-01").labels


# --- the picture -----------------------------------------------------------------------------------------------


def axes_of(features: Features) -> Any:
    (axes,) = draw(features).axes
    return axes


def legend(axes: Any) -> list[str]:
    found = axes.get_legend()
    assert found is not None
    return [text.get_text() for text in found.get_texts()]


def test_known_classes_are_marks_in_their_colours_and_unknown_ones_dark_crosses() -> None:
    points = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 2.0]])
    axes = axes_of(features_of(points, ["a", "b", "x", "y", "a"]))
    found = [(np.asarray(marks.get_offsets()).tolist(), to_hex(marks.get_edgecolor()[0])) for marks in axes.collections]
    assert found == [
        ([[0.0, 0.0], [2.0, 2.0]], COLOURS[0]),
        ([[1.0, 0.0]], COLOURS[1]),
        # Last, so that they are drawn over the others.
        ([[0.0, 1.0], [1.0, 1.0]], INK),
    ]
    dot, _, cross = (marks.get_paths()[0].vertices for marks in axes.collections)
    assert len(cross) == 4 < len(dot)
    assert axes.get_aspect() == 1


def test_a_class_keeps_its_colour_whoever_else_is_on_the_map() -> None:
    (marks,) = axes_of(features_of(random_points(2), ["b", "b"])).collections
    assert to_hex(marks.get_facecolor()[0]) == COLOURS[1]


def test_a_hundred_classes_differ_in_colour_or_shape_and_their_legend_fits() -> None:
    names = tuple(f"class {i}" for i in range(100))
    features = features_of(random_points(101), [*names, "x"], known=names)
    axes = axes_of(features)
    looks = {(to_hex(m.get_facecolor()[0]), m.get_paths()[0].vertices.tobytes()) for m in axes.collections[:100]}
    assert len(looks) == 100
    assert len(legend(axes)) == 101
    axes.figure.draw_without_rendering()
    found = axes.get_legend()
    assert found is not None
    assert found.get_window_extent().height <= axes.get_window_extent().height


def test_the_legend_names_every_class_on_the_map_with_its_share() -> None:
    axes = axes_of(features_of(random_points(5), ["b", "c", "x", "y", "b"], known=("a", "b", "c")))
    assert legend(axes) == ["b  50.0 %", "c  25.0 %", "unknown: x, y  62.5 %"]
    assert axes.texts[0].get_text().splitlines()[-1] == "By chance it would be: known 50.0 %, unknown 25.0 %."
    known_only = axes_of(features_of(random_points(2), ["a", "b"]))
    assert legend(known_only) == ["a  0.0 %", "b  100.0 %"]
    assert known_only.texts[0].get_text().splitlines()[-1] == "By chance it would be: known 100.0 %, unknown -."


def test_long_names_are_cut_and_the_title_says_whose_model_it_is() -> None:
    features = features_of(random_points(2), ["a" * 999, "x" * 999], known=("a" * 999,), client="client-01")
    axes = axes_of(features)
    assert max(map(len, legend(axes))) < 50
    assert axes.get_title(loc="left") == "client-01 of some: fedavg, round 3, 2 test samples"


def test_many_points_are_one_image_in_a_vector_format(tmp_path: Path) -> None:
    sizes = []
    for number in (5000, 5001):
        write_figure(draw(features_of(random_points(number), ["a"] * number)), tmp_path / "a.svg")
        sizes.append((tmp_path / "a.svg").stat().st_size)
    assert sizes[0] > 2 * sizes[1]


def test_the_same_seed_gives_the_same_bytes_and_another_seed_another_map(fedavg: Run, tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_figure(draw(feature_figures(fedavg, SAMPLES, seed)), tmp_path / f"{name}.png")
    first, again, other = ((tmp_path / f"{name}.png").read_bytes() for name in "abc")
    assert first == again != other


# --- one network of an ensemble ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three clients, each with one of three known classes. Do not change it."""
    tables = {
        "data": {"name": "synthetic:8x8x1:4:240", "known": 3, "test_samples": 40},
        "model": {"name": "mlp", "hidden": [12, 5]},
        "method": {"name": "fedov", "epochs": 1},
        "partition": {"name": "c1"},
    }
    return api.run(tables, clients=3, workers=0, out=tmp_path_factory.mktemp("fedov") / "run")


def held_by(run: Run, client: str) -> set[str]:
    rows = next(c.train for c in run.experiment.split.clients if c.name == client)
    return {run.experiment.dataset.classes[label] for label in run.experiment.dataset.y_train[rows].tolist()}


def test_a_member_is_shown_with_its_own_network_classes_and_answers(ensemble: Run) -> None:
    found = figures(ensemble, SAMPLES, member="client-01")
    held = held_by(ensemble, "client-01")
    assert len(held) == 1 and found["known"] == sorted(held)
    assert sorted(found["unknown"]) == sorted({"0", "1", "2", "3"} - held)
    weights = ensemble.server().state.subgroups("models")["client-01"]
    network = ensemble.task.network(weights, 4).eval()
    with torch.inference_mode():
        x = ensemble.experiment.dataset.x_test[found["rows"]].float() / 255
        outputs, embeddings = network(x), network.embed(x).double().numpy()
    names = (*ensemble.server().classes.names, "unknown")
    assert found["answers"] == [names[i] for i in outputs.argmax(1).tolist()]
    shares = same_kind_shares(embeddings, np.isin(found["true"], found["known"]))
    assert found["neighbours"]["by_class"] == {
        name: pytest.approx(shares[np.array(found["true"]) == name].mean(), abs=1e-4) for name in set(found["true"])
    }
    assert found["client"] == "client-01" and found["outliers"] == {}
    assert figures(ensemble, SAMPLES, member="client-00")["points"] != found["points"]


def test_outliers_of_a_member_are_on_the_map_beside_the_same_samples(ensemble: Run) -> None:
    features = feature_figures(ensemble, SAMPLES, member="client-01", outliers=True)
    rows = next(c.train for c in ensemble.experiment.split.clients if c.name == "client-01")
    assert {name: len(points) for name, points in features.outliers.items()} == {"x'": len(rows), "x''": len(rows)}
    without = feature_figures(ensemble, SAMPLES, member="client-01")
    assert (features.rows, features.answers) == (without.rows, without.answers)
    assert features.same_kind == pytest.approx(without.same_kind)
    assert legend(axes_of(features))[:2] == ["outliers x'", "outliers x''"]
    again = feature_figures(ensemble, SAMPLES, member="client-01", outliers=True)
    assert all(np.array_equal(features.outliers[name], again.outliers[name]) for name in ("x'", "x''"))


def test_the_command_draws_a_member(ensemble: Run, cli: Cli) -> None:
    outcome = cli(*SHOW, ensemble.path, "--member", "client-02", "--outliers", "--samples", str(SAMPLES))
    assert (outcome.code, outcome.err) == (0, "")
    assert Path("features.png").is_file()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--member", "client-09"), "member 'client-09' is not known. Did you mean"),
        (("--member", "client-00", "--client", "client-00"), "--client client-00 is not allowed with --member"),
        (("--outliers",), "--outliers is not allowed without --member"),
    ],
)
def test_a_member_that_cannot_be_shown_is_refused(
    arguments: tuple[str, ...], said: str, ensemble: Run, refused: Refused
) -> None:
    assert said in refused(*SHOW, ensemble.path, *arguments)


def test_a_member_of_one_network_or_outliers_that_nobody_made_are_refused(fedavg: Run, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="member = 'client-00' is not allowed: method 'fedavg' answers with one network"
    ):
        figures(fedavg, SAMPLES, member="client-00")
    voting = tiny_run(tmp_path / "voting", "close-set-voting")
    assert figures(voting, SAMPLES, member="client-00")["known"] == ["0", "1", "2"]
    with pytest.raises(UserError, match="the run's objective makes no outliers of samples"):
        figures(voting, SAMPLES, member="client-00", outliers=True)


# --- the command -----------------------------------------------------------------------------------------------


def test_the_command_draws_the_map(cli: Cli, fedavg: Run, shown: Features) -> None:
    outcome = cli(*SHOW, fedavg.path, "--samples", str(SAMPLES))
    assert (outcome.code, outcome.err) == (0, "")
    assert "picture written to features.png" in outcome.out
    write_figure(draw(shown), Path("expected.png"))
    assert Path("features.png").read_bytes() == Path("expected.png").read_bytes()


def test_the_command_prints_the_figures(cli: Cli, fedavg: Run) -> None:
    arguments = ("--samples", "25", "--seed", "3", "--out", "some.png", "--json")
    said = json.loads(cli(*SHOW, fedavg.path, *arguments).out.splitlines()[-1])
    assert said == {**figures(fedavg, 25, 3), "picture": "some.png"}
    assert Path("some.png").is_file()


def test_by_default_1500_samples_are_drawn_with_seed_0(
    cli: Cli, fedavg: Run, shown: Features, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def noted(run: Run, *settings: object) -> Features:
        asked.extend(settings)
        return shown

    monkeypatch.setattr(module, "feature_figures", noted)
    assert cli(*SHOW, fedavg.path).code == 0
    assert asked[:4] + asked[5:] == [1500, 0, None, None, None, False]


def test_help_teaches(cli: Cli) -> None:
    said = " ".join(cli(*SHOW, "--help").out.split())
    assert "fedwild show features runs/fedavg-digits-001" in said
    assert "large distances on it mean nothing" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--samples", "10"), "--samples 10 is not allowed: it must be a whole number from 11 to 100000."),
        (("--samples", "all"), "--samples all is not allowed"),
        (("--seed", "-1"), "--seed -1 is not allowed"),
        (
            ("--client", "client-00"),
            "client = 'client-00' is not allowed: method 'fedavg' has one model for all clients.",
        ),
        (("--client", "nobody"), "client = 'nobody' is not one of this fedavg run's clients"),
        (("--samples", "11", "--out", "no/such/x.png"), "--out 'no/such/x.png' cannot be written: "),
    ],
)
def test_bad_values_are_refused_in_one_sentence(
    arguments: tuple[str, ...], said: str, fedavg: Run, refused: Refused
) -> None:
    error = refused(*SHOW, fedavg.path, *arguments)
    assert len(error.splitlines()) == 1
    assert said in error


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("fedov", "method 'fedov' has no embeddings: OpenVote does not answer with one network, so it has no common"),
        ("local-only", "method 'local-only' has a model per client; choose one of client-00, client-01."),
    ],
)
def test_a_run_without_one_model_is_refused(method: str, said: str, tmp_path: Path, refused: Refused) -> None:
    error = refused(*SHOW, tiny_run(tmp_path / "run", method).path)
    assert len(error.splitlines()) == 1
    assert said in error


def test_too_few_samples_are_refused(fedavg: Run, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"^samples = 10 is not allowed: a map needs at least 11, since each sample has 10 n.*\.$"
    ):
        figures(fedavg, 10)
    few = tiny_run(tmp_path / "run", "fedavg", test=10)
    with pytest.raises(
        UserError,
        match=r"^run '.*' has only 10 test samples to show: a map needs at least 11, since each sample has 10 n.*\.$",
    ):
        figures(few)


def test_no_run_a_run_without_a_finished_round_and_one_without_its_data_are_refused(
    finished: Path, refused: Refused
) -> None:
    assert "'none' does not exist" in refused(*SHOW, "none")
    assert "has no model yet: run `fedwild resume " in refused(*SHOW, unfinish(finished, rounds=0))
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    np.savez("own.npz", x=images, y=np.arange(40) % 2)
    tables = {"method": {"name": "fedavg", "rounds": 1}, "model": {"name": "mlp", "hidden": [4]}}
    run = api.run(tables, data="own.npz", partition="iid", clients=2, workers=0, out="run")
    shutil.move("own.npz", "elsewhere.npz")
    assert "own.npz" in refused(*SHOW, run.path)
