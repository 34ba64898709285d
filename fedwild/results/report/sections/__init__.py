"""The sections of a report in their order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedwild.core.errors import UserError
from fedwild.results.report.answers import ModelAnswers
from fedwild.results.report.facts import Facts
from fedwild.results.report.figure import guarded, log
from fedwild.results.report.markup import Html, joined, tag
from fedwild.results.report.sections import (
    classes,
    discovery,
    exhibits,
    history,
    openset,
    outliers,
    overview,
    progress,
    samples,
)


def for_each_view(draw: Callable[[Facts, ModelAnswers], Html]) -> Callable[[Facts], Html]:
    """Return a function that gives what `draw` returns for every model that is shown, under the name of its client."""

    def draw_all(facts: Facts) -> Html:
        parts: list[Html] = []
        for answers in facts.views:
            if answers.client is not None:
                parts.append(tag("h3", f"{answers.client} ", tag("small", answers.about)))
            if answers.is_part:
                text = f"On {len(answers.rows)} of {answers.total} test samples, drawn at random."
                parts.append(tag("p", text, class_="note"))
            parts.append(draw(facts, answers))
        return joined(parts)

    return draw_all


@dataclass(frozen=True)
class Section:
    """One section of the page. It also shows the method's exhibits that name its title as their section."""

    id: str
    title: str
    content: Callable[[Facts], Html] = lambda facts: Html()
    is_relevant: Callable[[Facts], bool] = lambda facts: True
    missing: str = ""
    """The field of `Facts` that says why the section cannot be drawn, if it needs something that may be missing."""

    def why_missing(self, facts: Facts) -> str:
        """Return why the section cannot be drawn; an empty text if it can."""
        return getattr(facts, self.missing) if self.missing else ""

    def is_shown(self, facts: Facts) -> bool:
        """Whether the section is relevant and can be drawn."""
        try:
            return self.is_relevant(facts) and not self.why_missing(facts)
        except UserError:
            # The sections that need what is missing give the reason.
            return False
        except Exception as error:
            log.warning("report: section %r is omitted: %s: %s", self.title, type(error).__name__, error)
            return False

    def draw(self, facts: Facts) -> Html:
        shown = exhibits.draw(facts, self.title)
        return tag(
            "section", tag("h2", self.title), shown, guarded(self.title, lambda: self.content(facts)), id=self.id
        )


BEFORE_EXHIBITS = (
    Section("run", "Overview", overview.draw),
    Section("progress", "Rounds", progress.draw),
    Section("discovery", "Discovered classes", discovery.draw, discovery.is_relevant),
    Section("exhibits", "Exhibits of the method", is_relevant=lambda facts: False, missing="no_exhibits"),
)
AFTER_EXHIBITS = (
    Section("open-set", "Known and unknown", for_each_view(openset.draw), missing="no_views"),
    Section("answers", "Answers by class", for_each_view(classes.draw_answers), missing="no_views"),
    Section("samples", "Samples", for_each_view(samples.draw), missing="no_views"),
    Section("outliers", "Outliers", outliers.draw, outliers.is_relevant),
    Section("data", "Data by client", classes.draw_data, missing="no_data"),
    Section("cost", "Time and communication", history.draw_costs),
    Section("clients", "Clients", history.draw_clients),
    Section("log", "Log", history.draw_events),
)


def shown_sections(facts: Facts) -> list[Section]:
    """Return the sections that are drawn; exhibits that name no other section have their own."""
    before, after = ([s for s in part if s.is_shown(facts)] for part in (BEFORE_EXHIBITS, AFTER_EXHIBITS))
    titles = {section.title for section in (*before, *after)}
    names = dict.fromkeys(exhibit.section for exhibit in facts.exhibits if exhibit.section not in titles)
    added = [Section(f"exhibits-{number}", name) for number, name in enumerate(names, start=1)]
    return [*before, *added, *after]


def missing_sections(facts: Facts) -> dict[str, list[str]]:
    """Return the titles of the sections that cannot be drawn, by reason."""
    titles: dict[str, list[str]] = {}
    for section in (*BEFORE_EXHIBITS, *AFTER_EXHIBITS):
        if reason := section.why_missing(facts):
            titles.setdefault(reason, []).append(section.title)
    return titles
