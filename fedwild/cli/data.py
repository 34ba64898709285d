"""Commands for data: `fedwild data prepare` and `fedwild data show`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedwild.cli.options import (
    Clients,
    ConfigFile,
    Data,
    Json,
    Partition,
    Quiet,
    Seed,
    Settings,
    out,
    whole,
    working,
)

data_app = typer.Typer(help="Prepare data sets and look at how classes fall on clients.", no_args_is_help=True)


@data_app.command("prepare")
def data_prepare(
    name: Annotated[str, typer.Argument(metavar="NAME", help="See `fedwild list data`.")],
    quiet: Quiet = False,
) -> None:
    """Find a data set on this machine, or download it from its official address, checked and resumable."""
    from fedwild.data import prepare
    from fedwild.data.sources import find_prepared

    where: object = "it comes with scikit-learn"
    if name != "digits":
        with working(quiet) as work:
            where = find_prepared(name) or prepare(name, work.download)
    out.print(f"{name} is ready: {where}", highlight=False, markup=False, soft_wrap=True)


@data_app.command("show")
def data_show(
    config: ConfigFile = None,
    data: Data = None,
    partition: Partition = None,
    clients: Clients = None,
    seed: Seed = None,
    settings: Settings = None,
    png: Annotated[Path, typer.Option(metavar="FILE", help="Where to draw the picture.")] = Path("data.png"),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show how classes fall on clients, in the terminal and as a PNG."""
    from fedwild import api
    from fedwild.results.pictures.dealing import described, png_picture, terminal_picture
    from fedwild.runs.experiment import load_and_deal

    resolved = api.configure(
        config,
        data=data or None,
        partition=partition,
        clients=whole(clients),
        seed=whole(seed),
        settings=settings or (),
    )
    with working(quiet) as work:
        work.tell("loading the data")
        dataset, split, _ = load_and_deal(resolved, progress=work.download)
        work.tell("drawing")
        png_picture(dataset, split, png)
    if as_json:
        print(json.dumps({**described(dataset, split), "png": str(png)}))
        return
    out.print(terminal_picture(dataset, split, out.width))
    out.print(f"picture written to {png}", highlight=False, markup=False)
