"""What a server can see of the samples behind an uploaded prototype: the reconstruction attack of GAL's appendix B.8.

    python -m benchmarks.reconstruction [--data mnist --known 6 --novel 4] [--prototypes 3] [--png sheet.png] [--json]

In GAL's discovery round a client uploads centroids: means of the embeddings of similar novel samples. The server knows
the network, and makes images whose embedding is such a centroid. Prints how near they are to the samples.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedwild import api
from fedwild.aggregation.means import weighted_mean
from fedwild.cli import complain
from fedwild.contract import Reply
from fedwild.contract.task import weights_of
from fedwild.core.errors import UserError
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.core.text import count
from fedwild.data import DataSettings, samples_of
from fedwild.discovery.pool import kmeans
from fedwild.engines.threads import single_thread
from fedwild.models import Network
from fedwild.openset.adversarial import frozen_model
from fedwild.results.pictures.sheet import Sheet, pixels, write
from fedwild.runs.experiment import Experiment, prepare
from fedwild.training.corrections.base import ClientCorrection
from fedwild.training.loop import LocalTraining, train
from fedwild.training.objectives.prototype_contrast import PrototypeContrast

SIZES = (1, 2, 5, 10, 20, 100)
"""Samples in an attacked cluster."""
CLIENTS, BETA, ROUNDS, SAMPLES_PER_ROUND = 10, 0.1, 20, 10_000
"""How the network is trained: GAL's clients, and as many local epochs as make about so many samples."""
TRIES = 10
"""Pools that are clustered for one cluster of a wanted size."""
GUESSES = 10
"""Random images that stand for a guess."""
CHECK, LEAST_FALL, SMALLER, SMALLEST = 100, 0.02, 0.3, 0.02
"""Every so many steps, a loss that fell by less than this share has smaller steps, down to this share of the first."""
SSIM_WINDOW = 7

Shots = Mapping[str, Tensor]
"""By who made them, images (n, q, C, H, W): q for each of n clusters."""
Figures = dict[str, float]


@dataclass(frozen=True)
class Attacker:
    """How an image is searched whose embedding is a centroid."""

    lr: float
    variation: float = 0.0
    """Weight of the total variation, beside the squared error in units of the centroids' spread."""
    near: float = 0.0
    """Weight of the squared distance to the start."""
    restarts: int = 1
    bounded: bool = True
    """Whether it knows that pixels lie in [0, 1]."""


PLAIN = Attacker(lr=0.1, bounded=False)
"""The paper's: Adam from noise, and nothing else."""
PRIOR = Attacker(lr=0.05, variation=6e-4, restarts=4)
REFINED = Attacker(lr=0.02, variation=6e-4, near=1e-3)
"""From what a decoder makes of the centroid; the decoder has seen images of the known classes."""


# What clients upload.


def configured(data: str, known: int, novel: int, model: str | None, seed: int, extra: Sequence[str]) -> Experiment:
    """The data of ten clients, novel classes without labels."""
    settings = [f"data.known={known}", f"data.novel={novel}", "data.unknown=0"]
    settings += ["partition.balance=false", "partition.min_samples=2", *extra]
    flags = {"method": "fedavg", "data": data, "partition": f"dirichlet:{BETA}", "model": model, "clients": CLIENTS}
    experiment = prepare(api.configure(None, settings=settings, seed=seed, **flags))
    if len(experiment.dataset.input_shape) != 3:
        raise UserError(f"--data {data!r} has no images, and only images can be looked at: name a data set of images.")
    return experiment


