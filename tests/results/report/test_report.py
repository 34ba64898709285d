"""Whole reports: of every kind of run, and of runs with which something is wrong."""

from __future__ import annotations

import html
import json
import re
import shlex
import shutil
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwild import api
from fedwild.cli import main
from fedwild.core.errors import UserError
from fedwild.methods import METHODS
from fedwild.results.report import write_report
from tests.conftest import unfinish
from tests.tiny import brief, image_file, model_bytes, own

ROUND = "figcaption><b>Accuracy and open-set figures</b>"


def page(run: Path) -> str:
    return write_report(run).read_text(encoding="utf-8")


def trained(folder: Path, source: str = "synthetic:8x8x1:4:80", clients: int = 2, **tables: Any) -> Path:
    """A small finished run."""
    base = {"model": {"name": "mlp", "hidden": [4]}, "partition": {"name": "iid"}, "method": {"rounds": 2}}
    settings = {**base, **tables}
    return api.run(settings, data=source, clients=clients, workers=0, out=folder).path


class Resources(HTMLParser):
    """Everything that a page would load or that runs in it."""

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


def test_a_report_is_one_file_that_loads_nothing(finished: Path) -> None:
    text = page(finished)
    resources = Resources(text)
    assert resources.links
    assert all(link.startswith(("data:", "#")) for link in resources.links)
    assert "@import" not in text
    assert "url(" not in text
    assert resources.tags.count("script") == 1
    assert not resources.handlers


def test_a_report_has_all_its_parts(finished: Path) -> None:
    text = page(finished)
    for title in (
        *("Loss", "Accuracy and open-set figures", "Unknown scores", "ROC", "OSCR", "Reliability"),
        *("Confusion matrix", "Feature map", "Unknown but accepted", "Known but rejected"),
        *("Samples by class and client", "Time by phase", "Bytes by phase"),
    ):
        figure = re.search(rf"<figcaption><b>{title}</b>.*?</figure>", text)
        assert figure is not None, title
        assert "could not be drawn" not in figure[0]
    assert "unfinished" not in text
    assert f"fedwild run {finished}/config.toml" in text
    metrics = json.loads((finished / "result.json").read_text())["metrics"]
    assert f"<b>{100 * metrics['closed_accuracy']:.1f} %</b><span>closed accuracy</span>" in text
    assert f"AUROC {100 * metrics['auroc']:.1f} %" in text


def test_the_same_run_gives_the_same_page(finished: Path) -> None:
    assert page(finished) == page(finished)


def test_the_report_goes_where_it_is_told(finished: Path, tmp_path: Path) -> None:
    assert write_report(str(finished), tmp_path / "x.html") == tmp_path / "x.html"
    assert not (finished / "report.html").exists()
    for wrong, sentence in ((tmp_path, "is a folder"), (tmp_path / "no" / "x.html", "does not exist")):
        with pytest.raises(UserError, match=sentence):
            write_report(finished, wrong)


def test_an_unfinished_run_says_so_on_top(finished: Path) -> None:
    text = page(unfinish(finished, rounds=2))
    assert '<p class="banner">' in text
    assert "This run is unfinished" in text
    assert f"fedwild resume {finished}" in text
    assert "Confusion matrix" in text


def test_a_run_without_any_checkpoint_still_has_a_report(finished: Path) -> None:
    shutil.rmtree(unfinish(finished) / "checkpoints")
    (finished / "checkpoints").mkdir()
    first = [line for line in (finished / "events.jsonl").read_text().splitlines() if '"start"' in line]
    (finished / "events.jsonl").write_text("\n".join(first) + "\n")
    text = page(finished)
    assert "0 of 3 rounds are done" in text
    assert "has no model yet" in text
    assert "No round is finished yet." in text
    assert "could not be drawn" not in text


def test_without_its_data_a_report_is_made_of_log_and_result(tmp_path: Path) -> None:
    data = image_file(tmp_path / "own.npz", {"a": 0, "b": 2, "c": 4})
    run = trained(tmp_path / "run", str(data), data={"known": 2})
    data.unlink()
    text = page(run)
    assert "own.npz" in text
    assert ROUND in text
    assert "Confusion matrix" not in text
    assert text.count("The run&#x27;s data cannot be read") == 1
    assert "own.npz&#x27; does not exist." in text
    assert "could not be drawn" not in text


