"""Which run folders this fedwild can read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fedwild
from fedwild.core.errors import UserError

FORMAT = 1


def check_format(path: Path, facts: dict[str, Any]) -> None:
    """Refuse a folder that another version of fedwild wrote in another way; `facts` are its run.json."""
    written, made_with = facts.get("format"), facts.get("versions")
    if written == FORMAT:
        return
    if isinstance(written, int) and written > FORMAT:
        version = made_with.get("fedwild", "?") if isinstance(made_with, dict) else "?"
        raise UserError(
            f"run folder {str(path)!r} was written by a newer fedwild ({version}): it has format {written}, "
            f"and this one ({fedwild.__version__}) reads {FORMAT}. Upgrade with `pip install --upgrade fedwild`."
        )
    raise UserError(
        f"run folder {str(path)!r} has format {written!r}, this fedwild reads {FORMAT}: use the version that wrote it."
    )
