"""The app that Flower runs: a thin shim over the installed fedwild, and its config file."""

from __future__ import annotations

import io
import re
import tomllib
import zipfile
from pathlib import Path

from fedwild.core.errors import UserError, explain_os_errors
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

APP_ID = "fedwild/fedwild-app"
"""The publisher and the name in `PROJECT`."""
CODE = {
    "fedwild_app/__init__.py": '"""A fedwild federation."""\n',
    "fedwild_app/server.py": SERVER,
    "fedwild_app/client.py": CLIENT,
}
PROJECT_FILE, CONFIG_FILE, CONTENT_FILE = "pyproject.toml", "fedwild_app/config.toml", ".info/CONTENT"
"""The files without code: the last is Flower's own list."""
MAX_APP_BYTES = 10_000_000


def write_app(folder: Path, config: str, socket: str = "", out: str = "") -> list[Path]:
    """Write the app into a new folder. `socket` is the path of the coordinator's socket, if one is running."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"folder {str(folder)!r} exists already: choose a new one.")
    version = re.sub(r"[^0-9.].*", "", __version__) or "0"
    project = PROJECT.format(version=version, socket=_escape(socket), out=_escape(out))
    files = {PROJECT_FILE: project, **CODE, CONFIG_FILE: config}
    with explain_os_errors(f"folder {str(folder)!r} cannot be written"):
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return [folder / name for name in files]


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def is_own_app(content: bytes) -> bool:
    """Whether an app as Flower packs it has exactly the code that `write_app` writes; settings may differ."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            if sorted(member.filename for member in members) != sorted(
                [PROJECT_FILE, *CODE, CONFIG_FILE, CONTENT_FILE]
            ):
                return False
            if sum(member.file_size for member in members) > MAX_APP_BYTES:
                return False
            if any(archive.read(name) != text.encode() for name, text in CODE.items()):
                return False
            return _without_values(archive.read(PROJECT_FILE).decode()) == _without_values(PROJECT)
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, RuntimeError, NotImplementedError, OSError, EOFError):
        return False


def _without_values(project: str) -> object:
    """Return a pyproject.toml without what may differ: the version and the values of the run's config."""
    table = tomllib.loads(project)
    table["project"]["version"] = ""
    table["tool"]["flwr"]["app"]["config"] = sorted(table["tool"]["flwr"]["app"]["config"])
    return table
