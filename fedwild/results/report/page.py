"""The page: head, key figures, sections; one file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

import fedwild
from fedwild.core.errors import UserError
from fedwild.results.report.facts import Facts
from fedwild.results.report.guard import guarded, log, why
from fedwild.results.report.markup import Html, tag
from fedwild.results.report.palette import stylesheet
from fedwild.results.report.sections import SECTIONS, Section
from fedwild.results.report.sections.overview import subtitle_of, tiles, title_of


def page_of(facts: Facts) -> str:
    """The whole page as text."""
    concerned = [section for section in SECTIONS if concerns(section, facts)]
    shown = [section for section in concerned if not section.missing(facts)]
    bodies = [*(drawn(section, facts) for section in shown), *left_out(concerned, facts)]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        # An empty icon keeps browsers from asking for one.
        Html('<link rel="icon" href="data:,">'),
        tag("title", f"{title_of(facts)} – fedwild report"),
        tag("style", Html(stylesheet() + own("style.css"))),
    )
    body = tag(
        "body",
        guarded("the title", lambda: header(facts)),
        tag("nav", *(tag("a", section.title, href=f"#{section.id}") for section in shown)),
        tag("main", *state(facts), guarded("key figures", lambda: tiles(facts)), *bodies),
        tag("footer", f"Made by fedwild {fedwild.__version__} from the run folder {facts.run.path}."),
        tag("script", Html(own("script.js"))),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def own(name: str) -> str:
    """A file of this package as text."""
    return resources.files("fedwild.results.report").joinpath(name).read_text(encoding="utf-8")


def header(facts: Facts) -> Html:
    button = tag("button", "Light or dark", type="button", id="theme", class_="needs-script")
    titles = tag("div", tag("h1", title_of(facts)), tag("p", subtitle_of(facts)))
    return tag("header", titles, button)


def state(facts: Facts) -> list[Html]:
    """A word for a finished run; for an unfinished one a banner that nobody overlooks."""
    if facts.result is not None:
        return []
    done, planned = facts.history.done, facts.history.planned
    text = f"This run is unfinished: {done} of {planned} rounds are done. Figures are of the last checkpoint. "
    return [tag("p", tag("b", text), tag("code", f"fedwild resume {facts.run.path}"), " goes on.", class_="banner")]


def left_out(sections: Sequence[Section], facts: Facts) -> list[Html]:
    """One sentence for all sections that are missing for the same reason."""
    titles: dict[str, list[str]] = {}
    for section in sections:
        if reason := section.missing(facts):
            titles.setdefault(reason, []).append(section.title)
    return [tag("section", tag("h2", "Left out: ", ", ".join(names)), why(reason)) for reason, names in titles.items()]


def concerns(section: Section, facts: Facts) -> bool:
    """Whether a section is shown; one that cannot tell is left out, with a warning."""
    try:
        return section.concerns(facts)
    except UserError:
        # The sections that need what is missing say so.
        return False
    except Exception as error:
        log.warning("report: section %r is left out: %s: %s", section.title, type(error).__name__, error)
        return False


def drawn(section: Section, facts: Facts) -> Html:
    body = guarded(section.title, lambda: section.draw(facts))
    return tag("section", tag("h2", section.title), body, id=section.id)
