"""Commands that draw: `fedwild show`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fedwild.cli import options
from fedwild.cli.options import Names, Number, PathOption, Words, option

show_app = typer.Typer(help="Draw what runs have learnt, as PNG, SVG or PDF.", no_args_is_help=True)


Picture = Annotated[Path, option("FILE", "The picture; its ending chooses the format: .png, .svg or .pdf.", "--out")]

OUTLIERS_HELP = (
    "destruction, uniform, mixture, cutpaste, crop, blur, erase, paste, swap or rotate (destruction); "
    "all: one column for each."
)


def report_picture(described: dict[str, Any], picture: Path, as_json: bool, note: str = "") -> None:
    """Print where the picture is, or what it shows as JSON."""
    from fedwild.runs.events import without_nan

    if as_json:
        print(json.dumps(without_nan({**described, "picture": str(picture)})))
    else:
        options.say(f"picture written to {picture}{note}")


@show_app.command("outliers")
def show_outliers(
    data: options.Data = None,
    config: Annotated[PathOption, option("FILE", "A config file with the data and its normalisation.")] = None,
    outliers: Annotated[Words, option("NAME", OUTLIERS_HELP)] = None,
    folder: Annotated[
        PathOption, option("RUN", "A finished run: show its clients' outliers x' and x''.", "--run")
    ] = None,
    client: Annotated[
        Words, option("NAME", "With --run: the client whose samples and model to show (the first).")
    ] = None,
    rows: Annotated[Number, option("N", "Samples, of different classes where possible (6).")] = None,
    columns: Annotated[Number, option("N", "Images per sample, itself included (10); with --run 4, 7, 10 ...")] = None,
    seed: options.Seed = None,
    picture: Picture = Path("outliers.png"),
    trust_code: options.TrustCode = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Draw training samples and the outliers made from them, which clients train on as "unknown".

    Each row begins with a real sample; the other images are outliers that a generator makes from it.

    With --run, each outlier x' is followed by x'', its version after adversarial enhancement against the run's model,
    and by their difference |x''-x'|, which is too small to see and therefore scaled to the full range. Below the images
    is the model's probability of "unknown"; below the difference, its largest value.

    Examples:

      fedwild show outliers

      fedwild show outliers --data fashion-mnist --outliers all --out all.png

      fedwild show outliers --run runs/fedov-digits-001 --client client-03 --columns 4
    """
    from fedwild import api
    from fedwild.data import load
    from fedwild.results.pictures.contact_sheet import ALL, data_sheet, run_sheet
    from fedwild.results.pictures.drawing import check_ending
    from fedwild.results.pictures.sheet import write

    check_ending(picture)
    samples = options.number("--rows", rows, 6, range(1, 101))
    draws = None if seed is None else options.number("--seed", seed, 0, range(2**63))
    if folder is not None:
        options.reject_options(
            {"--data": data, "--config": config, "--outliers": outliers}, "with --run, which has its own"
        )
        images = options.number("--columns", columns, 10, range(4, 50, 3))
        with options.working(quiet) as work:
            work.show("making outliers")
            sheet = run_sheet(api.Run(folder), client, samples, images, draws or 0)
    else:
        options.reject_options({"--client": client}, "without --run")
        if outliers == ALL:
            options.reject_options({"--columns": columns}, "with --outliers all, which has a column for each generator")
        images = options.number("--columns", columns, 10, range(2, 51))
        resolved = api.configure(config, data=data or None, seed=draws)
        with options.working(quiet) as work:
            work.show("loading the data")
            dataset = load(resolved.data, resolved.seed, work.download)
            work.show("making outliers")
            made_by = "destruction" if outliers is None else outliers
            sheet = data_sheet(dataset, resolved.data, made_by, samples, images, resolved.seed)
    write(sheet, picture)
    report_picture(sheet.about, picture, as_json)


