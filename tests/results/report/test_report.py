"""Whole reports: of every kind of run, and of damaged or unusual runs."""

from __future__ import annotations

import html
import json
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwild import api
from fedwild.cli import main
from fedwild.contract import Discovers, Welcomes
from fedwild.core.errors import UserError
from fedwild.methods import METHODS
from fedwild.methods.registry import data_file
from fedwild.results.report import write_report
from fedwild.runs.events import EventLog
from tests.conftest import unfinish
from tests.folders import change_json, change_log
from tests.results.report.pages import NOT_DRAWN, page, section
from tests.tiny import brief, image_file, model_bytes, own

METRICS = "figcaption><b>Accuracy and open-set metrics</b>"
HOSTILE = "<script>alert(1)</script>"
BASES = [name for name in own(METHODS) if name not in data_file("presets.toml")]


def trained(folder: Path, source: str = "synthetic:8x8x1:4:80", clients: int = 2, **tables: Any) -> Path:
    """Return a small finished run."""
    base = {"model": {"name": "mlp", "hidden": [4]}, "partition": {"name": "iid"}, "method": {"rounds": 2}}
    settings = {**base, **tables}
    return api.run(settings, data=source, clients=clients, workers=0, out=folder).path


class Resources(HTMLParser):
    """Everything that a page loads or runs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: list[str] = []
        self.handlers: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for key, value in attrs if key in ("src", "href", "srcset", "xlink:href")]
        self.handlers += [key for key, _ in attrs if key.startswith("on")]


def test_report_is_one_file_that_loads_nothing(finished: Path) -> None:
    text = page(finished)
    resources = Resources(text)
    assert resources.links
    assert all(link.startswith(("data:", "#")) for link in resources.links)
    assert "@import" not in text
    assert "url(" not in text
    assert resources.tags.count("script") == 1
    assert not resources.handlers


def test_report_has_all_figures_and_is_reproducible(finished: Path) -> None:
    text = page(finished)
    for title in (
        *("Loss", "Accuracy and open-set metrics", "Unknown scores", "ROC", "OSCR", "Reliability"),
        *("Confusion matrix", "Feature map", "Unknown but accepted", "Known but rejected"),
        *("Samples by class and client", "Time by phase", "Bytes by phase"),
    ):
        figure = re.search(rf"<figcaption><b>{title}</b>.*?</figure>", text)
        assert figure is not None, title
        assert NOT_DRAWN not in figure[0]
    assert "unfinished" not in text
    assert f"fedwild run {finished}/config.toml" in text
    metrics = json.loads((finished / "result.json").read_text())["metrics"]
    assert f"<b>{100 * metrics['closed_accuracy']:.1f} %</b><span>closed accuracy</span>" in text
    assert f"AUROC {100 * metrics['auroc']:.1f} %" in text
    assert page(finished) == text


def test_report_is_written_to_the_given_path(finished: Path, tmp_path: Path) -> None:
    assert write_report(str(finished), tmp_path / "x.html") == tmp_path / "x.html"
    assert not (finished / "report.html").exists()
    for wrong, message in ((tmp_path, "is a folder"), (tmp_path / "no" / "x.html", "does not exist")):
        with pytest.raises(UserError, match=message):
            write_report(finished, wrong)


def test_unfinished_run_has_a_banner(finished: Path) -> None:
    text = page(unfinish(finished, rounds=2))
    assert '<p class="banner">' in text
    assert "This run is unfinished" in text
    assert f"fedwild resume {finished}" in text
    assert "Confusion matrix" in text


def test_run_without_checkpoint_has_a_report(finished: Path) -> None:
    shutil.rmtree(unfinish(finished) / "checkpoints")
    (finished / "checkpoints").mkdir()
    first = [line for line in (finished / "events.jsonl").read_text().splitlines() if '"start"' in line]
    (finished / "events.jsonl").write_text("\n".join(first) + "\n")
    text = page(finished)
    assert "0 of 3 rounds are completed" in text
    assert "has no model yet" in text
    assert "No round is completed yet." in text
    assert NOT_DRAWN not in text


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An own data file with hostile class names, and a run on it."""
    folder = tmp_path_factory.mktemp("hostile")
    data = image_file(folder / "own.npz", {HOSTILE: 0, '"><img src=x onerror=alert(2)>': 2, "c'&": 4})
    return data, trained(folder / "run", str(data), data={"known": 2})


