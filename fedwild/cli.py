"""The command line."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.table import Table
from rich.text import Text

from fedwild import __version__
from fedwild.cli_compare import compare, sweep
from fedwild.cli_report import report
from fedwild.cli_reproduce import reproduce
from fedwild.cli_sites import coordinate, flower_app, site
from fedwild.cli_track import track
from fedwild.errors import UserError
from fedwild.options import (
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
    NoReport,
    Number,
    OwnClient,
    Partition,
    PathOption,
    Quiet,
    Rounds,
    Seed,
    Settings,
    StartFrom,
    Superlink,
    TensorBoard,
    Words,
    Workers,
    err,
    interruptible,
    number,
    out,
    pairs,
    place,
    real,
    refuse,
    show_result,
    whole,
    working,
)

if TYPE_CHECKING:
    from fedwild.api import Run

app = typer.Typer(
    name="fedwild",
    help="Open-world federated learning: clients train together, and the model may answer 'unknown'.\n\n"
    "Start with `fedwild run`: it trains FedAvg on embedded data in under a minute.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
data_app = typer.Typer(help="Prepare data sets and look at how classes fall on clients.", no_args_is_help=True)
app.add_typer(data_app, name="data")
show_app = typer.Typer(help="Look at what methods and models make of data.", no_args_is_help=True)
app.add_typer(show_app, name="show")
app.add_typer(flower_app, name="flower")

# Wrong options and arguments. Older and newer typer have this class in different places, but always here.
UsageProblem: Any = typer.BadParameter.__mro__[2]


@app.callback(invoke_without_command=True)
def version_callback(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit


@app.command()
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
    out_folder: Annotated[
        PathOption, typer.Option("--out", metavar="DIR", help="The run folder to make (runs/METHOD-DATA-NNN).")
    ] = None,
    settings: Settings = None,
    tensorboard: TensorBoard = False,
    no_report: NoReport = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a federation and measure it.

    Without arguments: FedAvg on scikit-learn's digits, six classes known, four never trained.

    Examples:

      fedwild run --method close-set-voting --clients 5

      fedwild run --data mnist --partition classes:2 --rounds 20 --set data.known=6

      fedwild run my.toml --seed 3 --out runs/third

      fedwild run --start-from runs/third --set correction.name=prox --rounds 5

    `fedwild list settings` shows what --set and a config file may say of data, federation, evaluation and engine.
    """
    from fedwild import api
    from fedwild.console import RunDisplay
    from fedwild.tracking import tracked

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
        done = api.start(resolved, out_folder, listener)
    show_result(done, as_json, no_report)


