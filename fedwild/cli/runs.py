"""Commands that make or continue a run: `fedwild run`, `resume` and `welcome`."""

from __future__ import annotations

from typing import Annotated

import typer

from fedwild.cli.options import (
    Certificates,
    Clients,
    ConfigFile,
    Data,
    Engine,
    Folder,
    Json,
    Listen,
    Method,
    Model,
    Names,
    NewFolder,
    NoReport,
    Number,
    Partition,
    Quiet,
    Rounds,
    Seed,
    Settings,
    StartFrom,
    Superlink,
    TensorBoard,
    TrustCode,
    Words,
    Workers,
    err,
    interruptible,
    pairs,
    place,
    real,
    show_result,
    whole,
)
from fedwild.core.defaults import DEFAULT_WELCOME


def run(
    config: ConfigFile = None,
    method: Method = None,
    data: Data = None,
    partition: Partition = None,
    model: Model = None,
    clients: Clients = None,
    rounds: Rounds = None,
    seed: Seed = None,
    workers: Workers = None,
    engine: Engine = None,
    start_from: StartFrom = None,
    out_folder: NewFolder = None,
    settings: Settings = None,
    trust_code: TrustCode = False,
    tensorboard: TensorBoard = False,
    no_report: NoReport = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a model across clients and measure it.

    Without arguments, this is FedAvg on scikit-learn's digits, with six known classes and four unknown ones.

    Examples:

      fedwild run --method close-set-voting --clients 5

      fedwild run --data mnist --partition classes:2 --set data.known=6

      fedwild run my.toml --seed 3 --out runs/third

      fedwild run --start-from runs/third --set correction.name=prox --rounds 5

    `fedwild list settings NAME` lists the settings of a section, such as data, federation, evaluation or engine.
    """
    from fedwild import api
    from fedwild.display.run_display import RunDisplay
    from fedwild.lifecycle import start as starting
    from fedwild.results.tracking import tracked

    resolved = api.configure(
        config,
        method=method,
        data=data or None,
        partition=partition,
        model=model,
        clients=whole(clients),
        rounds=whole(rounds),
        seed=whole(seed),
        workers=whole(workers),
        engine=engine,
        start_from=start_from,
        settings=settings or (),
    )
    with interruptible(RunDisplay(err, quiet)) as display, tracked(display, tensorboard) as listener:
        done = starting.start(resolved, out_folder, listener)
    show_result(done, as_json, no_report)


def resume(
    folder: Folder,
    workers: Workers = None,
    engine: Engine = None,
    superlink: Superlink = None,
    listen: Listen = None,
    certificates: Certificates = None,
    trust_code: TrustCode = False,
    tensorboard: TensorBoard = False,
    no_report: NoReport = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Resume a run that was stopped or killed. The result is bit-equal to that of an uninterrupted run.

    For a run over real sites, --superlink, --listen and --certificates override the settings of the run.
    """
    from fedwild import api
    from fedwild.display.run_display import RunDisplay
    from fedwild.results.tracking import tracked

    with interruptible(RunDisplay(err, quiet)) as display, tracked(display, tensorboard, folder) as listener:
        display.folder = str(folder)
        done = api.resume(folder, whole(workers), listener, name=engine, **place(superlink, listen, certificates))
    show_result(done, as_json, no_report)


def welcome(
    folder: Folder,
    client: Annotated[
        str,
        typer.Option(
            metavar="FOLDER",
            help="The newcomer's data: image folder, .npz, .csv or data set; over real sites, the site's name.",
        ),
    ],
    name: Annotated[
        Words, typer.Option(metavar="NAME", help="Name of the newcomer (default: that of its data).")
    ] = None,
    labels: Annotated[
        Names,
        typer.Option(
            "--label", metavar="OWN=NAME", help="The newcomer's name of a class = the federation's; repeatable."
        ),
    ] = None,
    classes: Annotated[
        Names, typer.Option("--class", metavar="NAME", help="Use only this class; repeatable (default: all).")
    ] = None,
    domains: Annotated[
        Names, typer.Option("--domain", metavar="NAME", help="Use only this domain; repeatable (default: all).")
    ] = None,
    resize: Annotated[bool, typer.Option("--resize", help="Convert its images to the federation's size.")] = False,
    max_forgetting: Annotated[
        Number,
        typer.Option(
            metavar="SHARE", help="Reject the newcomer if others lose more accuracy, such as 0.02 (default: never)."
        ),
    ] = None,
    method: Annotated[
        str, typer.Option(metavar="NAME", help="A method that can start from another run.")
    ] = DEFAULT_WELCOME,
    rounds: Annotated[Number, typer.Option(metavar="N", help="Rounds of adaptation (default: 10).")] = None,
    workers: Workers = None,
    superlink: Superlink = None,
    listen: Listen = None,
    certificates: Certificates = None,
    out_folder: NewFolder = None,
    settings: Settings = None,
    trust_code: TrustCode = False,
    tensorboard: TensorBoard = False,
    no_report: NoReport = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Welcome a new client into a trained federation.

    RUN is a finished run. It does not change; the new run continues it. The method detects whether the newcomer has
    nothing new, a new domain, or new classes, by name, and adapts the model to it. To welcome several newcomers,
    welcome each into the run of the one before.

    Examples:

      fedwild welcome runs/fedavg-digits-001 --client ~/scans --name hospital-b

      fedwild welcome runs/fedavg-mnist-001 --client usps --resize

      fedwild welcome runs/gains-mnist-001 --client late.npz --label zwei=2

      fedwild welcome runs/fedavg-sites-001 --client hospital-c
    """
    from fedwild import api
    from fedwild.display.run_display import RunDisplay
    from fedwild.results.tracking import tracked

    with interruptible(RunDisplay(err, quiet)) as display, tracked(display, tensorboard) as listener:
        done = api.welcome(
            folder,
            client,
            name=name,
            method=method,
            classes=classes or None,
            domains=domains or None,
            labels=pairs("--label", labels or []),
            resize=resize,
            rounds=whole(rounds),
            max_forgetting=real(max_forgetting),
            workers=whole(workers),
            engine=place(superlink, listen, certificates),
            out=out_folder,
            settings=settings or (),
            listener=listener,
        )
    show_result(done, as_json, no_report)
