"""Commands for the operator of a real site: `fedwild site`, `fedwild policy` and `fedwild audit`."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Annotated

import typer

from fedwild.cli import options
from fedwild.cli.options import Names, Number, PathOption, Words, option
from fedwild.cli.sites import needs_flower
from fedwild.core.errors import UserError
from fedwild.core.text import clean

MAX_NOTICE, MAX_NOTICE_LINES = 10_000, 100
"""Limits for what a site shows to its operator: a sentence of the coordinator, or the site's own traceback."""
site_app = typer.Typer(invoke_without_command=True)


@site_app.callback()
def site(
    context: typer.Context,
    superlink: Annotated[Words, option("HOST:PORT", "The coordinator's address. [required]")] = None,
    data: Annotated[
        Words, option("PATH", "This site's data: an image folder, .npz, .csv, or the name of a data set. [required]")
    ] = None,
    name: Annotated[Words, option("NAME", "This site's name, such as hospital-a. [required]")] = None,
    key: Annotated[PathOption, option("FILE", "This site's private key. The coordinator needs the public key.")] = None,
    ca: Annotated[
        PathOption, option("FILE", "The certificate of the authority that signed the coordinator's (default: no TLS).")
    ] = None,
    labels: Annotated[
        Names, option("OWN=NAME", "This site's name for a class and the federation's; repeatable.", "--label")
    ] = None,
    policy: Annotated[
        PathOption, option("FILE", "What the coordinator may do here; `fedwild policy` prints the default.")
    ] = None,
    folder: Annotated[
        PathOption, option("DIR", "Folder for this site's identity, state and audit log (~/.local/state/fedwild).")
    ] = None,
    device: Annotated[str, option("NAME", "cpu, cuda, cuda:0 ...")] = "cpu",
    wait: Annotated[Number, option("SECONDS", "How long to wait for the coordinator (60).")] = None,
    quiet: options.Quiet = False,
) -> None:
    """Take part in a federation as a real site, with this machine's data, until stopped with Ctrl-C.

    The data never leaves the site: it sends models, figures, class names and counts, as far as --policy allows. What
    was asked and sent is in audit.jsonl in its folder. After a crash, start the site again with the same --name and
    --folder to continue.

    Examples:

      fedwild site --superlink coordinator.example:8443 --data ~/scans --name hospital-a --ca ca.pem --key a.key

      fedwild site --superlink 127.0.0.1:8443 --data scans.npz --name hospital-b --label zwei=2 --policy policy.toml
    """
    if context.invoked_subcommand is not None:
        return
    if superlink is None or data is None or name is None:
        given = {"--superlink": superlink, "--data": data, "--name": name}
        raise UserError(f"{next(key for key, value in given.items() if value is None)} is missing: it is required.")
    seconds = 60.0 if wait is None else options.real(wait)
    if not isinstance(seconds, float) or not 0 <= seconds < 1e7:
        raise UserError(f"--wait {wait} is not allowed: it must be a number of seconds.")
    with needs_flower():
        from fedwild.sites.site import SiteOptions, run_site

    def notify(text: str) -> None:
        if not quiet:
            options.say(clean(text, MAX_NOTICE, MAX_NOTICE_LINES), options.err)

    renamed = options.pairs("--label", labels or [])
    chosen = SiteOptions(superlink, data, name, key, ca, folder, renamed, device, seconds, policy)
    # Service managers stop a site with SIGTERM. As after Ctrl-C, it disconnects and can reconnect at once.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run_site(chosen, notify)
    except KeyboardInterrupt:
        notify("stopped")
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)


@site_app.command("approve")
def approve_run(
    run: Annotated[Words, typer.Argument(metavar="RUN", help="A run that waits (default: list them).")] = None,
    refuse: Annotated[bool, typer.Option("--refuse", help="Refuse the run instead.")] = False,
    folder: Annotated[PathOption, option("DIR", "The site's folder (default: all sites of this user).")] = None,
) -> None:
    """Approve a run that waits at a site whose policy has approve = "ask".

    Examples:

      fedwild site approve

      fedwild site approve 0f6f2ddc71f84b1c9be4d3f0e6a7a1a5 --folder /var/lib/fedwild
    """
    with needs_flower():
        from fedwild.sites.permits import decide, waiting_runs
        from fedwild.sites.site import site_folders

    waiting = waiting_runs([site / "permits" for site in site_folders(folder)])
    if run is None:
        for place, permit in waiting:
            options.say(f"{permit.run} at {clean(place.parent.name)}: {permit.summary()}")
        if not waiting:
            options.say("no run is waiting")
        return
    found = [place for place, permit in waiting if permit.run == run]
    if not found:
        names = ", ".join(permit.run for _, permit in waiting) or "none"
        raise UserError(f"run {run!r} does not wait for approval. Waiting: {names}.")
    for place in found:
        decide(place, run, not refuse)
        options.say(f"run {run} is {'refused' if refuse else 'approved'} at {clean(place.parent.name)}")


def policy() -> None:
    """Print the default policy of a site, with comments, as a file for `fedwild site --policy`.

    Examples:

      fedwild policy > policy.toml
    """
    with needs_flower():
        from fedwild.sites.policy import Policy
    print(Policy().to_toml(), end="")


def audit(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The audit log of a site, audit.jsonl.")],
    seen: Annotated[Words, option("HASH", "A hash that you noted before: check that it is still in the log.")] = None,
    as_json: options.Json = False,
) -> None:
    """Check that no line of a site's audit log was changed, removed or moved, and summarise what it holds.

    The exit code is 2 if there is a problem; each one is named. Note the last hash elsewhere: --seen then
    also detects a log that was replaced as a whole.

    Examples:

      fedwild audit ~/.local/state/fedwild/sites/hospital-a/audit.jsonl
    """
    from fedwild.sites.audit_check import check_log

    report = check_log(file, seen)
    if report.problems:
        raise UserError(*(f"{file}: {problem}." for problem in report.problems))
    if as_json:
        print(json.dumps(report.to_json()))
    else:
        options.say("\n".join(clean(line) for line in [*report.lines_of_text(), "every line is as it was written"]))
