"""The page: header, key metrics and sections, in one file that loads nothing else."""

from __future__ import annotations

from importlib import resources

from fedwild.core.version import __version__
from fedwild.results.report.facts import Facts
from fedwild.results.report.guard import guarded, reason
from fedwild.results.report.markup import Html, tag
from fedwild.results.report.palette import stylesheet
from fedwild.results.report.sections import missing_sections, shown_sections
from fedwild.results.report.sections.overview import subtitle_of, tiles, title_of


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