def learnt(experiment: Experiment, initial: Network, rng: Rng) -> Network:
    """The known classes learnt from all clients by FedAvg with GAL's objective: the network at discovery."""
    known = experiment.split.known
    ids = {name: number for number, name in enumerate(known)}
    held = {client.name: samples_of(experiment.dataset, client.train, ids=ids) for client in experiment.split.clients}
    epochs = max(1, min(10, SAMPLES_PER_ROUND // sum(map(len, held.values()))))
    settings = LocalTraining(epochs=epochs, batch_size=64, lr=0.05, momentum=0.9)
    objective = PrototypeContrast(PrototypeContrast.Params())
    weights = weights_of(initial)

    def replies(number: int) -> Iterator[Reply]:
        for name, samples in held.items():
            network = experiment.task.network(weights, len(known), bias=False)
            train(network, samples, settings, objective, ClientCorrection(), rng.child(number, name))
            payload = Payload(info={"samples": len(samples)})
            payload.put("model", experiment.task.weights(network))
            yield Reply(name, payload)

    for number in range(ROUNDS):
        weights = weighted_mean(replies(number), "model") or weights
    return experiment.task.network(weights, len(known), bias=False).eval()


@dataclass(frozen=True)
class Images:
    """Inputs in [0, 1] (n, C, H, W) and their classes (n,)."""

    novel: Tensor
    """Of the novel classes, at clients: the members of clusters."""
    novel_y: Tensor
    reference: Tensor
    """Samples of the novel classes that no client holds: the attacker uses them as references."""
    reference_y: Tensor
    public: Tensor
    """Of the known classes, at no client: what an attacker may have."""
    public_y: Tensor
    pools: tuple[Tensor, ...]
    """For every client, the positions of its samples in `novel`."""

    @classmethod
    def of(cls, experiment: Experiment) -> Images:
        dataset, split = experiment.dataset, experiment.split
        held = [torch.from_numpy(client.unlabelled) for client in split.clients]
        test, test_y = samples_of(dataset, split.test, "test").all()
        own = torch.isin(test_y, torch.tensor([dataset.classes.index(name) for name in split.novel]))
        pools = torch.arange(sum(map(len, held))).split([len(rows) for rows in held])
        return cls(*samples_of(dataset, torch.cat(held)).all(), test[own], test_y[own], test[~own], test_y[~own], pools)


@dataclass(frozen=True)
class Cluster:
    """A client's cluster: the positions of its members in `Images.novel`, and the class that most of them have."""

    wanted: int
    members: Tensor
    label: int
    purity: float


def clusters(features: Tensor, images: Images, most: int, count: int, rng: Rng) -> list[Cluster]:
    """`count` clusters of every size that a client has samples for."""
    found = []
    for size in SIZES:
        pools = [pool for pool in images.pools if len(pool) >= size]
        found += [
            one_cluster(features, images, pools, most, size, rng.child(size, i)) for i in range(count if pools else 0)
        ]
    return found


def one_cluster(features: Tensor, images: Images, pools: Sequence[Tensor], most: int, wanted: int, rng: Rng) -> Cluster:
    """By k-means with at most `most` clusters, as GAL's clients do it, of as many samples as make that size.

    A client with no more samples than clusters uploads clusters of one: embeddings as they are.
    """
    draws, best = rng.numpy("pool"), torch.empty(0, dtype=torch.int64)
    for number in range(TRIES):
        pool = pools[int(draws.integers(len(pools)))].numpy()
        k = min(most, len(pool) // wanted)
        chosen = torch.from_numpy(draws.choice(pool, size=k * wanted, replace=False))
        seed = rng.sklearn(f"k-means {number}")
        parts = torch.from_numpy(kmeans(features[chosen].double().numpy(), k, seed, tries=3))
        for part in draws.permutation(k):
            members = chosen[parts == part]
            if abs(len(members) - wanted) < abs(len(best) - wanted):
                best = members
        if len(best) == wanted:
            break
    counts = images.novel_y[best].bincount()
    return Cluster(wanted, best, int(counts.argmax()), float(counts.max() / len(best)))


# What the server makes of it.


@torch.inference_mode()
def embedded(model: Network, x: Tensor) -> Tensor:
    """Embeddings (n, d) of inputs."""
    return torch.cat([model.embed(part) for part in x.split(256)])


def attacks(model: Network, targets: Tensor, images: Images, steps: int, rng: Rng) -> Shots:
    """What each attacker makes of the centroids (n, d)."""
    shape = model.input_shape
    noise = torch.randn(len(targets), *shape, generator=rng.torch("plain"))
    levels = torch.linspace(0, 0.5, PRIOR.restarts).repeat_interleave(len(targets)).view(-1, 1, 1, 1)
    lit = levels + 0.1 * torch.randn(len(levels), *shape, generator=rng.torch("prior"))
    decoded = decoder(model, images.public, rng)(targets).view(-1, *shape).detach()
    made = {
        "plain": search(model, targets, PLAIN, noise, steps),
        "prior": search(model, targets, PRIOR, lit.clamp(0, 1), steps),
        "decoder": decoded,
        "refined": search(model, targets, REFINED, decoded, steps),
    }
    return {name: x.unsqueeze(1) for name, x in made.items()}


def search(model: Network, targets: Tensor, attacker: Attacker, start: Tensor, steps: int) -> Tensor:
    """Adam on images until the loss stops falling, for all targets at a time; of several starts the best (n, C, H, W).

    `start` has all first starts, then all second ones, and so on.
    """
    wanted = targets.repeat(attacker.restarts, 1)
    spread = (targets - targets.mean(0)).square().sum(1).mean() if len(targets) > 1 else targets.square().sum()
    x = start.clone().requires_grad_(True)
    optimiser = torch.optim.Adam([x], lr=attacker.lr)
    best, kept, before = torch.full((len(x),), torch.inf), start.clone(), torch.inf
    with frozen_model(model):
        for step in range(steps):
            loss = (model.embed(x) - wanted).square().sum(1) / spread
            loss = loss + attacker.variation * variation(x) + attacker.near * (x - start).square().sum((1, 2, 3))
            better = loss.detach() < best
            best[better], kept[better] = loss.detach()[better], x.detach()[better]
            if step % CHECK == CHECK - 1:
                now = float(best.clamp_min(1e-12).log().mean())
                if now > before - LEAST_FALL and not smaller_steps(optimiser, attacker):
                    break
                before = now
            (x.grad,) = torch.autograd.grad(loss.sum(), x)
            optimiser.step()
            if attacker.bounded:
                x.data.clamp_(0, 1)
    winners = best.view(attacker.restarts, -1).argmin(0) * len(targets) + torch.arange(len(targets))
    return kept[winners]


def smaller_steps(optimiser: torch.optim.Optimizer, attacker: Attacker) -> bool:
    """Lower the learning rate; False if it has become too small to go on."""
    (group,) = optimiser.param_groups
    group["lr"] *= SMALLER
    return bool(group["lr"] >= SMALLEST * attacker.lr)


def variation(x: Tensor) -> Tensor:
    """The absolute differences of neighbouring pixels, down and across, summed (n,)."""
    return x.diff(dim=2).abs().sum((1, 2, 3)) + x.diff(dim=3).abs().sum((1, 2, 3))


def decoder(model: Network, x: Tensor, rng: Rng, steps: int = 1500, hidden: int = 512) -> nn.Module:
    """A network from embeddings (n, d) to pixels (n, C*H*W), learnt from images x that the attacker has."""
    z = embedded(model, x).clone()
    middle, scale = z.mean(0), z.std().clamp_min(1e-6)
    with rng.seeded("decoder"):
        first, second, last = nn.Linear(z.shape[1], hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, x[0].numel())
    # The embeddings' level and scale, built into the first layer.
    first.weight.data.div_(scale)
    first.bias.data.sub_(first.weight.data @ middle)
    network = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last, nn.Sigmoid())
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    draws = rng.torch("decoder's batches")
    for _ in range(steps):
        rows = torch.randint(len(x), (128,), generator=draws)
        optimiser.zero_grad()
        F.mse_loss(network(z[rows]), x[rows].flatten(1)).backward()
        optimiser.step()
    return network


def guesses(found: Sequence[Cluster], images: Images, rng: Rng) -> Shots:
    """What needs no centroid, to compare with: other images of novel classes, of the same class, and means."""
    draws, everything = rng.numpy("guesses"), np.arange(len(images.reference))
    other, same = [], []
    for cluster in found:
        alike = np.flatnonzero((images.reference_y == cluster.label).numpy())
        other.append(images.reference[draws.choice(everything, GUESSES)])
        same.append(images.reference[draws.choice(alike if len(alike) else everything, GUESSES)])
    return {
        "known mean": images.public.mean(0).expand(len(found), 1, -1, -1, -1),
        "other": torch.stack(other),
        "same class": torch.stack(same),
        "cluster mean": torch.stack([images.novel[cluster.members].mean(0, keepdim=True) for cluster in found]),
    }


# How near it comes.


def standard(x: Tensor) -> Tensor:
    """Images (n, ...) as vectors whose products are their correlations."""
    flat = x.flatten(1)
    return F.normalize(flat - flat.mean(1, keepdim=True))


def correlation(a: Tensor, b: Tensor) -> Tensor:
    """Pearson's, of the pixels of images a (n, ...) and b (m, ...): (n, m)."""
    return standard(a) @ standard(b).T


def squared_error(a: Tensor, b: Tensor) -> Tensor:
    """Mean squared difference of pixels: (n, m)."""
    return torch.cdist(a.flatten(1), b.flatten(1)).square() / a[0].numel()


def ssim(a: Tensor, b: Tensor) -> Tensor:
    """Structural similarity in even windows, of images a (n, C, H, W) and b (m, C, H, W) in [0, 1]: (n, m)."""
    window, low, high = min(SSIM_WINDOW, *a.shape[2:]), 0.01**2, 0.03**2

    def mean(x: Tensor) -> Tensor:
        return F.avg_pool2d(x, window, 1)

    rows = []
    for one in a.unsqueeze(1):
        at, bt = mean(one), mean(b)
        spread = mean(one * one) - at * at + mean(b * b) - bt * bt
        common = mean(one * b) - at * bt
        values = (2 * at * bt + low) * (2 * common + high) / ((at * at + bt * bt + low) * (spread + high))
        rows.append(values.mean((1, 2, 3)))
    return torch.stack(rows)


class Judge:
    """Compares images with the members of a cluster."""

    def __init__(self, model: Network, images: Images) -> None:
        self.model, self.images = model, images
        self.novel, self.reference = standard(images.novel), standard(images.reference)

    def figures(self, x: Tensor, cluster: Cluster, target: Tensor) -> Figures:
        """Of images x (q, C, H, W), the mean figures. Likeness is that to the nearest member, as shown: in [0, 1]."""
        errors = (embedded(self.model, x) - target).norm(dim=1) / target.norm().clamp_min(1e-6)
        x, members = x.clamp(0, 1), self.images.novel[cluster.members]
        likeness = standard(x) @ self.novel.T
        alike = self.images.reference_y[(standard(x) @ self.reference.T).argmax(1)]
        figures = {
            "error": errors,
            "correlation": likeness[:, cluster.members].amax(1),
            "mse": squared_error(x, members).amin(1),
            "ssim": ssim(x, members).amax(1),
            "nearer": self.nearer(likeness, cluster),
            "found": torch.isin(likeness.argmax(1), cluster.members),
            "class": alike == cluster.label,
        }
        return {name: float(values.float().mean()) for name, values in figures.items()}

    def nearer(self, likeness: Tensor, cluster: Cluster) -> Tensor:
        """How often an image is more like a member than like another sample of that member's class (q,).

        0.5: it shows the class at most, and nothing of the members.
        """
        y, outside = self.images.novel_y, torch.ones(len(self.images.novel), dtype=torch.bool)
        outside[cluster.members] = False
        shares = []
        for label in y[cluster.members].unique():
            own = likeness[:, cluster.members[y[cluster.members] == label], None]
            others = likeness[:, None, outside & (y == label)]
            shares.append((own > others).float().mean(2))
        return torch.cat(shares, dim=1).mean(1)

    def class_of_centroids(self, targets: Tensor) -> Tensor:
        """Told from the centroid alone: the class whose reference images have the nearest mean embedding (n,)."""
        features, y = embedded(self.model, self.images.reference), self.images.reference_y
        labels = y.unique()
        means = torch.stack([features[y == label].mean(0) for label in labels])
        return labels[torch.cdist(targets, means).argmin(1)]


def summed_up(found: Sequence[Cluster], told: Tensor, cases: Mapping[str, Sequence[Figures]]) -> list[dict[str, Any]]:
    """By cluster size: the mean figures of every attacker and guess."""
    report = []
    for size in sorted({cluster.wanted for cluster in found}):
        places = [i for i, cluster in enumerate(found) if cluster.wanted == size]
        own = [found[i] for i in places]
        by_name = {
            name: {key: float(np.mean([figures[i][key] for i in places])) for key in figures[0]}
            for name, figures in cases.items()
        }
        report.append(
            {
                "size": float(np.mean([len(cluster.members) for cluster in own])),
                "clusters": len(own),
                "purity": float(np.mean([cluster.purity for cluster in own])),
                "class_by_centroid": float(np.mean([int(told[i]) == found[i].label for i in places])),
                "images": by_name,
            }
        )
    return report


# The whole.


def reconstruction(experiment: Experiment, count: int, steps: int, rows: int) -> tuple[dict[str, Any], Sheet]:
    """The report, and the sheet with the first `rows` clusters of every size."""
    rng, known = Rng(experiment.config.seed).child("reconstruction"), len(experiment.split.known)
    images = Images.of(experiment)
    untrained = experiment.task.build(known, rng, bias=False).eval()
    networks = {"trained": learnt(experiment, untrained, rng), "untrained": untrained}
    # Both networks are attacked through the same clusters, so that the network alone differs.
    found = clusters(embedded(networks["trained"], images.novel), images, known, count, rng.child("clusters"))
    if not found:
        raise UserError("no client has samples of a novel class, so there is no cluster to attack.")
    guessed, shots, report = guesses(found, images, rng), {}, {}
    for name, network in networks.items():
        judge = Judge(network, images)
        targets = torch.stack([embedded(network, images.novel[cluster.members]).mean(0) for cluster in found])
        shots[name] = attacks(network, targets, images, steps, rng.child(name))
        cases = {
            who: [judge.figures(*case) for case in zip(made, found, targets, strict=True)]
            for who, made in {**shots[name], **guessed}.items()
        }
        report[name] = summed_up(found, judge.class_of_centroids(targets), cases)
    about: dict[str, Any] = {
        "data": experiment.dataset.name,
        "known": list(experiment.split.known),
        "novel": list(experiment.split.novel),
        "model": experiment.task.model,
        "embedding": untrained.embedding_dim,
        "pixels": images.novel[0].numel(),
        "known_accuracy": known_accuracy(experiment, networks["trained"], images),
        "seed": experiment.config.seed,
    }
    return {**about, "networks": report}, sheet_of(about["data"], found, shots, images, rows)


def known_accuracy(experiment: Experiment, model: Network, images: Images) -> float:
    """On test images of the known classes."""
    ids = torch.tensor([experiment.dataset.classes.index(name) for name in experiment.split.known])
    with torch.inference_mode():
        answers = torch.cat([model(part).argmax(1) for part in images.public.split(256)])
    return float((ids[answers] == images.public_y).float().mean())


def sheet_of(data: str, found: Sequence[Cluster], shots: Mapping[str, Shots], images: Images, rows: int) -> Sheet:
    """A row per cluster: its member nearest to a recovered image, its mean, and what the attackers made of it."""
    shown = [i for size in SIZES for i in [i for i, c in enumerate(found) if c.wanted == size][:rows]]
    columns = [(who, made) for by_attacker in shots.values() for who, made in by_attacker.items()]
    pictures, notes = [], []
    for i in shown:
        members = images.novel[found[i].members]
        recovered = torch.stack([made[i, 0] for _, made in columns]).clamp(0, 1)
        likeness = correlation(recovered, members)
        best = members[likeness[: len(columns) // len(shots)].amax(0).argmax()]
        pictures.append(pixels(torch.stack([best, members.mean(0), *recovered]), DataSettings()))
        notes.append(["", "", *(f"{value:.2f}" for value in likeness.amax(1).tolist())])
    return Sheet(
        caption=(
            f"{data}: clusters' nearest member and mean, and what attackers recover from the centroid,\n"
            "left through the trained network, right through an untrained one;\n"
            "below each, its correlation with the nearest member"
        ),
        pictures=np.stack(pictures),
        row_names=[count(len(found[i].members), "sample") for i in shown],
        column_names=["member", "mean", *(who for who, _ in columns)],
        wide=[2 + number * len(columns) // len(shots) for number in range(len(shots))],
        about={},
        notes=notes,
    )


def table(report: Mapping[str, Any]) -> str:
    """The report for people."""
    title = "{data}, {model} ({pixels} pixels to {embedding} features), known classes right {known_accuracy:.0%}"
    lines = [title.format(**report)]
    names = ("error", "correlation", "mse", "ssim", "nearer", "found", "class")
    for network, sizes in report["networks"].items():
        for case in sizes:
            told = (
                f"{case['purity']:.0%} of one class, which the centroid alone tells in {case['class_by_centroid']:.0%}"
            )
            lines += ["", f"{network} network, {count(case['clusters'], 'cluster')} of {case['size']:g}: {told}"]
            lines.append(" " * 13 + "".join(f"{name:>12}" for name in names))
            for who, figures in case["images"].items():
                lines.append(f"{who:13}" + "".join(f"{figures[name]:12.3f}" for name in names))
    return "\n".join(lines)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence."""

    def error(self, message: str) -> NoReturn:
        complain(f"{message}.")


def whole(least: int) -> Any:
    """An argument's type: whole numbers from `least`."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return read


def arguments() -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits", help="a data set of images by name, or your own files")
    parser.add_argument("--known", type=whole(1), default=6, help="classes that the network learns")
    parser.add_argument("--novel", type=whole(1), default=4, help="classes whose clusters are attacked")
    parser.add_argument("--model", help="a network by name; default: as for `fedwild run`")
    parser.add_argument("--set", action="append", default=[], help="as for `fedwild run`, such as model.width=0.5")
    parser.add_argument("--seed", type=whole(0), default=0)
    parser.add_argument("--prototypes", type=whole(1), default=3, help="attacked clusters of every size")
    parser.add_argument("--steps", type=whole(1), default=2000, help="at most so many steps of an attack")
    parser.add_argument("--rows", type=whole(1), default=3, help="clusters of every size on the sheet, at most")
    parser.add_argument("--png", type=Path, help="draw a sheet of the recovered images")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    single_thread()
    try:
        if given.png and (given.png.is_dir() or not given.png.parent.is_dir()):
            raise UserError(f"--png {str(given.png)!r} cannot be written: give a file in a folder that exists.")
        experiment = configured(given.data, given.known, given.novel, given.model, given.seed, given.set)
        report, sheet = reconstruction(experiment, given.prototypes, given.steps, given.rows)
        if given.png:
            write(sheet, given.png)
    except UserError as error:
        complain(*error.problems)
    print(json.dumps(report, indent=2) if given.json else table(report))


if __name__ == "__main__":
    main()
