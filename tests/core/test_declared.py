"""A promise about what a class computes does not hold for subclasses that compute something else."""

from __future__ import annotations

from fedwild.core.declared import declared


class Base:
    promise = ("a",)

    def work(self) -> int:
        return 1


class Renamed(Base):
    name = "other"


class Changed(Base):
    def work(self) -> int:
        return 2


class Repeats(Changed):
    promise = ("b",)

    def work(self) -> int:
        return 3


def test_a_class_declares_for_itself_and_for_subclasses_without_functions() -> None:
    assert declared(Base, "promise") == declared(Renamed, "promise") == ("a",)


def test_a_subclass_that_overrides_a_function_or_a_property_must_repeat_the_promise() -> None:
    class WithProperty(Base):
        @property
        def size(self) -> int:
            return 0

    assert Changed.promise == ("a",)
    assert declared(Changed, "promise", ()) == declared(WithProperty, "promise", ()) == ()
    assert declared(Repeats, "promise") == ("b",)


def test_a_class_without_any_declaration_has_none() -> None:
    assert declared(int, "promise", ()) == ()
