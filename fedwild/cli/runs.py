"""Commands that make or continue a run: `fedwild run`, `resume` and `welcome`."""

from __future__ import annotations

from typing import Annotated

import typer

from fedwild.cli import options
from fedwild.cli.options import Names, Number, Words, option
from fedwild.core.defaults import DEFAULT_WELCOME


def run(
    config: options.ConfigFile = None,
    method: options.Method = None,
    data: options.Data = None,
    partition: options.Partition = None,
    model: options.Model = None,
    clients: options.Clients = None,
    rounds: options.Rounds = None,
    seed: options.Seed = None,
    workers: options.Workers = None,
    engine: options.Engine = None,
    start_from: options.StartFrom = None,
    out_folder: options.NewFolder = None,
    settings: options.Settings = None,
    trust_code: options.TrustCode = False,
    tensorboard: options.TensorBoard = False,
    no_report: options.NoReport = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
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
    from fedwild.lifecycle import start as starting

    resolved = api.configure(
        config,
        method=method,
        data=data or None,
        partition=partition,
        model=model,
        clients=options.whole(clients),
        rounds=options.whole(rounds),
        seed=options.whole(seed),
        workers=options.whole(workers),
        engine=engine,
        start_from=start_from,
        settings=settings or (),
    )
    with options.shown_run(quiet, tensorboard) as listener:
        done = starting.start(resolved, out_folder, listener)
    options.show_result(done, as_json, no_report)


def resume(
    folder: options.Folder,
    workers: options.Workers = None,
    engine: options.Engine = None,
    superlink: options.Superlink = None,
    listen: options.Listen = None,
    certificates: options.Certificates = None,
    trust_code: options.TrustCode = False,
    tensorboard: options.TensorBoard = False,
    no_report: options.NoReport = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Resume a run that was stopped or killed. The result is bit-equal to that of an uninterrupted run.

    For a run over real sites, --superlink, --listen and --certificates override the settings of the run.
    """
    from fedwild import api

    with options.shown_run(quiet, tensorboard, folder) as listener:
        done = api.resume(
            folder, options.whole(workers), listener, name=engine, **options.place(superlink, listen, certificates)
        )
    options.show_result(done, as_json, no_report)


def welcome(
    folder: options.Folder,
    client: Annotated[
        str,
        option(
            "FOLDER", "The newcomer's data: image folder, .npz, .csv or data set; over real sites, the site's name."
        ),
    ],
    name: Annotated[Words, option("NAME", "Name of the newcomer (default: that of its data).")] = None,
    labels: Annotated[
        Names, option("OWN=NAME", "The newcomer's name for a class = the federation's; repeatable.", "--label")
    ] = None,
    classes: Annotated[Names, option("NAME", "Use only this class; repeatable (default: all).", "--class")] = None,
    domains: Annotated[Names, option("NAME", "Use only this domain; repeatable (default: all).", "--domain")] = None,
    resize: Annotated[bool, typer.Option("--resize", help="Convert its images to the federation's size.")] = False,
    max_forgetting: Annotated[
        Number, option("SHARE", "Reject the newcomer if others lose more accuracy, such as 0.02 (default: never).")
    ] = None,
    method: Annotated[str, option("NAME", "A method that can start from another run.")] = DEFAULT_WELCOME,
    rounds: Annotated[Number, option("N", "Rounds of adaptation (default: 10).")] = None,
    workers: options.Workers = None,
    superlink: options.Superlink = None,
    listen: options.Listen = None,
    certificates: options.Certificates = None,
    out_folder: options.NewFolder = None,
    settings: options.Settings = None,
    trust_code: options.TrustCode = False,
    tensorboard: options.TensorBoard = False,
    no_report: options.NoReport = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Welcome a new client into a trained federation.

    RUN is a finished run. It does not change; the new run continues it. The method detects whether the newcomer has
    nothing new, a new domain, or new classes, by name, and adapts the model to it. To welcome several newcomers,
    welcome each into the run that welcomed the one before.

    Examples:

      fedwild welcome runs/fedavg-digits-001 --client ~/scans --name hospital-b

      fedwild welcome runs/fedavg-mnist-001 --client usps --resize

      fedwild welcome runs/gains-mnist-001 --client late.npz --label zwei=2

      fedwild welcome runs/fedavg-sites-001 --client hospital-c
    """
    from fedwild import api

    with options.shown_run(quiet, tensorboard) as listener:
        done = api.welcome(
            folder,
            client,
            name=name,
            method=method,
            classes=classes or None,
            domains=domains or None,
            labels=options.pairs("--label", labels or []),
            resize=resize,
            rounds=options.whole(rounds),
            max_forgetting=options.real(max_forgetting),
            workers=options.whole(workers),
            engine=options.place(superlink, listen, certificates),
            out=out_folder,
            settings=settings or (),
            listener=listener,
        )
    options.show_result(done, as_json, no_report)
