"""Commands for data: `fedwild data prepare` and `fedwild data show`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from fedwild.cli import options
from fedwild.cli.options import PathOption, option

data_app = typer.Typer(help="Prepare data sets, and show how classes are divided among clients.", no_args_is_help=True)


@data_app.command("prepare")
def data_prepare(
    name: Annotated[str, typer.Argument(metavar="NAME", help="See `fedwild list data`.")],
    quiet: options.Quiet = False,
) -> None:
    """Find a data set on this machine, or download its official files (resumable, with checksums)."""
    from fedwild.data import prepare
    from fedwild.data.sources import find_prepared

    where: object = "included in scikit-learn"
    if name != "digits":
        with options.working(quiet) as work:
            where = find_prepared(name) or prepare(name, work.download)
    options.say(f"{name} is ready: {where}")


@data_app.command("show")
def data_show(
    config: options.ConfigFile = None,
    data: options.Data = None,
    partition: options.Partition = None,
    clients: options.Clients = None,
    seed: options.Seed = None,
    settings: options.Settings = None,
    picture: Annotated[PathOption, option("FILE", "Also draw a picture: .png, .svg or .pdf.", "--out")] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
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
        clients=options.whole(clients),
        seed=options.whole(seed),
        settings=settings or (),
    )
    with options.working(quiet) as work:
        work.show("loading the data")
        dataset, split, _ = load_and_split(resolved, progress=work.download)
        if picture is not None:
            work.show("drawing")
            write_figure(draw(dataset, split), picture)
    if as_json:
        print(json.dumps({**described(dataset, split), "picture": None if picture is None else str(picture)}))
        return
    options.out.print(terminal_picture(dataset, split, options.out.width))
    if picture is not None:
        options.say(f"picture written to {picture}")
