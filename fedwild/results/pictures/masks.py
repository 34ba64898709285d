"""Which weights FedPD's clients keep in their subnetworks, layer by layer: as figures and as a PNG.

Figures 3, 4 and 6 of the paper: across, the neurons of a layer; down, the clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from fedwild.core.errors import UserError, unknown_name
from fedwild.methods.fedpd.method import TRAIN, FedPD
from fedwild.methods.fedpd.subnetworks import weight_names
from fedwild.results.pictures.drawing import LINE, MARGIN, Font, Pixels, counted, cut, fitted, text_width, write_png

if TYPE_CHECKING:
    from fedwild.lifecycle.run import Run

Real = NDArray[np.float64]

PARTS = ("closed only", "open only", "both", "neither")
# They differ in lightness too, for those who do not see the colours and for print without any.
PART_COLOURS: Pixels = np.array([(0, 114, 178), (240, 170, 40), (20, 20, 30), (228, 228, 228)], dtype=np.uint8)
RAMPS: dict[str, Pixels] = {
    "closed-set subnetwork": np.array([(247, 251, 255), (70, 145, 200), (5, 25, 70)], dtype=np.uint8),
    "open-set subnetwork": np.array([(255, 248, 238), (230, 135, 40), (75, 25, 0)], dtype=np.uint8),
}
"""Colours of the shares 0, 1/2 and 1, ever darker."""

FONT, LARGE = ImageFont.load_default(size=12), ImageFont.load_default(size=14)
MAX_COLUMNS, DIGITS = 256, 4
PANEL_WIDTH, PANEL_HEIGHT, BAR_WIDTH, RAMP_WIDTH, SWATCH = 512, 240, 200, 128, 10
TITLE, GAP = LINE + 4, 24
CELL_WIDTHS, ROW_HEIGHTS = (2, 32), (2, 16)  # least and most
LINED_ROW = 8  # rows of at least this height have a line between them


@dataclass(frozen=True)
class MaskedLayer:
    """One layer's masks: of each neuron's incoming weights, the shares that are in which part."""

    name: str
    shares: Real
    """(clients, 3, neurons): in the closed-set subnetwork only, in the open-set one only, in both."""

    @property
    def neurons(self) -> int:
        return self.shares.shape[2]

    @property
    def subnetworks(self) -> tuple[Real, Real]:
        """The shares in the closed-set and in the open-set subnetwork, (clients, neurons) each."""
        closed, open_, both = self.shares.transpose(1, 0, 2)
        return closed + both, open_ + both

    @property
    def parts(self) -> Real:
        """Over all of a client's weights in this layer, the shares of the four parts: (clients, 4)."""
        three = self.shares.mean(axis=2)
        return np.column_stack([three, (1 - three.sum(axis=1)).clip(min=0)])


@dataclass(frozen=True)
class MaskFigures:
    """The masks of a run, those of each client as of the last round that it took part in."""

    run: str
    method: str
    ratio: float
    round: int
    """Training rounds done."""
    clients: Sequence[str]
    layers: Sequence[MaskedLayer]
    """In the order in which the network runs them."""

    def described(self) -> dict[str, Any]:
        """For programs: plain values, rounded."""
        layers = {}
        for layer in self.layers:
            closed, open_ = layer.subnetworks
            values = {"parts": layer.parts, "closed": closed, "open": open_}
            layers[layer.name] = {"neurons": layer.neurons, **{key: self._by_client(v) for key, v in values.items()}}
        about = {"run": self.run, "method": self.method, "ratio": self.ratio, "round": self.round}
        return {**about, "clients": list(self.clients), "layers": layers}

    def _by_client(self, rows: Real) -> dict[str, list[float]]:
        return dict(zip(self.clients, rows.round(DIGITS).tolist(), strict=True))


def figures(run: Run, layers: Iterable[str] = (), clients: Iterable[str] = ()) -> dict[str, Any]:
    """The masks of a FedPD run as plain values; of all layers and clients, unless some are named.

    `parts` has four shares of a client's weights in a layer: in the closed-set subnetwork only, in the open-set one
    only, in both, in neither. `closed` and `open` have, for every neuron, the share of its incoming weights in the
    subnetwork.
    """
    return mask_figures(run, layers, clients).described()


