"""The page: header, key metrics and sections, written to one file that loads nothing else."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from fedwild.core.errors import UserError
from fedwild.core.version import __version__
from fedwild.lifecycle.run import Run
from fedwild.results.output import write_output
from fedwild.results.report.facts import Facts, read_facts
from fedwild.results.report.figure import guarded, reason
from fedwild.results.report.markup import Html, tag
from fedwild.results.report.palette import stylesheet
from fedwild.results.report.sections import missing_sections, shown_sections
from fedwild.results.report.sections.overview import subtitle_of, tiles, title_of

NAME = "report.html"


def write_report(run: Run | str | Path, path: str | Path | None = None, workers: int | None = None) -> Path:
    """Write the report of a run, finished or not, and return its path: by default `report.html` in the run folder.

    The page loads nothing else: neither from the network nor from the run folder. `workers` is the number of processes
    for the evaluation; by default, a long evaluation uses several and a short one none.
    """
    run = run if isinstance(run, Run) else Run(run)
    target = run.path / NAME if path is None else Path(path)
    check_target(target)
    text = page_of(read_facts(run, workers))
    write_output(target, text.encode("utf-8", "replace"), private=path is None)
    return target


def check_target(path: Path) -> None:
    """Raise `UserError` for a path that cannot be written, before any work is done."""
    if path.is_dir():
        raise UserError(f"--out {str(path)!r} is a folder: name a file, such as {str(path / NAME)!r}.")
    if not path.parent.is_dir():
        raise UserError(f"--out {str(path)!r}: the folder {str(path.parent)!r} does not exist.")


def page_of(facts: Facts) -> str:
    """Return the whole page as text."""
    sections = shown_sections(facts)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        # Without an icon, browsers would request one.
        Html('<link rel="icon" href="data:,">'),
        tag("title", f"{title_of(facts)} – fedwild report"),
        tag("style", Html(stylesheet() + package_file("style.css"))),
    )
    body = tag(
        "body",
        guarded("the title", lambda: header(facts)),
        tag("nav", *(tag("a", section.title, href=f"#{section.id}") for section in sections)),
        tag(
            "main",
            banner(facts),
            guarded("key metrics", lambda: tiles(facts)),
            *(section.draw(facts) for section in sections),
            *(
                tag("section", tag("h2", "Not available: ", ", ".join(titles)), reason(text))
                for text, titles in missing_sections(facts).items()
            ),
        ),
        tag("footer", f"Written by fedwild {__version__} from the run folder {facts.run.path}."),
        tag("script", Html(package_file("script.js"))),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def package_file(name: str) -> str:
    """Return a file of this package as text."""
    return resources.files("fedwild.results.report").joinpath(name).read_text(encoding="utf-8")


def header(facts: Facts) -> Html:
    button = tag("button", "Light / dark", type="button", id="theme", class_="needs-script")
    titles = tag("div", tag("h1", title_of(facts)), tag("p", subtitle_of(facts)))
    return tag("header", titles, button)


def banner(facts: Facts) -> Html | None:
    """Return a banner that says that the run is unfinished; nothing for a finished run."""
    if facts.result is not None:
        return None
    done, planned = facts.history.done, facts.history.planned
    text = f"This run is unfinished: {done} of {planned} rounds are completed. "
    command = tag("code", f"fedwild resume {facts.run.path}")
    return tag("p", tag("b", text), "Metrics are those of the last checkpoint. To continue: ", command, class_="banner")
