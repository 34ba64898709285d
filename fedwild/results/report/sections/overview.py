"""Settings of the run, and its key metrics."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedwild.core.defaults import DEFAULT_WELCOME
from fedwild.core.names import UNKNOWN_NAME
from fedwild.core.text import count, cut, duration, size
from fedwild.core.toml import dump_toml, toml_value
from fedwild.data.partitions import POOL
from fedwild.display.figures import epsilon_text, figure_text, shown_figures
from fedwild.lifecycle.welcome import welcome_settings
from fedwild.methods import METHODS
from fedwild.results.report.facts import Facts
from fedwild.results.report.figure import definitions, details, table
from fedwild.results.report.markup import Child, Html, joined, tag
from fedwild.runs.components import KINDS

MAX_NAMES, MAX_NAME, MAX_TILES = 24, 30, 8
IMPORTANT = ("rounds", "epochs", "batch_size", "optimizer", "lr", "momentum")
"""Settings of the method that are listed by name."""


def tiles(facts: Facts) -> Html:
    """Return the key metrics and costs."""
    pairs = [(label, figure_text(key, facts.metrics.get(key))) for key, label in shown_figures(facts.metrics).items()]
    pairs += [("epsilon", epsilon_text(facts.privacy))] if facts.privacy else []
    seconds = sum(cost.training_seconds + cost.evaluation_seconds for cost in facts.history.costs.values())
    up = sum(cost.bytes_up for cost in facts.history.costs.values())
    down = sum(cost.bytes_down for cost in facts.history.costs.values())
    if facts.result is not None:
        seconds, up, down = (facts.result[key] for key in ("seconds", "bytes_up", "bytes_down"))
    pairs += [("time", duration(seconds)), ("sent up", size(up)), ("sent down", size(down))]
    # Many tiles are arranged in two rows of equal length.
    columns = len(pairs) if len(pairs) <= MAX_TILES else -(-len(pairs) // 2)
    boxes = [tag("div", tag("b", value), tag("span", name)) for name, value in pairs]
    return tag("div", *boxes, class_="tiles", style=f"--columns:{columns}")


def draw(facts: Facts) -> Html:
    """Return method, data, important settings, versions and the command that repeats the run."""
    return joined(
        [
            definitions([pair for pair in pairs_of(facts) if pair[1]]),
            details("All metrics", metrics_table(facts)) if facts.metrics else None,
            details("All settings (config.toml)", tag("pre", dump_toml(facts.table))),
        ]
    )


def pairs_of(facts: Facts) -> list[tuple[str, Child]]:
    settings, versions = facts.table, facts.about.get("versions", {})
    method, shape = settings.get("method", {}), facts.about.get("input", {}).get("shape")
    important = ", ".join(f"{key} {method[key]}" for key in IMPORTANT if key in method)
    return [
        ("Method", f"{facts.method} ({important})"),
        ("Components", ", ".join(f"{kind} {settings[kind]['name']}" for kind in KINDS if kind in settings)),
        ("Data", f"{' + '.join(data_names(facts))}{f', samples of shape {tuple(shape)}' if shape else ''}"),
        *class_lines(facts),
        ("Clients", clients_line(facts)),
        ("Network", part_line(settings.get("model", {}))),
        ("Rounds", rounds_line(facts)),
        ("Privacy", privacy_line(facts)),
        ("Starts from", settings.get("federation", {}).get("start_from")),
        ("Seed", str(settings.get("seed", "?"))),
        ("Versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("Folder", str(facts.run.path)),
        ("Command", tag("code", command(facts))),
    ]


def part_line(part: dict[str, Any]) -> str:
    """Return the name of a component with its settings."""
    more = ", ".join(f"{key} {value}" for key, value in part.items() if key != "name")
    return f"{part.get('name', '?')}{f' ({more})' if more else ''}"


def data_names(facts: Facts) -> list[str]:
    names = facts.table.get("data", {}).get("name", "?")
    return [names] if isinstance(names, str) else names


def class_lines(facts: Facts) -> list[tuple[str, Child]]:
    """Return the classes by role."""
    split = facts.split
    if split is None:
        return []
    return [
        ("Known classes", names_line(split.known)),
        ("Novel classes", names_line(split.novel)),
        ("Unknown classes", names_line(split.unknown)),
        ("Brought by newcomers", names_line(tuple(split.newcomer_classes))),
    ]


def names_line(names: tuple[str, ...]) -> str:
    """Return the number of names and the first of them."""
    if not names:
        return ""
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{len(names)}: {', '.join(cut(name, MAX_NAME) for name in names[:MAX_NAMES])}{more}"


def clients_line(facts: Facts) -> str:
    number = max(len(facts.split.clients) if facts.split is not None else 0, len(facts.history.clients))
    partition = "" if facts.at_sites else f", partition {part_line(facts.table.get('partition', {}))}"
    if facts.table.get(POOL):
        partition += f", pool partition {part_line(facts.table[POOL])}"
    share = facts.table.get("federation", {}).get("participation", 1.0)
    participation = "" if share == 1.0 else f", {100 * share:g} % take part in each round"
    names = facts.split.newcomers if facts.split is not None else ()
    newcomers = f", of which newcomers: {', '.join(names)}" if names else ""
    return f"{number}{partition}{participation}{newcomers}"


def rounds_line(facts: Facts) -> str:
    phases = ", ".join(f"{name} {cost.rounds}" for name, cost in facts.history.costs.items())
    before = facts.history.first_index
    earlier = f"{before} in the run that this one continues; " if before else ""
    return f"{facts.history.done} of {facts.history.planned} completed{f' ({earlier}{phases})' if phases else ''}"


def privacy_line(facts: Facts) -> str:
    """Return the guarantee of differential privacy and the assumption that it rests on; empty without privacy."""
    privacy = facts.privacy
    if not privacy:
        return ""
    guarantee = f"epsilon {epsilon_text(privacy)} at delta {privacy['delta']:.3g}"
    how = f"clip {privacy['clip']:g}, noise {privacy['noise']:g}"
    return f"{privacy['level']} level, {guarantee} ({how}); {privacy['sampling']}"


def command(facts: Facts) -> str:
    """Return the command that repeats the run."""
    if facts.about.get("history"):
        return welcome_command(facts)
    return shlex.join(["fedwild", "coordinate" if facts.at_sites else "run", str(facts.run.path / "config.toml")])


def welcome_command(facts: Facts) -> str:
    """Return the command for a run that welcomed a newcomer into another run."""
    newcomers = facts.table.get("data", {}).get("newcomers", {})
    name, own = list(newcomers.items())[-1]
    source = facts.table.get("federation", {}).get("start_from", "RUN")
    words = ["fedwild", "welcome", str(source), "--client", name if facts.at_sites else str(own.get("name"))]
    if not facts.at_sites:
        words += ["--name", name]
        words += [word for label in own.get("classes") or [] for word in ("--class", label)]
        words += [word for domain in own.get("domains") or [] for word in ("--domain", domain)]
        words += [word for pair in (own.get("labels") or {}).items() for word in ("--label", "=".join(pair))]
        words += ["--resize"] if own.get("resize") else []
    words += ["--method", facts.method] if facts.method != DEFAULT_WELCOME else []
    return shlex.join([*words, *(word for text in changed_settings(facts) for word in ("--set", text))])


def changed_settings(facts: Facts) -> list[str]:
    """Return the settings of the method and its components that a welcome would not choose, as `--set` takes them."""
    config = facts.run.settings
    kind = METHODS.get(config.method.name)
    usual = kind.Params.model_validate(welcome_settings(kind, None, None)).model_dump()
    method = {key: value for key, value in config.method.params.model_dump().items() if value != usual[key]}
    parts = {name: part.params.model_dump(exclude_defaults=True) for name, part in config.parts.items()}
    return [
        f"{section}.{key}={toml_value(value)}"
        for section, values in {"method": method, **parts}.items()
        for key, value in values.items()
        if value is not None
    ]


def metrics_table(facts: Facts) -> Html:
    """Return all metrics of the last evaluation."""
    rows = [(key, figure_text(key, value)) for key, value in facts.metrics.items()]
    note = f"In open-set metrics, {UNKNOWN_NAME!r} counts as one class."
    return joined([table(["metric", "value"], rows), tag("p", note, class_="note")])


def title_of(facts: Facts) -> str:
    """Return the title of the page."""
    return f"{facts.method} on {' + '.join(Path(name).name for name in data_names(facts))}"


def subtitle_of(facts: Facts) -> str:
    """Return the name of the run, its size and its state."""
    ends = facts.history.of("end")
    when = f" {time_text(ends[-1].get('time'))} UTC" if ends else ""
    state = f"finished{when}" if facts.result is not None else "unfinished"
    sizes = f"{count(len(facts.history.clients), 'client')}, {count(facts.history.done, 'round')}"
    return f"{facts.run.path.resolve().name}: {sizes}, {state}"


def time_text(seconds: Any) -> str:
    """Return a time stamp as date and time."""
    if not isinstance(seconds, (int, float)):
        return ""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
