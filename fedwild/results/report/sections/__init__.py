"""The sections of a report in their order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedwild.core.errors import UserError
from fedwild.results.report.facts import Facts
from fedwild.results.report.guard import guarded, log
from fedwild.results.report.markup import Html, tag
from fedwild.results.report.sections import (
    classes,
    clients,
    cost,
    discovery,
    events,
    exhibits,
    openset,
    outliers,
    overview,
    progress,
    samples,
)


def always(facts: Facts) -> bool:
    return True


def never(facts: Facts) -> bool:
    return False


def nothing(facts: Facts) -> str:
    return ""


def no_views(facts: Facts) -> str:
    return facts.no_views


def no_data(facts: Facts) -> str:
    return facts.no_data


def no_exhibits(facts: Facts) -> str:
    return facts.no_exhibits


def empty(facts: Facts) -> Html:
    return Html()


@dataclass(frozen=True)
class Section:
    """One section of the page. It also shows the method's exhibits that name its title as their section."""

    id: str
    title: str
    content: Callable[[Facts], Html]
    is_relevant: Callable[[Facts], bool] = always
    missing: Callable[[Facts], str] = nothing
    """Returns why the section cannot be drawn; an empty text if it can."""

    def is_shown(self, facts: Facts) -> bool:
        """Whether the section is relevant and can be drawn."""
        try:
            return self.is_relevant(facts) and not self.missing(facts)
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
    Section("exhibits", "Exhibits of the method", empty, never, no_exhibits),
)
AFTER_EXHIBITS = (
    Section("open-set", "Known and unknown", openset.draw, missing=no_views),
    Section("answers", "Answers by class", classes.draw_answers, missing=no_views),
    Section("samples", "Samples", samples.draw, missing=no_views),
    Section("outliers", "Outliers", outliers.draw, outliers.is_relevant),
    Section("data", "Data by client", classes.draw_data, missing=no_data),
    Section("cost", "Time and communication", cost.draw),
    Section("clients", "Clients", clients.draw),
    Section("log", "Log", events.draw),
)


def shown_sections(facts: Facts) -> list[Section]:
    """Return the sections that are drawn; exhibits that name no other section have their own."""
    before, after = ([s for s in part if s.is_shown(facts)] for part in (BEFORE_EXHIBITS, AFTER_EXHIBITS))
    titles = {section.title for section in (*before, *after)}
    names = dict.fromkeys(exhibit.section for exhibit in facts.exhibits if exhibit.section not in titles)
    added = [Section(f"exhibits-{number}", name, empty) for number, name in enumerate(names, start=1)]
    return [*before, *added, *after]


def missing_sections(facts: Facts) -> dict[str, list[str]]:
    """Return the titles of the sections that cannot be drawn, by reason."""
    titles: dict[str, list[str]] = {}
    for section in (*BEFORE_EXHIBITS, *AFTER_EXHIBITS):
        if reason := section.missing(facts):
            titles.setdefault(reason, []).append(section.title)
    return titles
