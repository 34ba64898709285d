"""Registries: components by name, and users' own components by import path."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Generic, TypeVar

from fedwild.core.component import Component
from fedwild.core.errors import UserError, unknown_name
from fedwild.core.settings import validate
from fedwild.core.trust import check_import

T = TypeVar("T", bound=Component)


class Registry(Generic[T]):
    """The classes of one kind of component, which is also their section in a config.

    A name with a colon is the import path of a user's own class: `package.module:Class`. It is imported only if that is
    allowed here (`core.trust`), and nothing but a class of the right kind is ever called.
    """

    def __init__(self, kind: str, base: type[Any]) -> None:
        self.kind = kind
        self.base = base
        self._classes: dict[str, type[T]] = {}

    def add(self, name: str) -> Callable[[type[T]], type[T]]:
        """Return a class decorator that registers the class under `name`."""

        def register(cls: type[T]) -> type[T]:
            cls.name = name
            self._classes[name] = cls
            return cls

        return register

    def names(self) -> list[str]:
        """Return the registered names, sorted."""
        return sorted(self._classes)

    def get(self, name: str) -> type[T]:
        """Return the class registered as `name` or found at that import path."""
        if ":" in name:
            return self._import(name)
        if name not in self._classes:
            raise unknown_name(self.kind, name, self._classes)
        return self._classes[name]

    def make(self, name: str, settings: Mapping[str, Any] | None = None) -> T:
        """Return an instance of the class called `name`, with validate settings."""
        cls = self.get(name)
        return cls(validate(cls.Params, settings or {}, self.kind))

    def adapt(self, path: str, found: Any) -> type[T]:
        """Return a component for an imported object that is not a subclass of the base class, or reject it."""
        raise UserError(
            f"{self.kind} {path!r} is not a subclass of {self.base.__module__}.{self.base.__qualname__}: derive it "
            "from that class."
        )

    def _import(self, path: str) -> type[T]:
        module, _, attribute = path.partition(":")
        if not module or not attribute or module.startswith("."):
            raise UserError(f"{self.kind} {path!r} is not an import path: write it as package.module:Class.")
        check_import(self.kind, path)
        try:
            found = attrgetter(attribute)(importlib.import_module(module))
        except Exception as error:
            # Importing runs the user's module, which may raise anything.
            raise UserError(f"{self.kind} {path!r} cannot be imported: {type(error).__name__}: {error}.") from error
        is_component = isinstance(found, type) and issubclass(found, self.base)
        cls: type[T] = found if is_component else self.adapt(path, found)
        if "name" not in cls.__dict__:
            cls.name = path
        return cls
