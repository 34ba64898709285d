"""Commands for the coordinator of real sites: `fedwild coordinate` and `fedwild flower`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from fedwild.cli import options
from fedwild.cli.options import Names, Number, PathOption, Words, option
from fedwild.core.errors import UserError

flower_app = typer.Typer(
    help="Create certificates and keys for real sites, and apps for Flower's own programs.", no_args_is_help=True
)


def coordinate(
    config: options.ConfigFile = None,
    superlink: options.Superlink = None,
    listen: options.Listen = None,
    certificates: options.Certificates = None,
    sites: Annotated[Number, option("N", "How many sites the run starts with (2).")] = None,
    method: options.Method = None,
    model: options.Model = None,
    rounds: options.Rounds = None,
    seed: options.Seed = None,
    start_from: options.StartFrom = None,
    out_folder: Annotated[
        PathOption, option("DIR", "The run folder to create (runs/METHOD-sites-NNN).", "--out")
    ] = None,
    settings: options.Settings = None,
    trust_code: options.TrustCode = False,
    tensorboard: options.TensorBoard = False,
    no_report: options.NoReport = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a federation of real sites, which connect with `fedwild site`, and measure it at the sites.

    The command waits for the sites, then trains as `fedwild run` does. Without --superlink it starts Flower's SuperLink
    itself, and serves only sites at --listen. After a crash, `fedwild resume RUN` continues the run.

    Examples:

      fedwild flower keys keys --host coordinator.example --site hospital-a --site hospital-b

      fedwild coordinate my.toml --listen 0.0.0.0:8443 --certificates keys --sites 2

      fedwild coordinate --method fedov --listen 127.0.0.1:8443 --set 'data.coordinator="holdout.npz"'
    """
    with needs_flower():
        from fedwild.sites.coordinator import coordinate as run_over_sites
        from fedwild.sites.coordinator import settings_for_sites
    from fedwild.api import flag_layer
    from fedwild.core.toml import read_toml
    from fedwild.runs.config import setting_layers

    flags = flag_layer(
        method=method,
        model=model,
        clients=options.whole(sites),
        rounds=options.whole(rounds),
        seed=options.whole(seed),
        start_from=start_from,
    )
    engine = {"engine": options.place(superlink, listen, certificates)}
    resolved = settings_for_sites(
        read_toml(config) if config is not None else {}, flags, engine, *setting_layers(settings or ())
    )
    with options.shown_run(quiet, tensorboard) as listener:
        done = run_over_sites(resolved, out_folder, listener)
    options.show_result(done, as_json, no_report)


@flower_app.command("keys")
def flower_keys(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write to; sites can be added later.")],
    hosts: Annotated[
        Names, option("HOST", "The coordinator's host name or IP address; repeatable (localhost).", "--host")
    ] = None,
    sites: Annotated[Names, option("NAME", "A site that needs a key; repeatable.", "--site")] = None,
    revoked: Annotated[
        Names, option("NAME", "Revoke the key of this site at once, also in a running run; repeatable.", "--revoke")
    ] = None,
    renewed: Annotated[
        Names, option("NAME", "Revoke the key of this site and create a new one; repeatable.", "--renew")
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="List the keys: created, expires, revoked.")] = False,
    days: Annotated[Number, option("N", "The validity of new certificates and keys in days (365).")] = None,
) -> None:
    """Create a test certificate authority, the coordinator's certificate, and a key for each site.

    Give each site DIR/ca.pem and its own DIR/sites/NAME.key over a channel you trust; the other files stay with the
    coordinator. If you have your own authority, put its certificates under the same names. A running coordinator
    follows the folder: it accepts new keys and cuts off sites whose key is revoked.

    Examples:

      fedwild flower keys keys --host coordinator.example --site hospital-a --site hospital-b

      fedwild flower keys keys --site hospital-c

      fedwild flower keys keys --revoke hospital-b

      fedwild flower keys keys --list
    """
    with needs_flower():
        from fedwild.sites.keys import DAYS, list_keys, make_keys
        from fedwild.sites.site_keys import renew, revoke
    actions = {
        "--list": show,
        "--revoke": revoked,
        "--renew": renewed,
        "--host or --site": [*(hosts or ()), *(sites or ())],
    }
    given = [action for action, value in actions.items() if value]
    if len(given) > 1:
        raise UserError(f"{given[0]} and {given[1]} are not allowed together: run the command once for each.")
    valid = options.number("--days", days, DAYS, range(1, 36501))
    if show:
        for row in list_keys(folder):
            options.say(row)
        return
    if revoked:
        paths = revoke(folder, list(dict.fromkeys(revoked)))
    elif renewed:
        paths = renew(folder, list(dict.fromkeys(renewed)), valid)
    else:
        paths = make_keys(folder, hosts or [], sites or [], valid)
    for path in paths:
        options.say(str(path))


@flower_app.command("app")
def flower_write_app(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to create.")],
    config: options.ConfigFile = None,
    out_folder: Annotated[Words, option("DIR", "The run folder to create on the SuperLink's machine.", "--out")] = None,
    settings: options.Settings = None,
) -> None:
    """Write a Flower app that trains a federation, for `flwr run` with plain SuperLinks and SuperNodes.

    A plain SuperNode gets its name and data from --node-config 'name="hospital-a" data="/path/to/data"'.

    Examples:

      fedwild flower app federation my.toml && flwr run federation my-superlink --stream
    """
    with needs_flower():
        from fedwild.sites.app import write_app
        from fedwild.sites.coordinator import check_settings, settings_for_sites
    from fedwild.core.toml import read_toml
    from fedwild.runs.config import setting_layers

    layers = [read_toml(config) if config is not None else {}, *setting_layers(settings or ())]
    resolved = settings_for_sites(*layers)
    check_settings(resolved, None)
    write_app(folder, resolved.to_toml(), out=out_folder or "")
    options.say(f"app written to {folder}: start it with `flwr run {folder}`")


@contextmanager
def needs_flower() -> Iterator[None]:
    """Explain how to install Flower if it is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"flwr", "httpx", "h11"}:
            raise
        raise UserError(f"real sites need Flower ({error.name} is missing): pip install 'fedwild[flower]'.") from None
