"""Files that the user names: written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from fedwild.core.errors import explain_os_errors
from fedwild.core.storage import write_atomically


def write_output(path: Path, data: bytes, private: bool = False) -> None:
    """Write the file of `--out`. A device or a pipe is not replaced by a file, and a folder is refused."""
    with explain_os_errors(f"--out {str(path)!r} cannot be written"):
        if path.exists() and not path.is_file():
            path.write_bytes(data)
        else:
            write_atomically(Path(os.path.realpath(path)), data, durable=False, private=private)
