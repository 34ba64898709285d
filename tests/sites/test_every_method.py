"""Every method gives the same bits over sites as in one process: no method knows where its clients are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedwild import api
from fedwild.methods import METHODS
from fedwild.training.corrections import CORRECTIONS
from tests.sites.inprocess import connected_sites, coordinated, tables
from tests.tiny import model_bytes, own


def both_ways(tmp_path: Path, method: str, **sections: Any) -> tuple[api.Run, api.Run]:
    """Return a run over two sites and one in this process, with the same settings."""
    settings = tables(method, **sections)
    if METHODS.get(method).traits.public_data:
        pytest.skip("public data belongs to the coordinator, which a local run does not have")
    over_sites = coordinated(connected_sites(tmp_path), settings, tmp_path / "sites")
    local = {**settings, "data": {**settings["data"], "name": str(tmp_path / "all.npz")}}
    local["engine"] = {"workers": 0}
    del local["federation"]
    return over_sites, api.run(local, out=tmp_path / "local")


@pytest.mark.parametrize("method", own(METHODS))
def test_final_model_is_bit_equal_to_a_local_run(method: str, tmp_path: Path) -> None:
    over_sites, local = both_ways(tmp_path, method)
    assert model_bytes(over_sites.path) == model_bytes(local.path)
    events = [event for event in over_sites.events() if event["event"] == "client-failed"]
    assert not events


@pytest.mark.parametrize("correction", [name for name in own(CORRECTIONS) if name != "none"])
def test_corrections_with_state_at_sites_are_bit_equal(correction: str, tmp_path: Path) -> None:
    over_sites, local = both_ways(tmp_path, "fedavg", correction={"name": correction})
    assert model_bytes(over_sites.path) == model_bytes(local.path)


def test_figures_by_site_equal_those_of_a_local_run(tmp_path: Path) -> None:
    over_sites, local = both_ways(tmp_path, "fedavg")
    assert over_sites.result["by"].keys() == {"a", "b"}
    assert over_sites.result["by"] == local.result["by"]
    assert over_sites.metrics["closed_accuracy"] == pytest.approx(local.metrics["closed_accuracy"])


def test_figures_of_personal_models_equal_those_of_a_local_run(tmp_path: Path) -> None:
    over_sites, local = both_ways(tmp_path, "local-only")
    assert over_sites.result["by"] == local.result["by"]
    assert over_sites.metrics == local.metrics