@app.command()
def resume(
    folder: Folder,
    workers: Workers = None,
    engine: Engine = None,
    superlink: Superlink = None,
    listen: Listen = None,
    certificates: Certificates = None,
    tensorboard: TensorBoard = False,
    no_report: NoReport = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Go on with a run that was stopped or killed; the result is the same, bit for bit.

    A run over real sites is reached as before, unless --superlink, --listen or --certificates say otherwise.
    """
    from fedwild import api
    from fedwild.console import RunDisplay
    from fedwild.tracking import tracked

    with interruptible(RunDisplay(err, quiet)) as display, tracked(display, tensorboard, folder) as listener:
        display.folder = str(folder)
        done = api.resume(folder, whole(workers), listener, name=engine, **place(superlink, listen, certificates))
    show_result(done, as_json, no_report)


@app.command()
def welcome(
    folder: Folder,
    client: Annotated[
        str,
        typer.Option(
            metavar="FOLDER",
            help="The newcomer's data: image folder, .npz, .csv, or a data set's name; of real sites, the site's name.",
        ),
    ],
    name: Annotated[Words, typer.Option(metavar="NAME", help="What to call it (as its data is called).")] = None,
    labels: Annotated[
        Names,
        typer.Option("--label", metavar="OWN=NAME", help="Its own name of a class, and the federation's; repeatable."),
    ] = None,
    classes: Annotated[
        Names, typer.Option("--class", metavar="NAME", help="Only this of its classes; repeatable (all).")
    ] = None,
    domains: Annotated[
        Names, typer.Option("--domain", metavar="NAME", help="Only this of its domains; repeatable (all).")
    ] = None,
    resize: Annotated[bool, typer.Option("--resize", help="Convert its images to the federation's size.")] = False,
    max_forgetting: Annotated[
        Number,
        typer.Option(metavar="SHARE", help="Go back if source accuracy falls by more, such as 0.02 (never)."),
    ] = None,
    method: Annotated[
        str, typer.Option(metavar="NAME", help="gains; or any method that can start from a run, to compare with.")
    ] = "gains",
    rounds: Annotated[Number, typer.Option(metavar="N", help="Rounds of adaptation (10).")] = None,
    workers: Workers = None,
    superlink: Superlink = None,
    listen: Listen = None,
    certificates: Certificates = None,
    out_folder: Annotated[
        PathOption, typer.Option("--out", metavar="DIR", help="The run folder to make (runs/METHOD-DATA-NNN).")
    ] = None,
    settings: Settings = None,
    tensorboard: TensorBoard = False,
    no_report: NoReport = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Take a new client into a trained federation: find out what it brings, and learn it without forgetting.

    RUN is a finished run, which stays as it is; the new run goes on from it, with its history. The newcomer's classes
    meet the federation's by name. It may bring nothing new (then the model serves it as it is), a new domain, or new
    classes (then the model grows). Several newcomers come one after the other: welcome each into the run before.

    Examples:

      fedwild welcome runs/fedavg-digits-001 --client ~/scans --name hospital-b

      fedwild welcome runs/fedavg-mnist-001 --client usps --resize --max-forgetting 0.02

      fedwild welcome runs/gains-mnist-001 --client late.npz --label zwei=2 --label drei=3

      fedwild welcome runs/fedavg-sites-001 --client hospital-c
    """
    from fedwild import arrival
    from fedwild.console import RunDisplay
    from fedwild.tracking import tracked

    with interruptible(RunDisplay(err, quiet)) as display, tracked(display, tensorboard) as listener:
        done = arrival.welcome(
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


@app.command()
def evaluate(folder: Folder, workers: Workers = None, as_json: Json = False, quiet: Quiet = False) -> None:
    """Measure a run's model again on its test split, and show every figure."""
    from fedwild.api import Run
    from fedwild.console import metrics_table
    from fedwild.runs.events import without_nan

    with working(quiet) as work:
        work.tell("loading the data")
        evaluation = Run(folder).evaluate(whole(workers), work.tell)
    if as_json:
        print(json.dumps(without_nan({"metrics": evaluation.metrics, "by": evaluation.by})))
    else:
        out.print(metrics_table(evaluation.metrics, evaluation.by))


@app.command()
def predict(
    folder: Folder,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Image files, or .npy arrays.")],
    client: Annotated[Words, typer.Option(help="Whose model, for methods with one per client.")] = None,
    as_json: Json = False,
) -> None:
    """Answer with a class or with 'unknown' for each image."""
    from fedwild.api import Run
    from fedwild.prediction import answer_files

    rows = answer_files(Run(folder), images, client)
    if as_json:
        print(json.dumps(rows))
        return
    table = Table()
    for heading in ("file", "answer", "best class"):
        table.add_column(heading, overflow="fold")
    for heading in ("probability", "unknown score", "threshold"):
        table.add_column(heading, justify="right")
    for row in rows:
        limit = "none" if row["threshold"] is None else f"{row['threshold']:.4f}"
        table.add_row(
            Text(row["file"]),
            Text(row["answer"]),
            Text(row["best_class"]),
            f"{row['probability']:.3f}",
            f"{row['unknown']:.4f}",
            limit,
        )
    out.print(table)


app.command()(report)
app.command()(coordinate)
app.command()(site)
app.command()(compare)
app.command()(sweep)
app.command()(reproduce)
app.command()(track)


@app.command("name")
def name_class(
    folder: Folder,
    old: Annotated[Words, typer.Argument(metavar="CLASS", help="A class that the run discovered.")] = None,
    new: Annotated[Words, typer.Argument(metavar="NAME", help="What it is.")] = None,
    as_json: Json = False,
) -> None:
    """Name a class that a run discovered, or list those that it discovered.

    Look at them with `fedwild show novel RUN` first. From then on, `predict`, `evaluate`, `show` and runs that start
    from this one use the new name. A second name replaces the first. Classes that came with labels keep theirs.

    Examples:

      fedwild name runs/gal-digits-001

      fedwild name runs/gal-digits-001 novel-1 melanoma
    """
    from fedwild.api import Run

    if old is None:
        list_novel(Run(folder), as_json)
        return
    if new is None:
        raise UserError(f"class {old!r} needs a name: `fedwild name {folder} {old} NAME`.")
    named = Run(folder).name_class(old, new)
    if as_json:
        print(json.dumps({"run": str(folder), "old": old, "new": named.name, "class": vars(named)}))
    else:
        out.print(f"{old} is called {named.name} now", highlight=False, markup=False, soft_wrap=True)


def list_novel(run: Run, as_json: bool) -> None:
    """The classes that a run discovered, and what they were found in."""
    found = run.novel_classes()
    if as_json:
        print(json.dumps({"run": str(run.path), "classes": [vars(entry) for entry in found]}))
        return
    table = Table()
    table.add_column("name", overflow="fold")
    for heading in ("stage", "samples", "clients"):
        table.add_column(heading, justify="right")
    for entry in found:
        table.add_row(Text(entry.name), str(entry.stage), str(sum(entry.samples.values())), str(len(entry.samples)))
    out.print(table)


@app.command("list")
def list_parts(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="methods, data, models, partitions, objectives, corrections, estimators, scores or settings.",
        ),
    ],
    as_json: Json = False,
) -> None:
    """List what can be named, with one line and the parameters of each."""
    from fedwild.listing import LISTS, rows_of

    if kind not in LISTS:
        raise UserError(f"list {kind!r} is not known. Available: {', '.join(LISTS)}.")
    rows = rows_of(kind)
    if as_json:
        print(json.dumps(rows, default=str))
        return
    for row in rows:
        out.print(Text.assemble((row["name"], "bold"), "  ", row["summary"]), soft_wrap=True)
        for p in row["parameters"]:
            allowed = f" ({p['allowed']})" if p["allowed"] else ""
            line = f"    {p['name']} = {json.dumps(p['default'])}  {p['type']}{allowed}: {p['description']}"
            out.print(line, highlight=False, markup=False, soft_wrap=True)


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
    from fedwild.data.picture import described, png_picture, terminal_picture
    from fedwild.experiment import load_and_deal

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


