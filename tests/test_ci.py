"""In CI, a browser that is missing is a failure; elsewhere its tests are skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
MAKE = shutil.which("make")


def _without_browser(tmp_path: Path, ci: bool) -> dict[str, str]:
    """Return an environment whose PATH holds `id` alone."""
    id_program = shutil.which("id")
    assert id_program is not None
    (tmp_path / "id").symlink_to(id_program)
    environment = {key: value for key, value in os.environ.items() if key not in {"CI", "MAKEFLAGS"}}
    return environment | {"PATH": str(tmp_path)} | ({"CI": "true"} if ci else {})


@pytest.mark.skipif(MAKE is None, reason="make is not installed")
@pytest.mark.parametrize("ci", [False, True])
def test_make_fails_without_a_browser_in_ci_only(tmp_path: Path, ci: bool) -> None:
    command = [str(MAKE), "--no-print-directory", "browser"]
    made = subprocess.run(command, cwd=ROOT, env=_without_browser(tmp_path, ci), capture_output=True, text=True)
    assert (made.returncode != 0) is ci
    assert made.stderr.splitlines()[0] == (
        "chromium could not be installed, so the report cannot be tested in a browser."
    )


@pytest.mark.parametrize(("ci", "outcome"), [(False, "1 skipped"), (True, "1 failed")])
def test_browser_tests_fail_without_a_browser_in_ci_only(tmp_path: Path, ci: bool, outcome: str) -> None:
    test = tmp_path / "test_page.py"
    test.write_text("from tests.browser import open_browser\n\ndef test_page():\n    with open_browser(): pass\n")
    environment = _without_browser(tmp_path, ci) | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull, str(test)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert outcome in done.stdout
