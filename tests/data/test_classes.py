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


def test_the_seed_of_the_run_can_choose_the_classes() -> None:
    data = DataSettings(known=5, class_seed="run")
    for seed in range(4):
        assert choose_classes(TEN, "mnist", data, seed) == choose_classes(
            TEN, "mnist", DataSettings(known=5, class_seed=seed)
        )
    assert len({choose_classes(TEN, "mnist", data, seed) for seed in range(8)}) > 4


def test_known_classes_can_be_chosen_among_the_largest() -> None:
    """Unknown ones are chosen from all that remain, not only from the smaller classes."""
    sizes = {name: 100 - 10 * int(name) for name in TEN} | {"9": 1000}
    seen: list[set[str]] = [set(), set()]
    for seed in range(400):
        data = DataSettings(known=3, unknown=2, known_among=4, class_seed=seed)
        roles = choose_classes(TEN, "mnist", data, sizes=sizes)
        assert set(roles.known) < {"9", "0", "1", "2"} and len(roles.known) == 3 and len(roles.unknown) == 2
        seen[0] |= set(roles.known)
        seen[1] |= set(roles.unknown)
    assert seen == [{"9", "0", "1", "2"}, set(TEN)]
    assert choose_classes(TEN, "mnist", DataSettings(known=3, known_among=4), sizes=sizes).known == ("0", "1", "2")


@pytest.mark.parametrize(
    ("settings", "sizes", "message"),
    [
        ({"known": 3}, dict.fromkeys(TEN, 1), r"data\.known_among = 2 must be at least data\.known = 3"),
        ({"known": ["1"]}, dict.fromkeys(TEN, 1), r"data\.known_among = 2 needs a number as data\.known"),
        ({"known": 1}, None, r"data\.known_among = 2 is not allowed with data at sites"),
    ],
)
def test_the_largest_classes_need_a_number_and_sizes(
    settings: dict[str, Any], sizes: dict[str, int] | None, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        choose_classes(TEN, "mnist", DataSettings(known_among=2, **settings), sizes=sizes)


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
