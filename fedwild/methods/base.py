"""The registry of methods."""

from __future__ import annotations

from fedwild.protocol import Method
from fedwild.registry import Registry

METHODS: Registry[Method] = Registry("method", lambda: Method)
