"""Commands for data: `fedwild data prepare` and `fedwild data show`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from fedwild.cli.options import (
    Clients,
    ConfigFile,
    Data,
    Json,
    Partition,
    PathOption,
    Quiet,
    Seed,
    Settings,
    out,
    whole,
    working,
)

data_app = typer.Typer(help="Prepare data sets, and show how classes are divided among clients.", no_args_is_help=True)


@data_app.command("prepare")
def data_prepare(
    name: Annotated[str, typer.Argument(metavar="NAME", help="See `fedwild list data`.")],
    quiet: Quiet = False,
) -> None:
    """Find a data set on this machine, or download its official files (resumable, with checksums)."""
    from fedwild.data import prepare
    from fedwild.data.sources import find_prepared

    where: object = "included in scikit-learn"
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
    picture: Annotated[
        PathOption, typer.Option("--out", metavar="FILE", help="Also draw a picture: .png, .svg or .pdf.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show how many samples of each class each client has, in the terminal and, with --out, as a picture."""
    from fedwild import api
    from fedwild.results.pictures.drawing import check_drawable, write_figure
    from fedwild.results.pictures.partition import described, draw, terminal_picture
    from fedwild.runs.experiment import load_and_split

    if picture is not None:
        check_drawable(picture)
    resolved = api.configure(
        config,
        data=data or None,
        partition=partition,
        clients=whole(clients),
        seed=whole(seed),
        settings=settings or (),
    )
    with working(quiet) as work:
        work.show("loading the data")
        dataset, split, _ = load_and_split(resolved, progress=work.download)
        if picture is not None:
            work.show("drawing")
            write_figure(draw(dataset, split), picture)
    if as_json:
        print(json.dumps({**described(dataset, split), "picture": None if picture is None else str(picture)}))
        return
    out.print(terminal_picture(dataset, split, out.width))
    if picture is not None:
        out.print(f"picture written to {picture}", highlight=False, markup=False, soft_wrap=True)
