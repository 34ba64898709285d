"""Registers sites' public keys at a SuperLink: `flwr supernode register` for all sites in one process.

    python -m fedwild.sites.registration CONNECTION NAME KEY [NAME KEY ...]

Each `flwr` command takes seconds to start, and a federation may have many sites.
"""

from __future__ import annotations

import sys

from flwr.cli.app import app


def main(connection: str, *pairs: str) -> int:
    """Register each key under its name. Stops at the first failure, prints the reason and returns 1."""
    for name, key in zip(pairs[::2], pairs[1::2], strict=True):
        try:
            app(args=["supernode", "register", key, connection, "--name", name], standalone_mode=False)
        except (Exception, SystemExit) as problem:
            if isinstance(problem, SystemExit) and not problem.code:
                continue
            print(f"key {key!r} cannot be registered: {problem}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