def test_nothing_is_downloaded_for_a_page(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = (finished / "config.toml").read_text()
    (finished / "config.toml").write_text(config.replace('"synthetic:8x8x1:4:80"', '"mnist"'))
    monkeypatch.setattr(sys.modules["fedwild.data.sources.load"], "prepare", pytest.fail)
    assert "mnist is not on this machine any more" in page(finished)


def test_changed_data_is_not_mistaken_for_the_runs(tmp_path: Path) -> None:
    data = image_file(tmp_path / "own.npz", {"a": 0, "b": 2, "c": 4})
    run = trained(tmp_path / "run", str(data), data={"known": 2})
    image_file(data, {"a": 0, "b": 2, "c": 4}, seed=1)
    text = page(run)
    assert "samples or labels have changed" in text
    assert "Confusion matrix" not in text


def test_runs_over_sites_have_no_samples_here(finished: Path) -> None:
    config = (finished / "config.toml").read_text().replace('name = "synthetic:8x8x1:4:80"', 'name = "sites"')
    (finished / "config.toml").write_text(config)
    text = page(finished)
    assert text.count("The samples are at the run&#x27;s sites") == 1
    assert "Left out: Known and unknown, Answers by class, Samples, Who holds what" in text
    assert "fedwild coordinate" in text
    assert ROUND in text
    assert "could not be drawn" not in text


def test_hostile_names_and_notes_are_text(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    data = image_file(tmp_path / "own.npz", {evil: 0, '"><img src=x onerror=alert(2)>': 2, "c'&": 4})
    run = trained(tmp_path / "run", str(data), data={"known": 2})
    with (run / "events.jsonl").open("a") as log:
        for event in (
            {"event": "note", "text": evil},
            {"event": "client-failed", "client": evil, "index": 1, "phase": evil, "reason": evil},
            {"event": "client", "client": evil, "index": 1, "phase": evil, "info": {"loss": 1.0}, "notes": [evil]},
            {"event": "finding", "what": "discovery", "client": evil, "kind": evil, "classes": [evil]},
        ):
            log.write(json.dumps(event) + "\n")
    text = page(run)
    resources = Resources(text)
    assert resources.tags.count("script") == 1
    assert not resources.handlers
    assert "&lt;script&gt;alert(1)" in text
    assert evil not in text
    assert all(link.startswith(("data:", "#")) for link in resources.links)


def test_a_diverged_run_has_gaps_and_no_nan(finished: Path) -> None:
    lines = []
    for line in (finished / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "round":
            event["loss"] = None
        if event["event"] == "client":
            event["info"]["loss"] = None
        lines.append(json.dumps(event))
    (finished / "events.jsonl").write_text("\n".join(lines) + "\n")
    text = page(finished)
    assert "There are no figures to draw yet." in text
    assert not re.search(r'd="[^"]*nan', text)


def test_a_model_that_answers_nan_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="NaN or infinite"):
        trained(tmp_path / "run", data={"known": 3}, method={"rounds": 2, "lr": 1e30})
    text = page(tmp_path / "run")
    assert "This run is unfinished: 1 of 2 rounds" in text
    assert "is left out of this round: bad reply" in text
    assert "training has diverged" in text
    assert "could not be drawn" not in text
    assert not re.search(r'd="[^"]*(nan|inf)', text)


def test_one_client_and_no_unknown_class(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", clients=1, data={"known": 4})
    text = page(run)
    assert text.count("so there is nothing to tell apart") == 2
    assert "<b>-</b><span>AUROC</span>" in text
    assert "could not be drawn" not in text


def test_vectors_have_no_contact_sheets(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {f"x_{part}": rng.normal(size=(n, 6)).astype(np.float32) for part, n in (("train", 120), ("test", 40))}
    arrays |= {f"y_{part}": np.array(list("abcd"))[rng.integers(0, 4, n)] for part, n in (("train", 120), ("test", 40))}
    np.savez(tmp_path / "table.npz", **arrays)  # type: ignore[arg-type]
    text = page(trained(tmp_path / "run", str(tmp_path / "table.npz"), data={"known": 3}))
    assert "are no pictures, so they are not shown" in text
    assert "<img" not in text
    assert "Feature map" in text


def test_of_volumes_a_slice_is_shown(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sizes = {"train": 60, "test": 20}
    arrays: dict[str, Any] = {f"x_{part}": rng.random((n, 1, 4, 8, 8)).astype(np.float32) for part, n in sizes.items()}
    arrays |= {f"y_{part}": np.arange(n) % 3 for part, n in sizes.items()}
    np.savez(tmp_path / "volumes.npz", **arrays)
    text = page(trained(tmp_path / "run", str(tmp_path / "volumes.npz"), data={"known": 2}))
    assert 'class="thumb"' in text
    assert "could not be drawn" not in text


def test_methods_with_a_model_per_client_show_the_worst_and_the_best(tmp_path: Path) -> None:
    text = page(trained(tmp_path / "run", clients=3, data={"known": 3}, method={"name": "local-only", "epochs": 1}))
    assert len(set(re.findall(r"<h3>(client-\d+) ", text))) == 2
    assert "worst by AUROC" in text
    assert "best by AUROC" in text
    assert "Figures on own test data" in text
    assert "Closed accuracy on own test data" in text


def test_ensembles_have_no_map_but_outliers(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", data={"known": 3}, method={"name": "fedov", "epochs": 1})
    text = page(run)
    assert "does not answer with one network" in text
    assert '<section id="outliers">' in text
    assert 'alt="samples and their outliers"' in text


@pytest.mark.parametrize("method", own(METHODS))
def test_every_methods_run_has_a_page_on_which_nothing_failed(tmp_path: Path, method: str) -> None:
    data: dict[str, Any] = {"known": 3, "public": 0.1}
    if METHODS.get(method).grows:
        data = {"known": 3, "newcomers": {"late": {"name": "synthetic:8x8x1:5:80"}}}
    if "estimator" in METHODS.get(method).composes:
        data = {"known": 3, "novel": 1}
    tables = {"data": data, "method": {"name": method, **brief(method)}, "model": {"name": "mlp", "hidden": [8, 6]}}
    text = page(trained(tmp_path / "run", "synthetic:8x8x1:5:120", clients=3, **tables))
    assert "could not be drawn" not in text
    assert "Left out" not in text
    assert text.count("<section") >= 9


def test_discovered_classes_have_a_part_of_their_own(discovered: Path) -> None:
    text = page(discovered)
    section = re.search(r'<section id="discovery">.*?</section>', text, re.S)
    assert section is not None
    for name in ("novel-1", "novel-4"):
        assert f"<h4>{name}</h4>" in section[0]
    assert "Prototypes" in section[0]
    assert "could not be drawn" not in text


@pytest.mark.parametrize(("method", "section"), [("fedpd", "masks"), ("fedoss", "boundary")])
def test_what_a_method_adds_has_a_part_of_its_own(tmp_path: Path, method: str, section: str) -> None:
    extra = {"finetune_rounds": 1} if method == "fedoss" else {}
    table = {"name": method, "rounds": 1, "epochs": 1, **extra}
    text = page(trained(tmp_path / "run", data={"known": 3}, method=table, model={"name": "mlp", "hidden": [8, 6]}))
    part = re.search(rf'<section id="{section}">.*?</section>', text, re.S)
    assert part is not None
    assert "could not be drawn" not in part[0]
    assert part[0].count("<figure") >= 2


def test_a_newcomer_has_a_part_with_verdict_and_contributions(tmp_path: Path) -> None:
    from fedwild.lifecycle.welcome import welcome

    image_file(tmp_path / "home.npz", {"a": 0, "b": 2})
    image_file(tmp_path / "late.npz", {"c": 4, "d": 6}, seed=3)
    source = trained(tmp_path / "first", str(tmp_path / "home.npz"))
    late = tmp_path / "late.npz"
    run = welcome(source, late, rounds=2, workers=0, settings={"method": {"lr": 0.02}}, out=tmp_path / "second")
    text = page(run.path)
    assert "late brings" in text
    assert "Contributions to the encoder" in text
    assert "Before and after" in text
    repeat = re.search(r"<code>(fedwild welcome .*?)</code>", text)
    assert repeat is not None
    words = shlex.split(html.unescape(repeat[1]))
    with pytest.raises(SystemExit) as ended:
        main([*words[1:], "--out", str(tmp_path / "again"), "--workers", "0", "--quiet"])
    assert ended.value.code == 0
    assert model_bytes(tmp_path / "again") == model_bytes(run.path)


def test_two_hundred_clients_and_a_hundred_classes_fit(tmp_path: Path) -> None:
    run = trained(
        tmp_path / "run", "synthetic:8x8x1:100:4000", clients=200, data={"known": 90}, method={"rounds": 2, "epochs": 1}
    )
    begin = time.process_time()
    written = write_report(run)
    assert time.process_time() - begin < 10
    assert written.stat().st_size < 3_000_000
    text = written.read_text()
    assert text.count("<image") == 2, "both tables are pictures"
    assert "could not be drawn" not in text


def test_a_part_that_fails_costs_no_other(
    finished: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a <b> of nothing")

    monkeypatch.setattr("fedwild.results.report.sections.classes.confusion", broken)
    text = page(finished)
    assert "This could not be drawn: ZeroDivisionError: a &lt;b&gt; of nothing" in text
    assert "Feature map" in text
    assert "Confusion matrix could not be drawn" in caplog.text
    assert caplog.records[0].levelname == "WARNING"
