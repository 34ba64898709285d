"""Which run folders this version of fedwild reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedwild.core.errors import UserError
from fedwild.core.text import cut

FORMAT = 3


class OtherFormat(UserError):
    """A run folder of another version of fedwild."""


def check_format(path: Path, facts: dict[str, Any]) -> None:
    """Reject a run folder of another format; `facts` are the contents of its run.json."""
    written, versions = facts.get("format"), facts.get("versions")
    if written == FORMAT:
        return
    version = versions.get("fedwild") if isinstance(versions, dict) else None
    maker = f"fedwild {cut(version, 40)}" if isinstance(version, str) else "another version of fedwild"
    newer = isinstance(written, int) and written > FORMAT
    advice = "Upgrade with `pip install --upgrade fedwild`" if newer else "Use that version to open it"
    raise OtherFormat(
        f"run {str(path)!r} was made by {maker} (format {cut(str(written), 40)}); this version reads format {FORMAT}. "
        f"{advice}."
    )
