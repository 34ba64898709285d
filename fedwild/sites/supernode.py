"""Flower's SuperNode, which runs nothing but fedwild's own app: `python -m fedwild.sites.supernode OPTIONS`.

Flower runs the app that the coordinator's SuperLink sends, which may be any code. Its own check, `--trusted-entities`,
accepts only apps from Flower Hub, which signs them; an app that `flwr run FOLDER` sends has no signature. So the check
is kept, and what it verifies is replaced: an app passes if its code is the code that this version of fedwild writes.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from typing import Any

from flwr.supercore.fab import Fab
from flwr.supernode import start_client_internal as internal
from flwr.supernode.cli.flower_supernode import flower_supernode

from fedwild.sites.app import APP_ID, is_own_app

VERSION = re.compile(r"[0-9]+(\.[0-9]+)*")
REPLACED = {
    "_pull_and_store_message": {"get_run", "get_fab", "trusted_entities"},
    "_verify_fab": {"fab", "trusted_entities"},
}
"""Functions of Flower that are replaced, and the arguments that they must have."""


def check_flower() -> None:
    """Refuse to start with a version of Flower in which the check cannot be replaced."""
    for name, arguments in REPLACED.items():
        function = getattr(internal, name, None)
        if function is None or not arguments <= inspect.signature(function).parameters.keys():
            sys.exit(f"this version of Flower has no {name}: install flwr 1.41.")


def pull_checked(pull: Callable[..., Any]) -> Callable[..., Any]:
    """Return Flower's function that fetches a message and its app, so that every app is verified."""

    def pull_message(**arguments: Any) -> Any:
        get_run, get_fab = arguments["get_run"], arguments["get_fab"]
        named: dict[int, bool] = {}

        def get_named_run(number: int) -> Any:
            run = get_run(number)
            # The folder in which Flower looks for the app is made of these.
            named[number] = run.fab_id == APP_ID and VERSION.fullmatch(run.fab_version) is not None
            return run

        def get_marked_fab(digest: str, number: int) -> Fab:
            fab = get_fab(digest, number)
            return Fab(fab.hash_str, fab.content, {"valid_license": "fedwild"} if named.get(number) else {})

        checked = {"get_run": get_named_run, "get_fab": get_marked_fab, "trusted_entities": {"fedwild": "own app"}}
        return pull(**{**arguments, **checked})

    return pull_message


def main() -> None:
    """Run the SuperNode."""
    check_flower()
    internal._pull_and_store_message = pull_checked(internal._pull_and_store_message)
    internal._verify_fab = lambda fab, trusted_entities: is_own_app(fab.content)
    flower_supernode()


if __name__ == "__main__":
    main()