@show_app.command("exhibits")
def show_exhibits(
    folder: options.Folder,
    section: Annotated[Words, option("NAME", "Only the exhibits of this section.")] = None,
    titles: Annotated[
        Names, option("TEXT", "Only exhibits with this text in their title; repeatable.", "--title")
    ] = None,
    picture: Picture = Path("exhibits.png"),
    trust_code: options.TrustCode = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Draw what the run's method has to show: its tables, curves, bars, maps and images, as in the report.

    What there is depends on the method, such as the subnetworks of its clients, layer by layer. A method without
    exhibits has nothing to draw. The run need not be finished.

    With --json, `exhibits` has the numbers of each exhibit.

    Examples:

      fedwild show exhibits runs/fedpd-digits-001

      fedwild show exhibits runs/fedpd-digits-001 --section Subnetworks --title conv1.conv --out masks.pdf
    """
    from fedwild.api import Run
    from fedwild.results.pictures.drawing import check_drawable
    from fedwild.results.pictures.exhibits import described, exhibits_of, write

    check_drawable(picture)
    with options.working(quiet) as work:
        work.show("making exhibits")
        exhibits = exhibits_of(Run(folder), section, titles or ())
        drawn = write(exhibits, picture)
    plain = {"run": str(folder), "exhibits": [described(exhibit) for exhibit in exhibits]}
    more = f": the first {drawn} of {len(exhibits)} exhibits; choose others with --section or --title"
    report_picture(plain, picture, as_json, more if drawn < len(exhibits) else "")


@show_app.command("confusion")
def show_confusion(
    folder: options.Folder,
    client: options.OwnClient = None,
    picture: Picture = Path("confusion.png"),
    workers: options.Workers = None,
    trust_code: options.TrustCode = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Draw the confusion matrix of a run's model on the test data, with "unknown" as one more class.

    Rows are true classes and columns answers: the known classes in the order of the model's outputs, then "unknown"
    for all classes that the model does not know. A cell has its percentage of the row; darker cells are larger. To the
    right of each row is its number of samples. The answers are those that `fedwild evaluate` measures, so the run's
    data must be on this machine. The run need not be finished.

    With --json, `counts` has the matrix in samples, and `names` the names of its rows and columns.

    Examples:

      fedwild show confusion runs/fedavg-digits-001

      fedwild show confusion runs/local-only-digits-001 --client client-03 --out three.pdf --json
    """
    from fedwild.api import Run
    from fedwild.results.pictures.confusion import confusion_figures, draw
    from fedwild.results.pictures.drawing import check_drawable, write_figure

    check_drawable(picture)
    with options.working(quiet) as work:
        confusion = confusion_figures(Run(folder), client, options.whole(workers), on_progress=work.show)
        write_figure(draw(confusion), picture)
    report_picture(confusion.described(), picture, as_json)


@show_app.command("features")
def show_features(
    folder: options.Folder,
    samples: Annotated[Number, option("N", "Test samples, drawn at random (1500).")] = None,
    seed: Annotated[Number, option("N", "Same seed, same samples and same picture (0).")] = None,
    client: options.OwnClient = None,
    member: Annotated[Words, option("NAME", "Of an ensemble: the client whose network to show.")] = None,
    outliers: Annotated[
        bool, typer.Option("--outliers", help="With --member: also show outliers that the network trained on.")
    ] = False,
    picture: Picture = Path("features.png"),
    workers: options.Workers = None,
    trust_code: options.TrustCode = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Draw a t-SNE map of test samples in the model's embedding space, the input of the network's head.

    Coloured marks are samples of known classes; dark crosses are samples of classes that the model does not know.
    Neighbours on the map are neighbours in the embedding space, but large distances on it mean nothing. The separation
    of known and unknown is therefore measured in the embedding space: the share of a sample's ten nearest neighbours
    that are known if it is known, or unknown if it is unknown. The mean is next to each class's name.

    The run's data must be on this machine. The run need not be finished. An ensemble has no common embedding space:
    choose one of its networks with --member, or show its distilled student. A member knows only the classes of its
    client's training samples; all others count as unknown, and it answers with the largest of its outputs.

    With --json, `points`, `true` and `answers` have an entry for each sample, and `neighbours` has the shares by
    class, for all known and all unknown samples, and what they would be by chance.

    Examples:

      fedwild show features runs/fedavg-digits-001

      fedwild show features runs/fedavg-digits-001 --samples 500 --seed 3 --out map.svg --json

      fedwild show features runs/fedov-digits-001 --member client-03 --outliers
    """
    from fedwild.api import Run
    from fedwild.results.pictures.drawing import check_drawable, write_figure
    from fedwild.results.pictures.features import MIN_SAMPLES, SAMPLES, draw, feature_figures

    check_drawable(picture)
    count = options.number("--samples", samples, SAMPLES, range(MIN_SAMPLES, 100_001))
    draws = options.number("--seed", seed, 0, range(2**63))
    if member is None:
        options.reject_options({"--outliers": outliers}, "without --member")
    else:
        options.reject_options({"--client": client}, "with --member")
    processes = options.whole(workers)
    with options.working(quiet) as work:
        features = feature_figures(Run(folder), count, draws, client, processes, work.show, member, outliers)
        write_figure(draw(features), picture)
    report_picture(features.described(), picture, as_json)


@show_app.command("novel")
def show_novel(
    folder: options.Folder,
    client: Annotated[Words, option("NAME", "Only this client's samples (the six clients with most).")] = None,
    columns: Annotated[Number, option("N", "Samples of each client, at most (8).")] = None,
    picture: Picture = Path("novel.png"),
    trust_code: options.TrustCode = False,
    as_json: options.Json = False,
) -> None:
    """Draw the unlabelled samples nearest to each class that a run discovered.

    Each client that holds samples of a class has a row. It shows unlabelled samples of the stage in which the class was
    discovered that the network assigns to the class, nearest first. Below each is its cosine to the class's row of the
    head. Labels are neither needed nor shown: a person decides what the class is, and `fedwild name` names it.

    The run's data must be on this machine. The run need not be finished.

    With --json, each class has its registry entry and, for every client, `answered`: the number of samples that
    the network assigns to it. The nearest samples have `rows` in the training data, `places` in the
    client's unlabelled pool, and `cosines`.

    Examples:

      fedwild show novel runs/gal-digits-001

      fedwild show novel runs/gal-digits-001 --client client-03 --columns 12 --out three.png --json
    """
    from fedwild.api import Run
    from fedwild.results.pictures.drawing import check_ending
    from fedwild.results.pictures.novel import COLUMNS, novel_figures, sheet_of
    from fedwild.results.pictures.sheet import write

    check_ending(picture)
    most = options.number("--columns", columns, COLUMNS, range(1, 51))
    run = Run(folder)
    found = novel_figures(run, client, most)
    write(sheet_of(found, run.experiment.dataset, run.config.data), picture)
    report_picture(found.described(), picture, as_json)
