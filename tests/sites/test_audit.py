"""The audit log of a site: what it records, and that every change of it is found."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedwild.core.payload import Payload
from fedwild.sites.audit import AuditLog, describe_exchange
from fedwild.sites.audit_check import check_log, hash_of, verify
from fedwild.sites.envelope import Envelope
from tests.conftest import Cli, Refused
from tests.sites.inprocess import connected_sites, coordinated, tables

Lines = list[dict[str, Any]]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of six records."""
    audit = AuditLog(tmp_path / "site" / "audit.jsonl")
    for number in range(6):
        audit.append({"request": {"kind": "hello"}, "sent": {"bytes": number}})
    return audit.path


def lines_of(path: Path) -> Lines:
    return [json.loads(line) for line in path.read_text().splitlines()]


def rewrite(path: Path, lines: Lines) -> None:
    path.write_text("".join(json.dumps(line, sort_keys=True) + "\n" for line in lines))


def rehash(line: dict[str, Any]) -> dict[str, Any]:
    return {**line, "hash": hash_of(line)}


def test_an_unchanged_log_has_no_problems(log: Path) -> None:
    report = check_log(log)
    assert (report.lines, report.problems, report.sent_bytes) == (6, [], 15)


def test_the_chain_is_sha256_over_the_json_of_each_line(log: Path) -> None:
    previous = "0" * 64
    for line in lines_of(log):
        assert line["previous"] == previous
        text = json.dumps({key: value for key, value in line.items() if key != "hash"}, sort_keys=True)
        previous = hashlib.sha256(text.encode()).hexdigest()
        assert line["hash"] == previous


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda lines: [*lines[:2], {**lines[2], "sent": {"bytes": 0}}, *lines[3:]], "line 3 was changed"),
        (lambda lines: [*lines[:2], {**lines[2], "time": "2020"}, *lines[3:]], "line 3 was changed"),
        (lambda lines: lines[:2] + lines[3:], "line 3 is record 4: record 3 is missing before it"),
        (lambda lines: lines[:1] + lines[4:], "line 2 is record 5: records 2 to 4 are missing before it"),
        (lambda lines: lines[1:], "line 1 is record 2: record 1 is missing before it"),
        (lambda lines: lines[:-2], "records 5 to 6 are missing at the end"),
        (lambda lines: [], "records 1 to 6 are missing at the end"),
        (lambda lines: [lines[1], lines[0], *lines[2:]], "line 2 is record 1, but record 3 belongs there"),
        (lambda lines: [*lines, lines[5]], "line 7 is record 6, but record 7 belongs there"),
        (
            lambda lines: [*lines[:2], rehash({**lines[2], "sent": {"bytes": 0}}), *lines[3:]],
            "line 4 does not follow the line before it: that one was replaced",
        ),
        (lambda lines: [*lines[:5], rehash({**lines[5], "sent": {}})], "the last record is not the one in"),
        (lambda lines: [*lines, {"n": 7}], "line 7 was changed"),
    ],
)
def test_a_changed_removed_or_moved_line_is_named(change: Callable[[Lines], Lines], problem: str, log: Path) -> None:
    rewrite(log, change(lines_of(log)))
    assert any(problem in found for found in check_log(log).problems)


def test_a_line_that_is_no_record_is_named(log: Path) -> None:
    log.write_text(log.read_text() + "[" * 3000 + "\n")
    assert check_log(log).problems == ["line 7 is not a record"]


def test_a_new_chain_is_found_by_a_hash_that_was_noted(log: Path) -> None:
    noted = lines_of(log)[3]["hash"]
    assert check_log(log, noted).problems == []
    log.unlink()
    log.with_suffix(".head").unlink()
    AuditLog(log).append({"request": {"kind": "hello"}})
    assert check_log(log).problems == []
    assert "records were replaced" in check_log(log, noted).problems[0]


