"""Declarations that subclasses do not inherit together with changed behaviour."""

from __future__ import annotations

from types import FunctionType
from typing import Any


def declared(cls: type, attribute: str, missing: Any = None) -> Any:
    """Return a class attribute that the class itself declares, or that it inherits without overriding any function.

    A promise about what a class computes, such as which level of privacy it supports, does not hold for a subclass that
    computes something else. Such a subclass must repeat the promise; otherwise this returns `missing`.
    """
    for base in cls.__mro__:
        if attribute in vars(base):
            return vars(base)[attribute]
        if any(isinstance(value, (FunctionType, property)) for value in vars(base).values()):
            return missing
    return missing
