"""What a report shows about FedOSS: figures by round, sizes of replies, and the heads' answers sample by sample."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedwild import api
from fedwild.contract import BarExhibit, Client, CurveExhibit, Exhibit, ImageExhibit, Record
from fedwild.core.errors import UserError
from fedwild.core.payload import Payload
from fedwild.data import Samples, samples_of
from fedwild.lifecycle.run import Run
from fedwild.methods.fedoss import FedOSS
from fedwild.methods.fedoss.exhibits import (
    MAX_IMAGES,
    MAX_SAMPLES,
    SECTION,
    Disputed,
    find_disputed,
    reported,
    show_disputed,
    to_images,
)
from fedwild.methods.fedoss.heads import make_branch


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


def disputed_of(run: Run, record: Record | None = None) -> Disputed:
    method = method_of(run)
    return find_disputed(record or run.record(), method.params, method.layouts)


def last_exhibit(run: Run, record: Record | None = None) -> Exhibit:
    return method_of(run).exhibits(record or run.record())[-1]


def answers(run: Run, row: int) -> list[bool]:
    """For one sample, whether each head that can know its class classifies it correctly."""
    dataset, split, server = run.experiment.dataset, run.experiment.split, run.server()
    model = run.task.network(server.state.group("model"), len(server.classes) + 1).eval()
    cut = method_of(run).layouts.of(run.task, len(server.classes)).cut
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
    disputed = disputed_of(run)
    everybody = np.unique(np.concatenate([client.train for client in run.experiment.split.clients]))
    assert disputed.examined == min(MAX_SAMPLES, len(everybody))
    assert len(disputed.samples) > 0
    found = dict(zip(disputed.samples.index.tolist(), disputed.agreement.tolist(), strict=True))
    for row in everybody[:150].tolist():
        correct = answers(run, row)
        s = sum(correct) / len(correct) if len(correct) > 1 else 1.0
        assert found.get(row) == (pytest.approx(s) if 0.0 < s < 1.0 else None)


def test_the_most_divided_samples_come_first(run: Run) -> None:
    assert bool(((disputed_of(run).agreement - 0.5).abs().diff() >= 0).all())


def test_images_of_disputed_samples_are_shown_by_class(run: Run) -> None:
    disputed, shown, dataset = disputed_of(run), last_exhibit(run), run.experiment.dataset
    assert isinstance(shown, ImageExhibit)
    assert sum(map(len, shown.rows.values())) == min(MAX_IMAGES, len(disputed.samples))
    first = int(disputed.samples.index[0])
    name = dataset.classes[int(dataset.y_train[first])]
    assert torch.equal(shown.rows[name][0], dataset.x_train[first])
    assert shown.captions[name][0] == f"{100 * float(disputed.agreement[0]):.0f} % correct, row {first}"
    assert {name: len(captions) for name, captions in shown.captions.items()} == {
        name: len(images) for name, images in shown.rows.items()
    }


def test_figures_of_every_client_and_round_are_shown(run: Run) -> None:
    boundary, displacement, sizes, _ = method_of(run).exhibits(run.record())
    assert isinstance(boundary, CurveExhibit) and isinstance(displacement, CurveExhibit)
    assert isinstance(sizes, BarExhibit)
    assert {exhibit.section for exhibit in (boundary, displacement, sizes)} == {SECTION}
    infos = [event for event in run.events() if event["event"] == "client"]
    # Rounds 3 and 4 are those of fine-tuning.
    for number in (3, 4):
        values = [event["info"]["boundary"] for event in infos if event["index"] == number - 1]
        expected = {"mean over clients": np.mean(values), "minimum": min(values), "maximum": max(values)}
        assert {name: dict(points)[number] for name, points in boundary.lines.items()} == pytest.approx(expected)
    assert [x for x, _ in displacement.lines["minimum"]] == [3.0, 4.0]
    assert boundary.percent and not displacement.percent
    expected = {
        name: sum(event["info"][f"{key}_bytes"] for event in infos) / 1e6
        for key, name in (("model", "model"), ("head", "personal head"), ("statistics", "statistics"))
    }
    assert dict(sizes.bars) == pytest.approx(expected)


def test_a_repeated_round_counts_once_and_values_that_are_not_numbers_are_ignored() -> None:
    sent = [("a", 0, 0.1), ("b", 0, "many"), ("c", 0, True), ("a", 0, 0.3), ("a", 1, 1)]
    events = [{"event": "client", "client": name, "index": i, "info": {"boundary": value}} for name, i, value in sent]
    events += [{"event": "client-failed", "client": "d", "index": 0}, {"event": "round", "index": 0}]
    assert reported(events, "boundary") == {1: [0.3], 2: [1.0]}


def test_a_run_without_fine_tuning_has_nothing_to_show(run: Run) -> None:
    events = [event for event in run.events() if event.get("phase") != "finetune"]
    assert method_of(run).exhibits(Record(run.server(), events, run.client)) == []


def test_a_rule_without_heads_says_so(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", boundary="margin")
    shown = last_exhibit(run)
    assert type(shown) is Exhibit
    assert "'margin' uses no heads" in shown.text


def test_data_at_sites_is_not_shown(run: Run) -> None:
    shown = last_exhibit(run, Record(run.server(), run.events()))
    assert type(shown) is Exhibit
    assert "not on this machine" in shown.text


def test_one_head_alone_does_not_disagree(run: Run) -> None:
    first = run.experiment.split.clients[0].name

    def client(name: str) -> Client:
        opened = run.client(name)
        return opened if name == first else replace(opened, state=Payload())

    with pytest.raises(UserError, match="Fewer than two clients"):
        disputed_of(run, Record(run.server(), run.events(), client))


def test_agreement_on_all_samples_is_said() -> None:
    nothing = Samples(torch.rand(3, 1, 4, 4), torch.zeros(0).long(), torch.zeros(0).long())
    with pytest.raises(UserError, match="do not disagree about any of 3 samples"):
        show_disputed(Disputed(nothing, torch.zeros(0), 3), ["a"])


def samples(x: torch.Tensor) -> Samples:
    rows = torch.arange(len(x))
    return Samples(x, torch.zeros_like(rows), rows)


def test_volumes_are_shown_by_their_middle_slice_and_numbers_between_0_and_1() -> None:
    volumes = torch.randint(0, 255, (2, 1, 5, 4, 4), dtype=torch.uint8)
    assert torch.equal(to_images(samples(volumes)), volumes[:, :, 2])
    assert to_images(samples(torch.tensor([-1.0, 0.5, 3.0]).view(3, 1, 1, 1))).flatten().tolist() == [0.0, 0.5, 1.0]


@pytest.mark.parametrize("shape", [(9,), (2, 4, 4)])
def test_samples_that_are_not_images_are_not_shown(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="are not images"):
        to_images(samples(torch.rand(2, *shape)))
