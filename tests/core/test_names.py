"""Names of classes and clients: which are allowed, and which are too similar."""

from __future__ import annotations

import pytest

from fedwild.core.errors import UserError
from fedwild.core.names import Kind, Seen, check_name, plain_name


@pytest.mark.parametrize("name", ["cat", "T-shirt/top", "unknown-1", "Straße 7", "北京", "*", ".hidden"])
def test_ordinary_class_names_are_allowed(name: str) -> None:
    check_name(name, "mine.npz")


@pytest.mark.parametrize("name", ["unknown", "Unknown", "UNKNOWN", " unknown", "unknown\u0020"])
def test_no_class_may_be_called_unknown(name: str) -> None:
    with pytest.raises(UserError, match=r"^mine\.npz: class name .* 'unknown' is the answer for samples of no class"):
        check_name(name, "mine.npz")
    check_name(name, "mine.npz", "client")


@pytest.mark.parametrize("kind", ["class", "client"])
@pytest.mark.parametrize(
    "name", ["", "  ", "a\nb", "\x1b[31mred", "a\x00", "a\u202eb", "zero\u200bwidth", "\udcff", "x" * 101]
)
def test_empty_long_and_unprintable_names_are_rejected(name: str, kind: Kind) -> None:
    with pytest.raises(UserError) as refused:
        check_name(name, "here", kind)
    (problem,) = refused.value.problems
    assert problem.isprintable()
    assert problem.startswith(f"here: {kind} name ")


@pytest.mark.parametrize("name", ["a/b", "a\\b", "..", ".", ".hidden", "*", "北" * 100])
def test_a_clients_name_must_be_a_file_name(name: str) -> None:
    with pytest.raises(UserError, match=r"^here: client name"):
        check_name(name, "here", "client")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        *[("cat", "Cat"), ("cat", "cat "), ("cat", " CAT"), ("STRASSE", "straße"), ("two words", "two  words")],
        ("caf\u00e9", "cafe\u0301"),
    ],
)
def test_names_that_differ_only_by_case_or_spaces_are_rejected_with_both_origins(first: str, second: str) -> None:
    assert plain_name(first) == plain_name(second)
    seen: Seen = {}
    check_name(first, "a.npz", "class", seen)
    check_name(first, "b.npz", "class", seen)
    with pytest.raises(UserError) as refused:
        check_name(second, "c.npz", "class", seen)
    assert str(refused.value) == (
        f"c.npz: class {second!r} differs from {first!r} only by case or spaces ({first!r} is from a.npz). "
        "Rename one of them."
    )
