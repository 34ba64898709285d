"""Sheets of discovered classes: the samples are the nearest by an independent computation, and are drawn in place."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedwild import api
from fedwild.contract import Answering, Server
from fedwild.core.classes import ClassEntry
from fedwild.core.errors import UserError
from fedwild.core.payload import Payload
from fedwild.data import Dataset, DataSettings
from fedwild.lifecycle.run import Run
from fedwild.methods.gal.method import GAL
from fedwild.openset.predictors import Vote
from fedwild.results.pictures import novel
from fedwild.results.pictures.novel import Held, NovelClass, NovelFigures, heading, novel_figures, sheet_of
from fedwild.results.pictures.sheet import GAP, HEADING, LINE, MARGIN, Layout, Sheet, draw, write
from fedwild.runs.folder import RunFolder
from tests.conftest import DISCOVERING, TINY, Cli, Refused, unfinish
from tests.tiny import tiny_dataset

SHOW = ("show", "novel")
KNOWN, STAGES = 3, {"novel-1": 1, "novel-2": 1, "novel-3": 2, "novel-4": 2}


def with_bias(run: Path, bias: float) -> Run:
    """The run with another bias against novel rows."""
    model = Payload.read(run / "model.safetensors")
    assert isinstance(model.info["state"]["bias"], float)
    model.info["state"]["bias"] = bias
    model.write(run / "model.safetensors")
    RunFolder(run).sign()
    return Run(run)


def by_hand(run: Run, columns: int) -> dict[tuple[str, str], dict[str, Any]]:
    """For each class and client: all that is said of it, sample by sample from weights, split and pixels."""
    model, split, dataset = Payload.read(run.path / "model.safetensors"), run.experiment.split, run.experiment.dataset
    network = run.task.network(model.group("model"), 7, bias=False).eval()
    head, bias = model.group("model")["head.weight"].double(), model.info["state"]["bias"]
    expected: dict[tuple[str, str], dict[str, Any]] = {}
    for number, (name, stage) in enumerate(STAGES.items(), start=KNOWN):
        for client in split.clients:
            found = []
            pool = split.unlabelled_in(client, stage, dataset).tolist()
            for row in pool:
                with torch.inference_mode():
                    z = network.embed(dataset.x_train[row : row + 1].float() / 255)[0].double()
                logits = [float(z @ w) - bias * (i >= KNOWN) for i, w in enumerate(head)]
                if logits.index(max(logits)) == number:
                    found.append((float(z @ head[number] / (z.norm() * head[number].norm())), row))
            found.sort(key=lambda pair: -pair[0])
            expected[name, client.name] = {
                "client": client.name,
                "pool": len(pool),
                "answered": len(found),
                "rows": [row for _, row in found[:columns]],
                "places": [client.unlabelled.tolist().index(row) for _, row in found[:columns]],
                "cosines": pytest.approx([cosine for cosine, _ in found[:columns]], abs=1e-4),
            }
    return expected


def cell(sheet: Sheet, row: int, column: int) -> np.ndarray:
    """A picture as it is in the drawn image."""
    layout = Layout(sheet)
    left, top = layout.place(row, column)
    width, height = layout.cell
    return np.asarray(draw(sheet).crop((left, top, left + width, top + height)))


# --- who is shown ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [None, 0.0, -1e6, 1e6])
def test_the_samples_are_the_nearest_of_those_answered_with_the_class(bias: float | None, discovered: Path) -> None:
    run = Run(discovered) if bias is None else with_bias(discovered, bias)
    expected = by_hand(run, columns=3)
    found = novel.figures(run, columns=3)
    assert [one["name"] for one in found["classes"]] == list(STAGES)
    for one in found["classes"]:
        mine = [held for (name, _), held in expected.items() if name == one["name"] and held["answered"]]
        assert {held["client"]: held for held in one["clients"]} == {held["client"]: held for held in mine}
        assert one["answered"] == sum(held["answered"] for held in mine)
    everything = sum(held["answered"] for held in expected.values())
    # So many samples that a wrong choice of three shows; none if novel rows never win.
    assert everything == 0 if bias == 1e6 else everything > 30


def test_the_bias_counts(discovered: Path) -> None:
    few, many = (novel.figures(with_bias(discovered, bias)) for bias in (0.5, -0.5))
    counts = [sum(one["answered"] for one in found["classes"]) for found in (few, many)]
    assert counts[0] < counts[1]


def test_samples_are_of_the_stage_and_of_the_clients_unlabelled_pool(discovered_once: Path) -> None:
    run = Run(discovered_once)
    dataset, split = run.experiment.dataset, run.experiment.split
    unlabelled = {client.name: client.unlabelled.tolist() for client in split.clients}
    later = {"novel-1": "4", "novel-2": "4", "novel-3": "3", "novel-4": "3"}
    shown = 0
    for one in novel.figures(run, columns=50)["classes"]:
        for held in one["clients"]:
            assert [unlabelled[held["client"]][place] for place in held["places"]] == held["rows"]
            true = {dataset.classes[label] for label in dataset.y_train[held["rows"]].tolist()}
            assert later[one["name"]] not in true
            shown += len(held["rows"])
    assert shown > 30


def test_clients_with_most_come_first(discovered_once: Path) -> None:
    for one in novel.figures(Run(discovered_once))["classes"]:
        counts = [held["answered"] for held in one["clients"]]
        assert counts == sorted(counts, reverse=True)


def test_json_has_the_registrys_facts(cli: Cli, discovered: Path) -> None:
    said = json.loads(cli(*SHOW, discovered, "--json").out)
    assert {key: said[key] for key in ("run", "method", "round", "client", "picture")} == {
        "run": str(discovered),
        "method": "gal",
        "round": 13,
        "client": None,
        "picture": "novel.png",
    }
    facts = [vars(entry) for entry in Run(discovered).novel_classes()]
    assert [{key: one[key] for key in facts[0]} for one in said["classes"]] == facts
    assert [set(one) - set(facts[0]) for one in said["classes"]] == [{"answered", "clients"}] * 4
    assert all(len(held["rows"]) == min(8, held["answered"]) for one in said["classes"] for held in one["clients"])


def test_one_client_alone_is_shown_as_among_all(cli: Cli, discovered: Path) -> None:
    everyone = json.loads(cli(*SHOW, discovered, "--json").out)["classes"]
    alone = json.loads(cli(*SHOW, discovered, "--client", "client-01", "--json").out)
    assert alone["client"] == "client-01"
    for one, all_of_it in zip(alone["classes"], everyone, strict=True):
        assert one["clients"] == [held for held in all_of_it["clients"] if held["client"] == "client-01"]
        assert one["answered"] == sum(held["answered"] for held in one["clients"])


def test_an_unfinished_run_is_shown_as_of_its_last_checkpoint(cli: Cli, discovered: Path) -> None:
    said = json.loads(cli(*SHOW, unfinish(discovered, 12), "--json").out)
    assert said["round"] == 12
    assert len(said["classes"]) == 4


def test_vectors_have_figures_but_no_picture(cli: Cli, refused: Refused) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(120) % 4
    np.savez("vectors.npz", x=rng.normal(size=(120, 7)) + 3 * np.eye(4, 7)[labels], y=labels)
    tables: dict[str, Any] = {**DISCOVERING, "data": {"name": "vectors.npz", "known": 2, "novel": 1}}
    tables["method"] = {**tables["method"], "stages": 1}
    run = api.run(tables, clients=2, workers=0, out="run")
    assert sum(one["answered"] for one in novel.figures(run)["classes"]) > 0
    error = refused(*SHOW, "run")
    assert "vectors" in error
    assert "cannot be shown: samples of shape (7,) are not images" in error


# --- what is drawn ---------------------------------------------------------------------------------------------


def held(client: str, rows: list[int], answered: int = 20) -> Held:
    return Held(client, 50, answered, rows, rows, [0.99 - row / 1000 for row in rows])


def found_in(*classes: tuple[str, list[Held]]) -> NovelFigures:
    """Figures without a run."""
    entries = [(ClassEntry(name, "novel", 5, 1, {"a": 7, "b": 1}), parts) for name, parts in classes]
    return NovelFigures("runs/some", "gal", 9, None, [NovelClass(entry, parts) for entry, parts in entries])


def sheet_for(*classes: tuple[str, list[Held]], dataset: Dataset | None = None) -> Sheet:
    return sheet_of(found_in(*classes), dataset or tiny_dataset(3), DataSettings())


def test_every_picture_is_the_stored_sample_in_its_place() -> None:
    dataset = tiny_dataset(3)
    rows = [[7, 3, 30], [2], [11, 12], [40]]
    sheet = sheet_for(
        ("novel-1", [held("a", rows[0]), held("b", rows[1])]),
        ("nothing", []),
        ("novel-2", [held("b", rows[2])]),
        ("novel-3", [held("c", rows[3])]),
        dataset=dataset,
    )
    for line, samples in enumerate(rows):
        for column in range(3):
            drawn = cell(sheet, line, column)
            if column < len(samples):
                stored = dataset.x_train[samples[column], 0].numpy()
                assert np.array_equal(drawn, stored.repeat(8, 0).repeat(8, 1)[..., None].repeat(3, 2))
            else:
                assert (drawn == 255).all()
    assert list(sheet.row_names) == ["a: 20 samples", "b: 20 samples", "b: 20 samples", "c: 20 samples"]
    assert [list(notes) for notes in sheet.notes] == [["0.98", "0.99", "0.96"], ["0.99"], ["0.98", "0.98"], ["0.95"]]
    assert [row for row, _ in sheet.headings] == [0, 2, 2, 3]


def test_headings_stand_between_the_rows_and_touch_nothing() -> None:
    sheet = sheet_for(("novel-1", [held("a", [1, 2])]), ("nothing", []), ("novel-2", [held("a", [3])]), ("last", []))
    image, layout = np.asarray(draw(sheet)), Layout(sheet)
    tops = [layout.heading(number) for number in range(4)]
    assert np.diff(tops).tolist() == [layout.pitch[1] + HEADING, HEADING, layout.pitch[1] + HEADING]
    for number, top in enumerate(tops):
        assert (image[top : top + LINE, MARGIN : MARGIN + 50] < 128).any(), number
        assert top + LINE <= layout.place(sheet.headings[number][0], 0)[1]
    assert tops[1] > layout.place(0, 0)[1] + layout.cell[1] + LINE - GAP
    assert tops[3] + LINE <= image.shape[0]
    plain = replace(sheet, headings=())
    assert draw(sheet).height == draw(plain).height + 4 * HEADING


def test_of_many_clients_six_are_drawn_and_all_are_told() -> None:
    many = [held(f"client-{number:02d}", [number], 30 - number) for number in range(9)]
    figures = found_in(("novel-1", many))
    sheet = sheet_of(figures, tiny_dataset(3), DataSettings())
    assert list(sheet.row_names) == [f"client-{number:02d}: {30 - number} samples" for number in range(6)]
    assert heading(figures.classes[0]).endswith("now the answer for 234 samples of 9 clients, 6 clients shown")
    assert len(figures.described()["classes"][0]["clients"]) == 9


def test_headings_say_what_was_found_in_what() -> None:
    one, none = found_in(("melanoma", [held("a", [1], 1)]), ("novel-2", [])).classes
    assert heading(one) == (
        "melanoma: discovered in stage 1 in 8 samples of 2 clients; now the answer for 1 sample of 1 client"
    )
    assert heading(none).endswith("; now the answer for no sample")


def test_long_names_are_cut() -> None:
    sheet = sheet_for(("x" * 90, [held("hospital of a rather long name", [1])]))
    assert sheet.headings[0][1].startswith("x" * 39 + "…:")
    assert sheet.row_names == ["hospital of a rather …: 20 samples"]
    assert Layout(sheet).row_name(sheet.row_names[0]) == sheet.row_names[0]


def test_a_run_whose_novel_rows_never_answer_has_a_sheet_of_headings(cli: Cli, discovered: Path) -> None:
    with_bias(discovered, 1e6)
    assert cli(*SHOW, discovered).code == 0
    with Image.open("novel.png") as image:
        assert image.height == MARGIN + 3 * LINE + 6 + 4 * HEADING - GAP + MARGIN


def test_normalised_data_are_drawn_as_they_are_stored() -> None:
    found, dataset = found_in(("novel-1", [held("a", [5, 9])])), tiny_dataset(3)
    plain = sheet_of(found, dataset, DataSettings())
    assert np.array_equal(sheet_of(found, dataset, DataSettings(mean=0.4, std=0.2)).pictures, plain.pictures)


def test_the_same_run_gives_the_same_file_and_columns_say_how_wide(cli: Cli, discovered: Path) -> None:
    with_bias(discovered, -1e6)
    for name, columns in (("a.png", "4"), ("b.png", "4"), ("c.png", "9")):
        outcome = cli(*SHOW, discovered, "--columns", columns, "--out", name)
        assert outcome.out == f"picture written to {name}\n"
    assert Path("a.png").read_bytes() == Path("b.png").read_bytes()
    run = Run(discovered)
    layout = Layout(sheet_of(novel_figures(run, None, 9), run.experiment.dataset, run.config.data))
    assert layout.sheet.pictures.shape[1] == 9
    with Image.open("c.png") as image:
        assert image.format == "PNG"
        assert image.size == layout.size


def test_help_teaches(cli: Cli) -> None:
    assert "fedwild show novel runs/gal-digits-001 --client client-03" in cli(*SHOW, "--help").out


# --- refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--client", "client-3"), ("--client 'client-3' is not known", "client-00, client-01, client-02")),
        (("--columns", "0"), ("--columns 0", "from 1 to 50")),
        (("--columns", "51"), ("--columns 51", "from 1 to 50")),
        (("--columns", "few"), ("--columns few", "whole number")),
        (("--out", "no/such.png"), ("--out 'no/such.png'", "cannot be written")),
        (("--out", "a.gif"), ("--out 'a.gif'", "must end in .png, .svg or .pdf")),
    ],
)
def test_bad_values_are_refused_in_one_sentence(
    arguments: tuple[str, ...], said: tuple[str, ...], discovered: Path, refused: Refused
) -> None:
    error = refused(*SHOW, discovered, *arguments)
    assert len(error.splitlines()) == 1
    assert all(part in error for part in said), error


def test_no_run_is_refused(refused: Refused) -> None:
    assert "'none' does not exist" in refused(*SHOW, "none")


def test_a_run_of_a_method_that_looks_for_nothing_is_refused(finished: Path, refused: Refused) -> None:
    assert "method 'fedavg' does not look for any; use a run of gal" in refused(*SHOW, finished)


def test_a_run_that_found_nothing_is_refused(cli: Cli, refused: Refused) -> None:
    few = ("--set", "method.stages=0", "--rounds", "1", "--quiet", "--out", "run")
    assert cli("run", *TINY, "--method", "gal", *few).code == 0
    assert "has no discovered classes: method 'gal' found no new class" in refused(*SHOW, "run")
    assert "has no discovered classes: method 'gal' found no new class" in refused("name", "run")


def test_a_run_without_its_data_is_refused(cli: Cli, refused: Refused) -> None:
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8)
    np.savez("own.npz", x=images, y=np.arange(60) % 3)
    tables: dict[str, Any] = {**DISCOVERING, "data": {"name": "own.npz", "known": 2, "novel": 1}}
    tables["method"] = {**tables["method"], "stages": 1, "rounds": 1}
    api.run(tables, clients=2, workers=0, out="run")
    assert cli(*SHOW, "run").code == 0
    shutil.move("own.npz", "elsewhere.npz")
    assert "own.npz" in refused(*SHOW, "run")


def test_a_method_that_does_not_answer_with_one_network_is_refused(
    discovered: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vote(self: GAL, server: Server) -> Answering:
        return Answering(lambda client: Vote({}, 7, self.score), server.clients)

    monkeypatch.setattr(GAL, "answers", vote)
    assert "method 'gal' does not answer with one network" in refused(*SHOW, discovered)


def test_python_can_draw_it_too(discovered: Path, tmp_path: Path) -> None:
    run = Run(discovered)
    write(sheet_of(novel_figures(run, "client-00"), run.experiment.dataset, run.config.data), tmp_path / "own.png")
    with Image.open(tmp_path / "own.png") as image:
        assert image.format == "PNG"
    with pytest.raises(UserError, match="--client 'nobody' is not known"):
        novel_figures(run, "nobody")
