"""The base class of everything that a config can name: methods, objectives, scores, networks, partitions ..."""

from __future__ import annotations

from typing import Any, ClassVar

from fedwild.core.settings import Settings


class Component:
    """A named part with typed settings. The first line of its docstring is its summary in lists."""

    name: ClassVar[str]
    """The registered name, or the import path of a user's own class."""
    Params: ClassVar[type[Settings]] = Settings

    def __init__(self, params: Any) -> None:
        self.params = params


def summary_of(cls: type) -> str:
    """Return the first line of a class's docstring."""
    return (cls.__doc__ or "").strip().partition("\n")[0]
