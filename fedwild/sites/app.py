"""The app that Flower runs: a thin shim over the installed fedwild, and its config file."""

from __future__ import annotations

import re
from pathlib import Path

from fedwild.core.errors import UserError
from fedwild.core.version import __version__

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedwild-app"
version = "{version}"
description = "A fedwild federation over real sites"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "fedwild"

[tool.flwr.app.components]
serverapp = "fedwild_app.server:app"
clientapp = "fedwild_app.client:app"

[tool.flwr.app.config]
socket = "{socket}"
config = "config.toml"
out = "{out}"
"""
SERVER = '''\
"""The coordinator's end of a fedwild federation."""

from pathlib import Path

from fedwild.sites.server_app import app_at

app = app_at(Path(__file__).parent)
'''
CLIENT = '''\
"""A site's end of a fedwild federation."""

from fedwild.sites.client_app import app

__all__ = ["app"]
'''


def write_app(folder: Path, config: str, socket: str = "", out: str = "") -> list[Path]:
    """Write the app into a new folder. `socket` is the path of the coordinator's socket, if one is running."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"folder {str(folder)!r} exists already: choose a new one.")
    version = re.sub(r"[^0-9.].*", "", __version__) or "0"
    files = {
        "pyproject.toml": PROJECT.format(version=version, socket=_escape(socket), out=_escape(out)),
        "fedwild_app/__init__.py": '"""A fedwild federation."""\n',
        "fedwild_app/server.py": SERVER,
        "fedwild_app/client.py": CLIENT,
        "fedwild_app/config.toml": config,
    }
    try:
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"folder {str(folder)!r} cannot be written: {error.strerror or error}.") from error
    return [folder / name for name in files]


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