def test_a_log_without_its_head_says_what_cannot_be_found(log: Path) -> None:
    log.with_suffix(".head").unlink()
    assert "lines removed from the end cannot be found" in check_log(log).problems[0]


def test_a_line_whose_head_was_lost_by_a_crash_counts(log: Path) -> None:
    head = log.with_suffix(".head")
    before = head.read_text()
    AuditLog(log).append({"request": {"kind": "notice"}})
    head.write_text(before)
    AuditLog(log).append({"request": {"kind": "notice"}})
    assert check_log(log).problems == []
    assert check_log(log).lines == 8


@pytest.mark.parametrize("damage", [b'{"n": 7', b"\x00\xff\n"])
def test_a_damaged_log_is_put_aside_and_the_new_one_names_it(damage: bytes, log: Path) -> None:
    kept = log.read_bytes() + damage
    log.write_bytes(kept)
    AuditLog(log).append({"request": {"kind": "hello"}})
    first, second = lines_of(log)
    assert first["request"] == {"kind": "damaged"} and first["problem"] == "line 7 is not a record"
    assert second["request"] == {"kind": "hello"}
    assert (log.parent / first["log"]).read_bytes() == kept
    assert verify(log).problems == []


def test_only_the_user_can_read_the_log(log: Path) -> None:
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_record_has_names_shapes_and_digests_but_no_values() -> None:
    body = Payload.of({"samples": 3}, model={"w": __import__("torch").full((2, 3), 7.25)}).encode()
    request = Envelope({"kind": "job", "run": "r", "job": {"kind": "local", "step": {"phase": "train", "index": 4}}})
    reply = Envelope({"kind": "answer", "notes": ["a note"]}, body)
    record = describe_exchange(request, reply)
    asked = {key: record["request"][key] for key in ("kind", "run", "job", "phase", "round")}
    assert asked == {"kind": "job", "run": "r", "job": "local", "phase": "train", "round": 4}
    sent = record["sent"]
    assert sent["tensors"] == {"model/w": ["float32", 2, 3]} and sent["info"] == ["samples"]
    assert sent["head"] == {"kind": "answer", "notes": ["a note"]}
    assert sent["sha256"] == hashlib.sha256(reply.head_text().encode() + body).hexdigest()
    assert sent["bytes"] == len(reply.head_text()) + len(body)
    assert "7.25" not in json.dumps(record)


@pytest.mark.parametrize("head", [{}, {"kind": None}, {"kind": "job", "job": 3}, {"kind": "job", "job": {"step": []}}])
def test_any_request_can_be_recorded(head: dict[str, Any]) -> None:
    json.dumps(describe_exchange(Envelope(head), Envelope({"kind": "rejected"}, b"no payload")))


def test_everything_that_a_run_sends_is_in_the_log(tmp_path: Path, cli: Cli) -> None:
    sites = connected_sites(tmp_path)
    coordinated(sites, tables(), tmp_path / "run")
    path = tmp_path / "site-a" / "audit.jsonl"
    servers = {node: server.name for node, server in sites.servers.items()}
    answers = [reply for node, reply in sites.answered if servers[node] == "a"]
    digests = [hashlib.sha256(reply.head_text().encode() + reply.body).hexdigest() for reply in answers]
    assert [line["sent"]["sha256"] for line in lines_of(path)] == digests
    outcome = cli("audit", path)
    assert outcome.code == 0
    assert "every line is as it was written" in outcome.out
    assert "job local" in outcome.out
    assert json.loads(cli("audit", path, "--json").out)["lines"] == len(answers)


def test_the_command_names_the_changed_line(log: Path, refused: Refused) -> None:
    lines = lines_of(log)
    rewrite(log, [*lines[:2], {**lines[2], "sent": {}}, *lines[3:]])
    assert refused("audit", log) == f"error: {log}: line 3 was changed.\n"
    assert "cannot be read" in refused("audit", log.parent / "no-log")