def mask_figures(run: Run, layers: Iterable[str] = (), clients: Iterable[str] = ()) -> MaskFigures:
    """The masks that a finished or unfinished run holds; of all layers and clients, unless some are named."""
    method = masking_method(run)
    server = run.server()
    shares = server.state.members("shares")
    if not shares:
        raise UserError(f"run {str(run.path)!r} has no masks yet: no client has trained so far.")
    weights = {weight.removesuffix(".weight"): weight for weight in weight_names(method.graph(server))}
    names = chosen("--client", clients, shares)
    return MaskFigures(
        run=str(run.path),
        method=method.name,
        ratio=method.params.ratio,
        round=server.step.round + 1 if server.step.phase == TRAIN else method.params.rounds,
        clients=names,
        layers=[
            MaskedLayer(layer, np.stack([shares[name][weights[layer]].double().numpy() for name in names]))
            for layer in chosen("--layer", layers, weights)
        ],
    )


def masking_method(run: Run) -> FedPD:
    """The run's method, if it makes masks."""
    method = run.settings.make_method()
    if isinstance(method, FedPD) and method.params.importance != "none":
        return method
    reason = "method.importance = 'none'" if isinstance(method, FedPD) else f"method {method.name!r}"
    raise UserError(f"run {str(run.path)!r} has no masks: {reason} makes none; take a run of fedpd or fedpd-paper.")


def chosen(option: str, wanted: Iterable[str], known: Mapping[str, Any]) -> list[str]:
    """Those of the known names that are wanted, in their own order; all, if none is named."""
    names = list(wanted)
    for name in names:
        if name not in known:
            raise unknown_name(option, name, known)
    return [name for name in known if not names or name in names]


def write(masks: MaskFigures, path: Path) -> None:
    """Draw the masks into a PNG file."""
    write_png(draw(masks), path)


def draw(masks: MaskFigures) -> Image.Image:
    """A block for each layer: the two subnetworks under each other, and beside them the parts."""
    layout = Layout(masks)
    page = Page(layout)
    page.heading()
    for number, layer in enumerate(masks.layers):
        page.text((MARGIN, layout.block(number)), layer_title(layer), LARGE)
        for place, (title, shares) in enumerate(zip(RAMPS, layer.subnetworks, strict=True)):
            page.heat_map(layout.panel(number, place), title, shares)
        page.bars(layout.panel(number, 0), layer.parts)
        page.means(layout.panel(number, 1), layer.parts.mean(axis=0))
    return page.image


