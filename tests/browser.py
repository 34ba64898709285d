"""A real browser for the tests of pages. Without one they are skipped, except in CI: there they fail."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run"),
)


@contextmanager
def open_browser() -> Iterator[Any]:
    """Yield a running Chromium; skip the test, or fail if `CI` is set, where it cannot be started."""
    try:
        playwright = importlib.import_module("playwright.sync_api")
    except ImportError:
        _give_up("playwright is not installed.")
    if CHROMIUM is None:
        _give_up("Chromium is not installed: `make browser` installs it.")
    with playwright.sync_playwright() as programs:
        browser = programs.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


def _give_up(reason: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


class Visit:
    """An open page, with the requests and the errors of its loading."""

    def __init__(self, browser: Any, url: str, width: int = 1200, scheme: str = "light") -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(url)

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *_: object) -> None:
        self.page.close()

    def ask(self, script: str) -> Any:
        return self.page.evaluate(script)
