"""FedOSS's boundary samples in a report: the heads' votes, sample by sample and by hand."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from fedwild import api
from fedwild.api import Run
from fedwild.data import samples_of
from fedwild.core.errors import UserError
from fedwild.methods.fedoss.method import FedOSS
from fedwild.methods.fedoss.branches import make_branch
from fedwild.results.report import write_report
from fedwild.results.report.disputed import disputed


def trained(folder: Path, **method: object) -> Run:
    table = {"name": "fedoss", "rounds": 2, "epochs": 1, "finetune_rounds": 2, "branch": "light", **method}
    settings = {
        "method": table,
        "model": {"name": "mlp", "hidden": [16, 8]},
        "data": {"known": 4},
        "engine": {"workers": 0},
    }
    return api.run(clients=4, partition="dirichlet:5", settings=settings, out=folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("fedoss") / "run")


def method_of(run: Run) -> FedOSS:
    method = run.experiment.method
    assert isinstance(method, FedOSS)
    return method


def votes(run: Run, row: int) -> list[bool]:
    """For one sample, whether each head that can know its class calls it by it."""
    dataset, split, server = run.experiment.dataset, run.experiment.split, run.server()
    model = run.task.network(server.state.group("model"), len(server.classes) + 1).eval()
    cut = method_of(run).layout(run.task, len(server.classes)).cut
    x = samples_of(dataset, np.array([row]), data=run.config.data).all()[0]
    true, found = int(dataset.y_train[row]), []
    for client in split.clients:
        held = sorted({int(dataset.y_train[i]) for i in client.train})
        if true not in held or len(held) < 2:
            continue
        head = make_branch("light", model, cut, len(server.classes))
        head.load_state_dict(run.state_of(client.name).group("head"))
        with torch.no_grad():
            logits = head.eval()(model.upto(x, cut))[0]
        found.append(max(held, key=lambda k: float(logits[k])) == true)
    return found


def test_boundary_samples_are_those_that_some_heads_get_wrong_and_some_right(run: Run) -> None:
    found = disputed(run, method_of(run))
    everybody = np.unique(np.concatenate([client.train for client in run.experiment.split.clients]))
    assert found.looked_at == min(1000, len(everybody))
    assert len(found.rows) > 0
    shares = dict(zip(found.rows.tolist(), found.shares.tolist(), strict=True))
    for row in everybody[:150].tolist():
        right = votes(run, row)
        share = sum(right) / len(right) if len(right) > 1 else 1.0
        low, high = method_of(run).params.low, method_of(run).params.high
        assert shares.get(row) == (pytest.approx(share) if low < share < high else None)


def test_the_most_divided_come_first(run: Run) -> None:
    distance = np.abs(disputed(run, method_of(run)).shares - 0.5)
    assert (np.diff(distance) >= 0).all()


def test_the_page_shows_them(run: Run) -> None:
    section = re.search(r'<section id="boundary">.*?</section>', write_report(run).read_text(), re.S)
    assert section is not None
    shown = min(24, len(disputed(run, method_of(run)).rows))
    assert section[0].count('class="thumb"') == shown
    assert section[0].count("% right") == shown


def test_a_rule_that_asks_no_heads_has_none_to_show(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", boundary="margin")
    text = write_report(run).read_text()
    assert "Boundary samples are found without asking heads here" in text


def test_one_head_alone_does_not_disagree(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedwild.core.payload import Payload

    first, read = run.experiment.split.clients[0].name, run.state_of
    monkeypatch.setattr(Run, "state_of", lambda self, name: read(name) if name == first else Payload())
    with pytest.raises(UserError, match="nobody to disagree"):
        disputed(run, method_of(run))