@dataclass(frozen=True)
class Layout:
    """Where everything is on the page."""

    masks: MaskFigures

    @cached_property
    def row(self) -> int:
        """The height of a client's row."""
        return int(np.clip(PANEL_HEIGHT // len(self.masks.clients), *ROW_HEIGHTS))

    @cached_property
    def height(self) -> int:
        """The height of a panel."""
        return self.row * len(self.masks.clients)

    @cached_property
    def left(self) -> int:
        """Where the subnetworks begin, right of the clients' names."""
        return MARGIN + max(text_width(FONT, shown(name)) for name in self.masks.clients) + 6

    @cached_property
    def bars(self) -> int:
        """Where the parts begin, right of the subnetworks."""
        return self.left + PANEL_WIDTH + GAP

    @cached_property
    def size(self) -> tuple[int, int]:
        """Width and height of the whole."""
        return self.bars + BAR_WIDTH + MARGIN, self.block(len(self.masks.layers)) - GAP + MARGIN

    def block(self, number: int) -> int:
        """Where a layer's block begins, below the heading."""
        lower = max(self.height, len(PARTS) * LINE)
        return MARGIN + 5 * LINE + GAP + number * (3 * TITLE + self.height + lower + GAP)

    def panel(self, number: int, place: int) -> int:
        """Where the rows of a layer's first or second panel begin; a title is above them."""
        return self.block(number) + 2 * TITLE + place * (self.height + TITLE)


class Page:
    """A picture under way."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.image = Image.new("RGB", layout.size, "white")
        self.pen = ImageDraw.Draw(self.image)

    def text(self, where: tuple[float, float], text: str, font: Font = FONT, anchor: str = "la") -> None:
        self.pen.text(where, text, fill="black", font=font, anchor=anchor)

    def heading(self) -> None:
        """What this is, and which colour stands for which share."""
        masks, left = self.layout.masks, self.layout.left
        about = f"{masks.method}, ratio {masks.ratio:g}, round {masks.round}, {counted(len(masks.clients), 'client')}"
        self.text((MARGIN, MARGIN), f"{cut(Path(masks.run).name, 40)}: {about}", LARGE)
        top = MARGIN + LINE + GAP // 2
        key = "share of a neuron's incoming weights in the subnetwork; rows are clients, columns neurons"
        self.text((MARGIN, top), key)
        for number, (title, ramp) in enumerate(RAMPS.items()):
            at, y = left + number * PANEL_WIDTH // 2, top + TITLE + 4
            self.picture((at, y), coloured(np.linspace(0, 1, RAMP_WIDTH)[None], ramp), (RAMP_WIDTH, SWATCH))
            self.text((at + RAMP_WIDTH + 8, y - 2), title.partition(" ")[0])
            for share in (0, 0.5, 1):
                self.text((at + share * RAMP_WIDTH, y + SWATCH + 3), f"{share:g}", anchor="ma")

    def picture(self, where: tuple[int, int], pixels: Pixels, size: tuple[int, int]) -> None:
        """Pixels (rows, columns, 3) enlarged to a size, in a frame."""
        (left, top), (width, height) = where, size
        self.pen.rectangle((left - 1, top - 1, left + width, top + height), outline="silver")
        self.image.paste(fitted(pixels, size), where)

    def panel(self, where: tuple[int, int], title: str, pixels: Pixels, width: int) -> None:
        """A titled picture with a row for each client."""
        left, top = where
        self.text((left, top - LINE - 1), title)
        self.picture(where, pixels, (width, self.layout.height))
        if self.layout.row >= LINED_ROW:
            for y in range(top + self.layout.row - 1, top + self.layout.height - 1, self.layout.row):
                self.pen.line((left, y, left + width - 1, y), fill="white")

    def heat_map(self, top: int, title: str, shares: Real) -> None:
        """A subnetwork's shares (clients, neurons), names at the left; every n-th where they are dense."""
        columns = merged(shares)
        width = int(np.clip(PANEL_WIDTH // columns.shape[1], *CELL_WIDTHS)) * columns.shape[1]
        self.panel((self.layout.left, top), title, coloured(columns, RAMPS[title]), width)
        clients, row = self.layout.masks.clients, self.layout.row
        for number in range(0, len(clients), -(-LINE // row)):
            middle = top + number * row + row / 2
            self.text((self.layout.left - 6, middle), shown(clients[number]), anchor="rm")

    def bars(self, top: int, parts: Real) -> None:
        """For each client a bar of its parts (clients, 4)."""
        ends = parts.cumsum(axis=1)[:, :-1, None] * BAR_WIDTH
        which = (np.arange(BAR_WIDTH) + 0.5 > ends).sum(axis=1)
        self.panel((self.layout.bars, top), "parts of the layer", PART_COLOURS[which], BAR_WIDTH)

    def means(self, top: int, parts: Real) -> None:
        """The key to the bars, with the clients' mean (4,)."""
        left = self.layout.bars
        self.text((left, top - LINE - 1), "mean of the clients")
        for number, (part, share, colour) in enumerate(zip(PARTS, parts, PART_COLOURS, strict=True)):
            y = top + number * LINE
            self.picture((left, y + 3), colour[None, None], (SWATCH, SWATCH))
            self.text((left + 70, y + 1), f"{100 * share:.1f} %", anchor="ra")
            self.text((left + 80, y + 1), part)


def shown(client: str) -> str:
    """A client's name as it is written beside its row."""
    return cut(client, 22)


def layer_title(layer: MaskedLayer) -> str:
    """A layer's name, its size, and how many neurons make a column."""
    step = column_step(layer.neurons)
    grouped = f", {step} to a column" if step > 1 else ""
    return f"{cut(layer.name, 60)}: {counted(layer.neurons, 'neuron')}{grouped}"


def column_step(neurons: int) -> int:
    """How many neighbouring neurons make a column."""
    return -(-neurons // MAX_COLUMNS)


def merged(shares: Real) -> Real:
    """Means of neighbouring neurons (clients, at most MAX_COLUMNS) of shares (clients, neurons)."""
    neurons = shares.shape[1]
    starts = np.arange(0, neurons, column_step(neurons))
    means: Real = np.add.reduceat(shares, starts, axis=1) / np.diff([*starts, neurons])
    return means


def coloured(shares: Real, ramp: Pixels) -> Pixels:
    """Shares (rows, columns) as colours of a ramp (3, 3): (rows, columns, 3)."""
    channels = [np.interp(shares, (0, 0.5, 1), channel) for channel in ramp.T]
    return np.stack(channels, axis=-1).round().astype(np.uint8)
