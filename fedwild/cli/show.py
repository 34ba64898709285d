"""Commands that draw: `fedwild show`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fedwild.cli.options import (
    Data,
    Folder,
    Json,
    Names,
    Number,
    OwnClient,
    PathOption,
    Quiet,
    Seed,
    Words,
    Workers,
    number,
    out,
    refuse,
    whole,
    working,
)

show_app = typer.Typer(help="Look at what methods and models make of data.", no_args_is_help=True)


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
    from fedwild.results.pictures.contact_sheet import ALL, data_sheet, run_sheet
    from fedwild.results.pictures.sheet import write
    from fedwild.runs.events import without_nan

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
    from fedwild.results.pictures.masks import mask_figures, write

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
    from fedwild.results.pictures.confusion import confusion_figures, write

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
    from fedwild.results.pictures.features import MIN_SAMPLES, SAMPLES, feature_figures, write

    count = number("--samples", samples, SAMPLES, range(MIN_SAMPLES, 100_001))
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
    from fedwild.results.pictures.novel import COLUMNS, novel_figures, write

    most = number("--columns", columns, COLUMNS, range(1, 51))
    run = Run(folder)
    found = novel_figures(run, client, most)
    write(found, run, png)
    tell_of_picture(found.described(), png, as_json)
