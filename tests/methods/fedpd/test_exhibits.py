"""What FedPD shows of its subnetworks, from masks counted by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedwild.contract import MapExhibit, Record, Server, Step
from fedwild.core.classes import ClassRegistry
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.methods.fedpd.exhibits import PARTS, SECTION, mask_exhibits, part_shares
from fedwild.methods.fedpd.subnetworks import neuron_shares, subnetwork_size
from tests.methods.by_hand import PLAIN, method_of
from tests.tiny import even_shares, run_tiny, split_by, tiny_dataset, tiny_experiment

LAYERS = {"fc1.fc": (8, 64), "fc2.fc": (6, 8), "head": (3, 6)}
CLIENTS = ("a", "b")


def random_shares(shape: tuple[int, int], seed: int) -> Tensor:
    draws = torch.Generator().manual_seed(seed)
    close, open_ = (torch.rand(shape, generator=draws) < 0.5 for _ in range(2))
    return neuron_shares(close, open_)


def server_with(shares: dict[str, dict[str, Tensor]], step: Step = Step("train", 4, 4)) -> Server:
    server = Server(PLAIN, ClassRegistry.of(("x", "y")), step, Rng(0), CLIENTS)
    for client, by_weight in shares.items():
        server.state.put(f"shares/{client}", by_weight)
    return server


def maps_of(server: Server, **settings: Any) -> dict[str, MapExhibit]:
    found = method_of("fedpd", settings).exhibits(Record(server, ()))
    assert all(isinstance(exhibit, MapExhibit) and exhibit.section == SECTION for exhibit in found)
    return {exhibit.title: exhibit for exhibit in found}


def shares_of_all() -> dict[str, dict[str, Tensor]]:
    return {
        client: {f"{layer}.weight": random_shares(shape, seed) for layer, shape in LAYERS.items()}
        for seed, client in enumerate(CLIENTS)
    }


def test_known_masks_give_the_shares_counted_by_hand() -> None:
    # Four neurons with six incoming weights each.
    close = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]]).bool()
    open_ = torch.tensor([[1, 1, 0, 0, 0, 0], [1, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0], [0, 1, 1, 1, 1, 1]]).bool()
    shares = {
        "a": {"fc.weight": neuron_shares(open_, close)},
        "b": {"fc.weight": neuron_shares(close, open_)},
    }
    found = {e.title: e for e in mask_exhibits(server_with(shares), ["fc.weight"], 0.5, 1) if isinstance(e, MapExhibit)}
    assert list(found) == ["Parts of each layer", "fc: closed-set subnetwork", "fc: open-set subnetwork", "fc: parts"]

    def values(title: str) -> list[list[float]]:
        exhibit = found[title]
        assert exhibit.values is not None
        return exhibit.values.tolist()

    assert values("fc: closed-set subnetwork")[1] == pytest.approx([1, 1 / 2, 0, 1 / 6])
    assert values("fc: open-set subnetwork")[1] == pytest.approx([1 / 3, 2 / 3, 0, 5 / 6])
    # Of 24 weights: 4 + 2 + 1 closed only, 3 + 5 open only, 2 + 1 both, and the other 6.
    assert values("fc: parts")[1] == pytest.approx([7 / 24, 8 / 24, 3 / 24, 6 / 24])
    assert values("fc: parts")[0] == pytest.approx([8 / 24, 7 / 24, 3 / 24, 6 / 24])
    assert values("Parts of each layer") == [pytest.approx([7.5 / 24, 7.5 / 24, 3 / 24, 6 / 24])]


def test_every_layer_has_three_maps_in_the_networks_order_with_a_row_per_client() -> None:
    found = maps_of(server_with(shares_of_all()))
    overview = found.pop("Parts of each layer")
    assert overview.values is not None
    assert (overview.values.shape, overview.rows, overview.columns) == ((3, 4), tuple(LAYERS), PARTS)
    assert torch.allclose(overview.values.sum(dim=1), torch.ones(3).double())
    kinds = ("closed-set subnetwork", "open-set subnetwork", "parts")
    assert list(found) == [f"{layer}: {kind}" for layer in LAYERS for kind in kinds]
    for title, exhibit in found.items():
        layer, _, kind = title.partition(": ")
        neurons = LAYERS[layer][0]
        assert exhibit.values is not None
        assert exhibit.rows == CLIENTS
        assert exhibit.values.shape == (2, len(PARTS) if kind == "parts" else neurons)
        assert exhibit.columns == (PARTS if kind == "parts" else ())


def test_the_maps_of_a_run_show_subnetworks_of_the_ratio_in_the_order_of_layers(tmp_path: Path) -> None:
    # Ten hidden layers: by name, fc10 would come before fc2.
    widths = [6, *[4] * 9]
    settings = {"model": {"name": "mlp", "hidden": widths}, "method": {"ratio": 0.3}}
    data = tiny_dataset(classes=2)
    split = split_by(data, 2, even_shares(data, 2, 2))
    run_tiny(tmp_path / "run", "fedpd", data, split, settings)
    experiment = tiny_experiment("fedpd", data, split, settings)
    server = Server.from_payload(Payload.read(tmp_path / "run" / "model.safetensors"), experiment.task, Rng(0))
    found = {exhibit.title: exhibit for exhibit in experiment.method.exhibits(Record(server, ()))}
    names = [*(f"fc{i}.fc" for i in range(1, 11)), "head"]
    assert vars(found["Parts of each layer"])["rows"] == tuple(names)
    for name, neurons, inputs in zip(names, [*widths, 3], [64, *widths], strict=True):
        closed, open_, parts = (
            vars(found[f"{name}: {kind}"])["values"]
            for kind in ("closed-set subnetwork", "open-set subnetwork", "parts")
        )
        kept = subnetwork_size(0.3, neurons * inputs) / (neurons * inputs)
        for client in range(2):
            # Every neuron of a layer has the same number of incoming weights.
            assert float(closed[client].mean()) == pytest.approx(kept)
            assert float(open_[client].mean()) == pytest.approx(kept)
            only_closed, only_open, both, neither = parts[client].tolist()
            assert (only_closed + both, only_open + both) == pytest.approx((kept, kept))
            assert only_closed + only_open + both + neither == pytest.approx(1)


@pytest.mark.parametrize(("step", "rounds"), [(Step("train", 4, 4), 5), (Step("calibrate", 0, 7), 7)])
def test_the_overview_states_the_ratio_and_the_training_rounds(step: Step, rounds: int) -> None:
    found = maps_of(server_with(shares_of_all(), step), ratio=0.3, rounds=7)
    text = found["Parts of each layer"].text
    assert "keep 0.3 of" in text
    assert text.endswith(f"training rounds so far: {rounds}.")


def test_without_masks_there_is_nothing_to_show() -> None:
    assert not maps_of(server_with({}))
    assert not maps_of(server_with({}), importance="none", mean="all")


def test_the_share_in_neither_is_never_negative() -> None:
    parts = part_shares(torch.full((1, 3, 1), 1 / 3, dtype=torch.float64) + 1e-9)
    assert parts[0, 3] == 0
    assert "-0.0" not in str(parts[0, 3].item())
