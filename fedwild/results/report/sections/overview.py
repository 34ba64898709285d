"""What was run, and the figures that count most."""

from __future__ import annotations

import shlex
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from fedwild.core.classes import UNKNOWN_NAME
from fedwild.core.toml import dump_toml, toml_value
from fedwild.display.run_display import count, figure, shown, size
from fedwild.core.text import cut
from fedwild.display.progress import duration
from fedwild.results.report.facts import Facts
from fedwild.results.report.figure import definitions, details, table
from fedwild.results.report.markup import Child, Html, joined, tag

MAX_NAMES, NAME, MAX_TILES = 24, 30, 8


def tiles(facts: Facts) -> Html:
    """The key figures in a row."""
    metrics = facts.metrics
    pairs = [(label, figure(key, metrics.get(key))) for key, label in shown(metrics).items()]
    seconds = sum(cost.train_seconds + cost.evaluation_seconds for cost in facts.history.costs.values())
    up = sum(cost.bytes_up for cost in facts.history.costs.values())
    down = sum(cost.bytes_down for cost in facts.history.costs.values())
    if facts.result is not None:
        seconds, up, down = (facts.result[key] for key in ("seconds", "bytes_up", "bytes_down"))
    pairs += [("time", duration(seconds)), ("sent up", size(up)), ("sent down", size(down))]
    # In two rows of equal length where one would be crowded.
    columns = len(pairs) if len(pairs) <= MAX_TILES else -(-len(pairs) // 2)
    boxes = [tag("div", tag("b", value), tag("span", name)) for name, value in pairs]
    return tag("div", *boxes, class_="tiles", style=f"--columns:{columns}")


def draw(facts: Facts) -> Html:
    """Method, data, the settings that matter, versions and the command."""
    return joined(
        [
            definitions([pair for pair in pairs_of(facts) if pair[1]]),
            details("All figures", figures_table(facts)) if facts.metrics else None,
            details("All settings (config.toml)", tag("pre", dump_toml(facts.table))),
        ]
    )


def pairs_of(facts: Facts) -> list[tuple[str, Child]]:
    """What is told of a run, line by line."""
    table, versions = facts.table, facts.about.get("versions", {})
    return [
        ("Method", f"{facts.method} ({', '.join(method_settings(table))})"),
        ("Parts", ", ".join(f"{kind} {table[kind]['name']}" for kind in PARTS if kind in table)),
        ("Data", data_line(facts)),
        *roles(facts),
        ("Clients", clients_line(facts)),
        ("Network", settings_of(table.get("model", {}))),
        ("Rounds", rounds_line(facts)),
        ("Starts from", table.get("federation", {}).get("start_from")),
        ("Seed", str(table.get("seed", "?"))),
        ("Versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("Folder", str(facts.run.path)),
        ("To repeat it", tag("code", command(facts))),
    ]


PARTS = ("objective", "correction", "score", "estimator")
SAID = ("rounds", "adapt_rounds", "stages")
"""What the command of a welcome says in other words."""
IMPORTANT = ("rounds", "epochs", "batch_size", "optimizer", "lr", "momentum")


def method_settings(table: dict[str, Any]) -> list[str]:
    """How clients train, in a few words."""
    method = table.get("method", {})
    return [f"{key} {method[key]}" for key in IMPORTANT if key in method]


def settings_of(part: dict[str, Any]) -> str:
    """A part's name, and its settings."""
    more = ", ".join(f"{key} {value}" for key, value in part.items() if key != "name")
    return f"{part.get('name', '?')}{f' ({more})' if more else ''}"


def data_line(facts: Facts) -> str:
    names = facts.table.get("data", {}).get("name", "?")
    listed = " + ".join([names] if isinstance(names, str) else names)
    shape = facts.about.get("input", {}).get("shape")
    return f"{listed}{f', samples of shape {tuple(shape)}' if shape else ''}"


def roles(facts: Facts) -> list[tuple[str, Child]]:
    """The classes by what the federation knows of them."""
    split = facts.split
    if split is None:
        return []
    return [
        ("Known classes", named(split.known)),
        ("Novel classes", named(split.novel)),
        ("Unknown classes", named(split.unknown)),
        ("Brought by newcomers", named(tuple(split.brought))),
    ]


def named(names: tuple[str, ...]) -> str:
    """Names in a line, not too many."""
    if not names:
        return ""
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{len(names)}: {', '.join(cut(name, NAME) for name in names[:MAX_NAMES])}{more}"


def clients_line(facts: Facts) -> str:
    number = len(facts.split.clients) if facts.split is not None else len(facts.history.clients)
    number = max(number, len(facts.history.clients))
    partition = settings_of(facts.table.get("partition", {}))
    share = facts.table.get("federation", {}).get("participation", 1.0)
    taking_part = "" if share == 1.0 else f", {100 * share:g} % take part in a round"
    newcomers = (
        f", of which newcomers: {', '.join(facts.split.newcomers)}" if facts.split and facts.split.newcomers else ""
    )
    dealt = "" if facts.at_sites else f", dealt by {partition}"
    return f"{number}{dealt}{taking_part}{newcomers}"


def rounds_line(facts: Facts) -> str:
    phases = ", ".join(f"{name} {cost.rounds}" for name, cost in facts.history.costs.items())
    before = facts.history.first_index
    earlier = f"{before} of them in the run before; " if before else ""
    return f"{facts.history.done} of {facts.history.planned} done{f' ({earlier}{phases})' if phases else ''}"


def command(facts: Facts) -> str:
    """What to type to have the run again."""
    config = shlex.quote(str(facts.run.path / "config.toml"))
    if facts.about.get("history"):
        return welcome_command(facts)
    return f"fedwild {'coordinate' if facts.at_sites else 'run'} {config}"


def welcome_command(facts: Facts) -> str:
    """The same for a run that welcomed a newcomer into another."""
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
    method = facts.table.get("method", {})
    words += ["--method", facts.method] if facts.method != "gains" else []
    rounds = method.get("adapt_rounds", method.get("rounds"))
    words += ["--rounds", str(rounds)] if rounds is not None else []
    return shlex.join([*words, *(word for text in chosen_settings(facts) for word in ("--set", text))])


def chosen_settings(facts: Facts) -> list[str]:
    """The method's and its parts' settings that are not what they are by default, as `--set` takes them."""
    config = facts.run.settings
    sections = {"method": config.method, **config.parts}
    return [
        f"{section}.{key}={toml_value(value)}"
        for section, part in sections.items()
        for key, value in part.params.model_dump(exclude_defaults=True).items()
        if value is not None and not (section == "method" and key in SAID)
    ]


def figures_table(facts: Facts) -> Html:
    """Every figure of the last evaluation."""
    rows = [(key, figure(key, value)) for key, value in facts.metrics.items()]
    note = f"{UNKNOWN_NAME!r} counts as one class in open figures; fractions are shown in per cent."
    return joined([table(["figure", "value"], rows), tag("p", note, class_="note")])


def title_of(facts: Facts) -> str:
    """The page's title: what was run."""
    names = facts.table.get("data", {}).get("name", "?")
    data = " + ".join(Path(name).name for name in ([names] if isinstance(names, str) else names))
    return f"{facts.method} on {data}"


def subtitle_of(facts: Facts) -> str:
    """The run's name, its size and its state."""
    ends = facts.history.of("end")
    when = f" {moment(ends[-1].get('time'))} UTC" if ends else ""
    state = f"finished{when}" if facts.result is not None else "unfinished"
    sizes = f"{count(len(facts.history.clients), 'client')}, {count(facts.history.done, 'round')}"
    return f"{facts.run.path.resolve().name}: {sizes}, {state}"


def moment(seconds: Any) -> str:
    """A time stamp as people read it."""
    if not isinstance(seconds, (int, float)):
        return ""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
