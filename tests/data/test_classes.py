from __future__ import annotations

from typing import Any

import pytest

from fedwild.core.errors import UserError
from fedwild.data import DataSettings
from fedwild.data.classes import choose_classes

TEN = tuple(str(digit) for digit in range(10))


def choose(name: str = "mnist", **settings: Any) -> tuple[str, str, str]:
    """Return known, novel and unknown classes as strings of digits."""
    roles = choose_classes(TEN, name, DataSettings(**settings))
    return tuple("".join(names) for names in roles)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ("0123456789", "", "")),
        ({"name": "digits"}, ("012345", "", "6789")),
        ({"name": "digits", "novel": 2}, ("012345", "67", "89")),
        ({"name": "digits", "known": "all"}, ("0123456789", "", "")),
        ({"known": 4}, ("0123", "", "456789")),
        ({"known": 4, "novel": 3}, ("0123", "456", "789")),
        ({"known": 4, "unknown": 2}, ("0123", "", "45")),
        ({"novel": 3}, ("0123456", "789", "")),
        ({"unknown": 3}, ("0123456", "", "789")),
        ({"novel": ["0", "1"]}, ("23456789", "01", "")),
        ({"known": ["9", "1"], "novel": 2}, ("91", "02", "345678")),
        ({"known": [9, 1], "unknown": []}, ("91", "", "")),
        ({"known": 3, "novel": ["0"], "unknown": ["1"]}, ("234", "0", "1")),
    ],
)
def test_roles(settings: dict[str, Any], expected: tuple[str, str, str]) -> None:
    name = str(settings.pop("name", "mnist"))
    assert choose(name, **settings) == expected


def test_class_seed_chooses_at_random_and_reproducibly() -> None:
    first = choose(known=5, novel=2, class_seed=1)
    assert first == choose(known=5, novel=2, class_seed=1)
    assert len({choose(known=5, novel=2, class_seed=seed) for seed in range(8)}) > 4
    assert sorted("".join(first)) == list(TEN)
    assert list(first[0]) == sorted(first[0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"known": ["cat"]}, r"data\.known: class 'cat' is not known"),
        ({"known": ["1"], "novel": ["1"]}, r"class '1' is in both data\.known and data\.novel"),
        ({"novel": ["1"], "unknown": ["1"]}, r"in both data\.novel and data\.unknown"),
        ({"known": 11}, r"data\.known = 11 is not allowed: only 10 of 10 classes are available"),
        ({"known": 6, "novel": 5}, r"data\.known = 6, data\.novel = 5"),
        ({"known": "all", "novel": 1}, r"data\.novel = 1"),
        ({"novel": 6, "unknown": 4}, "leave no class to be known"),
    ],
)
def test_impossible_roles_are_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        choose(**settings)
