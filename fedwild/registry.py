"""Named, exchangeable parts: methods, objectives, corrections."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from fedwild.errors import UserError, unknown_name

T = TypeVar("T")


class Registry(Generic[T]):
    """Classes by name. A name with a colon is an import path to the user's own class: `package.module:Class`."""

    def __init__(self, kind: str, base: Callable[[], type[Any]]) -> None:
        self.kind = kind
        self._base = base
        self._classes: dict[str, type[T]] = {}

    def add(self, name: str) -> Callable[[type[T]], type[T]]:
        """Class decorator that registers under `name`."""

        def register(cls: type[T]) -> type[T]:
            cls.name = name  # type: ignore[attr-defined]
            self._classes[name] = cls
            return cls

        return register

    def names(self) -> list[str]:
        return sorted(self._classes)

    def get(self, name: str) -> type[T]:
        """The class called `name`; a `UserError` with a suggestion if there is none."""
        if ":" in name:
            return self._imported(name)
        if name not in self._classes:
            raise unknown_name(self.kind, name, self._classes)
        return self._classes[name]

    def _imported(self, path: str) -> type[T]:
        module, _, attribute = path.partition(":")
        try:
            cls = getattr(importlib.import_module(module), attribute)
        except Exception as error:
            # The user's module runs as it is imported, so anything may go wrong in it.
            raise UserError(f"{self.kind} {path!r} cannot be imported: {type(error).__name__}: {error}.") from error
        base = self._base()
        if not (isinstance(cls, type) and issubclass(cls, base)):
            raise UserError(f"{self.kind} {path!r} is not a subclass of {base.__module__}.{base.__qualname__}.")
        if "name" not in cls.__dict__:
            cls.name = path  # type: ignore[attr-defined]
        return cls