@pytest.fixture
def own_data(hostile: tuple[Path, Path], tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """The data file, restored afterwards, and a copy of the run."""
    data, run = hostile
    content = data.read_bytes()
    yield data, shutil.copytree(run, tmp_path / "run")
    data.write_bytes(content)


def test_without_data_the_report_consists_of_log_and_result(own_data: tuple[Path, Path]) -> None:
    data, run = own_data
    data.unlink()
    text = page(run)
    assert METRICS in text
    assert "Confusion matrix" not in text
    assert text.count("The run&#x27;s data cannot be read") == 1
    assert "own.npz&#x27; does not exist." in text
    assert NOT_DRAWN not in text


def test_changed_data_is_not_used(own_data: tuple[Path, Path]) -> None:
    data, run = own_data
    image_file(data, {HOSTILE: 0, '"><img src=x onerror=alert(2)>': 2, "c'&": 4}, seed=1)
    text = page(run)
    assert "samples or labels have changed" in text
    assert "Confusion matrix" not in text


def test_hostile_names_and_notes_are_escaped(own_data: tuple[Path, Path]) -> None:
    _, run = own_data
    about: dict[str, Any] = {"client": HOSTILE, "index": 1, "phase": HOSTILE, "bytes_up": 0, "bytes_down": 0}
    with closing(EventLog(run / "events.jsonl")) as log:
        log.write("note", text=HOSTILE)
        log.write("client-failed", reason=HOSTILE, **about)
        log.write("client", info={"loss": 1}, notes=[HOSTILE], **about)
    text = page(run)
    resources = Resources(text)
    assert resources.tags.count("script") == 1
    assert not resources.handlers
    assert text.count("&lt;script&gt;alert(1)") > 10
    assert HOSTILE not in text
    assert all(link.startswith(("data:", "#")) for link in resources.links)


def test_nothing_is_downloaded(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = (finished / "config.toml").read_text()
    (finished / "config.toml").write_text(config.replace('"synthetic:8x8x1:4:80"', '"mnist"'))
    monkeypatch.setattr(sys.modules["fedwild.data.sources.load"], "prepare", pytest.fail)
    assert "mnist is no longer on this machine" in page(finished)


def test_run_over_sites_shows_no_samples(finished: Path) -> None:
    config = (finished / "config.toml").read_text().replace('name = "synthetic:8x8x1:4:80"', 'name = "sites"')
    (finished / "config.toml").write_text(config)
    text = page(finished)
    assert text.count("The samples stay at the run&#x27;s sites") == 1
    assert "Not available: Known and unknown, Answers by class, Samples, Data by client" in text
    assert "fedwild coordinate" in text
    assert METRICS in text
    assert NOT_DRAWN not in text


def test_missing_losses_are_gaps(finished: Path) -> None:
    def lose(event: dict[str, Any]) -> None:
        if event["event"] == "round":
            event["loss"] = None
        if event["event"] == "client":
            event["info"]["loss"] = None

    change_log(finished / "events.jsonl", lose)
    change_json(finished / "result.json", log="")
    text = page(finished)
    assert "No values to draw yet." in text
    assert not re.search(r'd="[^"]*nan', text)


def test_diverged_run_has_a_report(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="NaN or infinite"):
        trained(tmp_path / "run", data={"known": 3}, method={"rounds": 2, "lr": 1e30})
    text = page(tmp_path / "run")
    assert "This run is unfinished: 1 of 2 rounds" in text
    assert "is excluded from this round: bad reply" in text
    assert "training has diverged" in text
    assert NOT_DRAWN not in text
    assert not re.search(r'd="[^"]*(nan|inf)', text)


def test_one_client_and_no_unknown_class(tmp_path: Path) -> None:
    text = page(trained(tmp_path / "run", clients=1, data={"known": 4}))
    assert text.count("so there is no curve to draw") == 2
    assert "<b>-</b><span>AUROC</span>" in text
    assert NOT_DRAWN not in text


def test_vectors_are_not_shown_as_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sizes = {"train": 120, "test": 40}
    arrays: dict[str, Any] = {f"x_{part}": rng.normal(size=(n, 6)).astype(np.float32) for part, n in sizes.items()}
    arrays |= {f"y_{part}": np.array(list("abcd"))[rng.integers(0, 4, n)] for part, n in sizes.items()}
    np.savez(tmp_path / "table.npz", **arrays)
    text = page(trained(tmp_path / "run", str(tmp_path / "table.npz"), data={"known": 3}))
    assert "are not images, so they are not shown" in text
    assert "<img" not in text
    assert "Feature map" in text


def test_volumes_are_shown_by_a_slice(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sizes = {"train": 60, "test": 20}
    arrays: dict[str, Any] = {f"x_{part}": rng.random((n, 1, 4, 8, 8)).astype(np.float32) for part, n in sizes.items()}
    arrays |= {f"y_{part}": np.arange(n) % 3 for part, n in sizes.items()}
    np.savez(tmp_path / "volumes.npz", **arrays)
    text = page(trained(tmp_path / "run", str(tmp_path / "volumes.npz"), data={"known": 2}))
    assert 'class="thumb"' in text
    assert NOT_DRAWN not in text


PAGES: dict[str, str] = {}


def page_of_method(method: str, factory: pytest.TempPathFactory) -> str:
    """Return the page of a small run of a method, made once."""
    if method not in PAGES:
        kind = METHODS.get(method)
        data: dict[str, Any] = {"known": 3, "public": 0.1}
        if issubclass(kind, Welcomes):
            data = {"known": 3, "newcomers": {"late": {"name": "synthetic:8x8x1:5:80"}}}
        if issubclass(kind, Discovers):
            data = {"known": 3, "novel": 1}
        tables = {"data": data, "method": {"name": method, **brief(method)}, "model": {"name": "mlp", "hidden": [8, 6]}}
        folder = factory.mktemp("method") / "run"
        PAGES[method] = page(trained(folder, "synthetic:8x8x1:5:120", clients=3, **tables))
    return PAGES[method]


@pytest.mark.parametrize("method", BASES)
def test_every_method_has_a_complete_page(method: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    text = page_of_method(method, tmp_path_factory)
    assert NOT_DRAWN not in text
    assert "Not available" not in text
    assert text.count("<section") >= 9


@pytest.mark.parametrize(
    ("method", "title", "figures"),
    [
        ("fedpd", "Subnetworks", ("Parts of each layer", "fc1.fc: closed-set subnetwork", "head: open-set subnetwork")),
        ("fedoss", "Boundary samples", ("Boundary samples", "Displacement", "Replies", "What clients disagree about")),
        ("gains", "Newcomers", ("What late brings",)),
        ("gains", "Rounds", ("Newcomer and other clients",)),
        ("fedov", "Outliers", ("Outliers",)),
    ],
)
def test_what_a_method_shows_is_in_its_section(
    method: str, title: str, figures: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    part = section(page_of_method(method, tmp_path_factory), title)
    for figure in figures:
        assert f"<figcaption><b>{figure}</b>" in part


def test_personal_models_are_shown_by_the_worst_and_the_best(tmp_path_factory: pytest.TempPathFactory) -> None:
    text = page_of_method("local-only", tmp_path_factory)
    assert len(set(re.findall(r"<h3>(client-\d+) ", text))) == 2
    assert "worst by AUROC" in text
    assert "best by AUROC" in text
    assert "Metrics on own test data (3)" in text
    assert "Closed accuracy on own test data" in text


def test_ensemble_has_outliers_but_no_feature_map(tmp_path_factory: pytest.TempPathFactory) -> None:
    text = page_of_method("fedov", tmp_path_factory)
    assert "does not answer with one network" in text
    assert 'alt="samples and their outliers"' in text


def test_discovered_classes_are_shown_with_the_exhibits_of_the_method(discovered: Path) -> None:
    text = page(discovered)
    part = section(text, "Discovered classes")
    for name in ("novel-1", "novel-4"):
        assert f"<h4>{name}</h4>" in part
        assert f"<td>{name}</td>" in part
    titles = re.findall("<figcaption><b>(.*?)</b>", part)
    assert {"Number of novel classes", "Known and novel classes", "Agreement and forgetting"} <= set(titles)
    assert titles[-3:] == ["Prototypes", "Registry", "Samples of the discovered classes"]
    assert NOT_DRAWN not in text


def test_welcome_shows_the_newcomer_and_the_command_that_repeats_it(tmp_path: Path) -> None:
    image_file(tmp_path / "home.npz", {"a": 0, "b": 2})
    late = image_file(tmp_path / "late.npz", {"c": 4, "d": 6}, seed=3)
    source = trained(tmp_path / "first", str(tmp_path / "home.npz"))
    run = api.welcome(source, late, rounds=2, workers=0, settings={"method": {"lr": 0.02}}, out=tmp_path / "second")
    text = page(run.path)
    for title in ("What late brings", "Before and after", "Contributions to the encoder"):
        assert f"<b>{title}</b>" in section(text, "Newcomers")
    assert "2 in the run that this one continues" in text
    command = re.search(r"<code>(fedwild welcome .*?)</code>", text)
    assert command is not None
    words = shlex.split(html.unescape(command[1]))
    with pytest.raises(SystemExit) as ended:
        main([*words[1:], "--out", str(tmp_path / "again"), "--workers", "0", "--quiet"])
    assert ended.value.code == 0
    assert model_bytes(tmp_path / "again") == model_bytes(run.path)


def test_200_clients_and_100_classes_fit(tmp_path: Path) -> None:
    run = trained(
        tmp_path / "run", "synthetic:8x8x1:100:4000", clients=200, data={"known": 90}, method={"rounds": 1, "epochs": 1}
    )
    begin = time.process_time()
    written = write_report(run)
    assert time.process_time() - begin < 10
    assert written.stat().st_size < 3_000_000
    text = written.read_text()
    assert text.count("<image") == 2, "both tables are images"
    assert NOT_DRAWN not in text


def test_failure_of_a_figure_does_not_affect_others(
    finished: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a <b> of nothing")

    monkeypatch.setattr("fedwild.results.report.sections.classes.confusion", fail)
    text = page(finished)
    assert "This could not be drawn: ZeroDivisionError: a &lt;b&gt; of nothing" in text
    assert "Feature map" in text
    assert "Confusion matrix could not be drawn" in caplog.text
    assert caplog.records[0].levelname == "WARNING"