@show_app.command("outliers")
def show_outliers(
    data: Data = None,
    config: Annotated[
        PathOption, typer.Option(metavar="FILE", help="A config file that says which data, and how it is normalised.")
    ] = None,
    outliers: Annotated[
        Words,
        typer.Option(
            metavar="NAME",
            help="destruction, uniform, mixture, cutpaste, crop, blur, erase, paste, swap or rotate (destruction); "
            "all: one column for each.",
        ),
    ] = None,
    folder: Annotated[
        PathOption, typer.Option("--run", metavar="RUN", help="A finished run: show its clients' outliers x' and x''.")
    ] = None,
    client: Annotated[
        Words, typer.Option(metavar="NAME", help="Whose samples and model, with --run (the first client's).")
    ] = None,
    rows: Annotated[Number, typer.Option(metavar="N", help="Samples, of different classes where possible (6).")] = None,
    columns: Annotated[
        Number, typer.Option(metavar="N", help="Pictures per sample, itself included (10); with --run 4, 7, 10 ...")
    ] = None,
    seed: Seed = None,
    png: Annotated[Path, typer.Option(metavar="FILE", help="Where to draw the sheet.")] = Path("outliers.png"),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Draw training samples and the outliers made of them, which FedOV trains on as "unknown".

    Each row begins with a real sample; the other pictures are what data destruction makes of it.

    With --run, each outlier x' is followed by x'', the same after adversarial enhancement against the run's model,
    and by the change |x''-x'|, which is too small to see, scaled to the full range. Under the pictures is the
    model's probability of "unknown"; under the change, the largest one of a pixel.

    Examples:

      fedwild show outliers

      fedwild show outliers --data fashion-mnist --outliers all --png all.png

      fedwild show outliers --run runs/fedov-digits-001 --client client-03 --columns 4
    """
    from fedwild import api
    from fedwild.data import load
    from fedwild.openset.contact_sheet import ALL, data_sheet, run_sheet
    from fedwild.runs.events import without_nan
    from fedwild.sheet import write

    samples = number("--rows", rows, 6, range(1, 101))
    draws = None if seed is None else number("--seed", seed, 0, range(2**63))
    if folder is not None:
        refuse({"--data": data, "--config": config, "--outliers": outliers}, "not with --run, which has its own")
        pictures = number("--columns", columns, 10, range(4, 50, 3))
        with working(quiet) as work:
            work.tell("making outliers")
            sheet = run_sheet(api.Run(folder), client, samples, pictures, draws or 0)
    else:
        refuse({"--client": client}, "only with --run, which says whose model")
        if outliers == ALL:
            refuse({"--columns": columns}, "not with --outliers all, which has one for each generator")
        pictures = number("--columns", columns, 10, range(2, 51))
        resolved = api.configure(config, data=data or None, seed=draws)
        made_by = "destruction" if outliers is None else outliers
        with working(quiet) as work:
            work.tell("loading the data")
            dataset = load(resolved.data, resolved.seed, work.download)
            work.tell("making outliers")
            sheet = data_sheet(dataset, resolved.data, made_by, samples, pictures, resolved.seed)
    write(sheet, png)
    if as_json:
        print(json.dumps(without_nan({**sheet.about, "png": str(png)})))
        return
    out.print(f"picture written to {png}", highlight=False, markup=False, soft_wrap=True)


def tell_of_picture(described: dict[str, Any], png: Path, as_json: bool) -> None:
    """Say where a picture is, or what it shows."""
    if as_json:
        print(json.dumps({**described, "png": str(png)}))
        return
    out.print(f"picture written to {png}", highlight=False, markup=False, soft_wrap=True)


@show_app.command("masks")
def show_masks(
    folder: Folder,
    layers: Annotated[
        Names, typer.Option("--layer", metavar="NAME", help="Only this layer, such as conv1.conv; repeatable.")
    ] = None,
    clients: Annotated[Names, typer.Option("--client", metavar="NAME", help="Only this client; repeatable.")] = None,
    png: Annotated[Path, typer.Option(metavar="FILE", help="Where to draw the picture.")] = Path("masks.png"),
    as_json: Json = False,
) -> None:
    """Draw which weights FedPD's clients keep in their closed-set and open-set subnetworks, layer by layer.

    Rows are clients, each as of the last round that it took part in, and columns are neurons. The darker a cell, the
    more of the weights that lead to the neuron are in the subnetwork. The run need not be finished.

    With --json, `parts` has four shares of a client's weights in a layer: in the closed-set subnetwork only, in the
    open-set one only, in both, in neither. `closed` and `open` have a share for every neuron of every client, however
    many there are: --layer and --client make it less.

    Examples:

      fedwild show masks runs/fedpd-digits-001

      fedwild show masks runs/fedpd-digits-001 --layer conv1.conv --client client-00 --client client-01 --json
    """
    from fedwild.api import Run
    from fedwild.mask_picture import mask_figures, write

    masks = mask_figures(Run(folder), layers or (), clients or ())
    write(masks, png)
    tell_of_picture(masks.described(), png, as_json)


@show_app.command("confusion")
def show_confusion(
    folder: Folder,
    client: OwnClient = None,
    png: Annotated[Path, typer.Option(metavar="FILE", help="Where to draw the picture.")] = Path("confusion.png"),
    workers: Workers = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Draw which classes a run's model takes for which, and for unknown: its confusion matrix on the test data.

    Rows are true classes and columns answers: the known classes in the order of the model's outputs, then "unknown"
    for all classes that the model does not know. A cell has the share of its row in per cent; the darker, the larger.
    At the side is the number of samples. The answers are those that `fedwild evaluate` measures, so the run's data
    must be there. The run need not be finished.

    With --json, `counts` has the matrix in samples, and `names` what its rows and columns are.

    Examples:

      fedwild show confusion runs/fedavg-digits-001

      fedwild show confusion runs/local-only-digits-001 --client client-03 --png three.png --json
    """
    from fedwild.api import Run
    from fedwild.confusion_picture import confusion_figures, write

    with working(quiet) as work:
        confusion = confusion_figures(Run(folder), client, whole(workers), tell=work.tell)
        write(confusion, png)
    tell_of_picture(confusion.described(), png, as_json)


@show_app.command("features")
def show_features(
    folder: Folder,
    samples: Annotated[Number, typer.Option(metavar="N", help="Test samples, drawn by lot (1500).")] = None,
    seed: Annotated[Number, typer.Option(metavar="N", help="Same seed, same samples and same picture (0).")] = None,
    client: OwnClient = None,
    png: Annotated[Path, typer.Option(metavar="FILE", help="Where to draw the picture.")] = Path("features.png"),
    workers: Workers = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Draw where a run's model puts test samples: a map (t-SNE) of their embeddings, the input of the network's head.

    Dots are samples of known classes, in their colours; dark crosses are of classes that the model does not know.
    Neighbours on the map are neighbours in the embedding, but far distances on it mean nothing. How far known and
    unknown are apart is therefore measured in the embedding: of a sample's ten nearest neighbours, the share that are
    known if it is known, or unknown if it is unknown. The mean is at each class's name.

    The run's data must be there; it need not be finished. An ensemble (fedov, close-set-voting) has no common
    embedding, so it has no map.

    With --json, `points`, `true` and `answers` have an entry for each sample, and `neighbours` has the shares by
    class, for all known and all unknown samples, and what they would be by chance.

    Examples:

      fedwild show features runs/fedavg-digits-001

      fedwild show features runs/fedavg-digits-001 --samples 500 --seed 3 --png map.png --json
    """
    from fedwild.api import Run
    from fedwild.feature_picture import FEWEST, SAMPLES, feature_figures, write

    count = number("--samples", samples, SAMPLES, range(FEWEST, 100_001))
    draws = number("--seed", seed, 0, range(2**63))
    with working(quiet) as work:
        features = feature_figures(Run(folder), count, draws, client, whole(workers), tell=work.tell)
        write(features, png)
    tell_of_picture(features.described(), png, as_json)


@show_app.command("novel")
def show_novel(
    folder: Folder,
    client: Annotated[
        Words, typer.Option(metavar="NAME", help="Only this client's samples (the six clients with most).")
    ] = None,
    columns: Annotated[Number, typer.Option(metavar="N", help="Samples of each client, at most (8).")] = None,
    png: Annotated[Path, typer.Option(metavar="FILE", help="Where to draw the sheet.")] = Path("novel.png"),
    as_json: Json = False,
) -> None:
    """Draw what a run discovered: for each novel class, the unlabelled samples that are most like it.

    There is a row for each client that holds samples of the class: those unlabelled samples of the stage in which it
    was discovered that the network answers with it, nearest first. Under each is its cosine to the class's row of the
    head. No label is needed or shown: what it is, only a person can tell, and `fedwild name` then keeps it.

    The run's data must be there; it need not be finished.

    With --json, each class has what the registry knows of it, and for every client, not only the six, `answered`, how
    many samples are answered with it, and of the nearest ones the `rows` in the training data, the `places` in the
    client's unlabelled pool and the `cosines`.

    Examples:

      fedwild show novel runs/gal-digits-001

      fedwild show novel runs/gal-digits-001 --client client-03 --columns 12 --png three.png --json
    """
    from fedwild.api import Run
    from fedwild.novel_picture import COLUMNS, novel_figures, write

    most = number("--columns", columns, COLUMNS, range(1, 51))
    run = Run(folder)
    found = novel_figures(run, client, most)
    write(found, run, png)
    tell_of_picture(found.described(), png, as_json)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line: errors people can put right are one sentence each, with exit code 2."""
    # A console script does not look for modules here, but the user's own network or method may lie here.
    sys.path.insert(0, os.getcwd())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character shows a question mark, not a traceback.
            stream.reconfigure(errors="replace")
    try:
        sys.exit(app(args=arguments, standalone_mode=False) or 0)
    except UserError as error:
        complain(*error.problems)
    except UsageProblem as error:
        complain(error.format_message())
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(*problems: str) -> NoReturn:
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
