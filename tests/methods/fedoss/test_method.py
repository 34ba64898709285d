"""FedOSS: settings, phases, start and decisions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedwild.cli import main
from fedwild.contract import Initial
from fedwild.core.errors import UserError
from fedwild.data import Dataset
from fedwild.methods.fedoss.finetune import Finetune
from fedwild.methods.fedoss.pretrain import Pretrain
from fedwild.models import build
from tests.methods.fedoss.federation import BRIEF, EVERYTHING, Federation, final, pretrained, uneven
from tests.tiny import model_bytes, run_tiny, tiny_experiment


def test_the_unknown_output_starts_as_the_mean_of_the_classes(data: Dataset, tmp_path: Path) -> None:
    federation = pretrained(data, uneven(data), tmp_path)
    for tensor in (federation.server.state.group("model")[name] for name in ("head.weight", "head.bias")):
        assert torch.allclose(tensor[3], tensor[:3].mean(0), atol=1e-7)


def test_pretraining_over_all_outputs_trains_the_unknown_output(data: Dataset, tmp_path: Path) -> None:
    settings = {"method": {**EVERYTHING, "pretrain_outputs": "all"}}
    federation = Federation(data, uneven(data), tmp_path, settings)
    before = federation.server.state.group("model")["head.bias"]
    assert not torch.allclose(before[3], before[:3].mean(), atol=1e-3)
    replies = federation.replies()
    federation.merge(replies)
    after = federation.server.state.group("model")["head.bias"]
    samples = {name: reply.info["samples"] for name, reply in replies.items()}
    mean = sum(n * replies[name].group("model")["head.bias"] for name, n in samples.items()) / sum(samples.values())
    assert torch.allclose(after, torch.as_tensor(mean), atol=1e-6)
    assert after[3] < before[3]


def test_a_new_unknown_output_beside_an_earlier_model_starts_neutral(data: Dataset, tmp_path: Path) -> None:
    settings = {"method": {**EVERYTHING, "pretrain_outputs": "all"}}
    federation = Federation(data, uneven(data), tmp_path, settings)
    weights = dict(federation.server.state.group("model"))
    weights |= {name: weights[name][:3] for name in ("head.weight", "head.bias")}
    federation.server.initial = Initial(weights, federation.server.classes, "an earlier run")
    federation.method.start(federation.server)
    head = federation.server.state.group("model")["head.weight"]
    assert torch.allclose(head[3], head[:3].mean(0), atol=1e-7)


@pytest.mark.parametrize("rounds", [0, 1])
def test_an_unknown_output_that_was_trained_before_is_kept(rounds: int, data: Dataset, tmp_path: Path) -> None:
    settings = {"method": {**EVERYTHING, "rounds": rounds}}
    federation = Federation(data, uneven(data), tmp_path, settings)
    weights = {name: torch.randn_like(t) for name, t in federation.server.state.group("model").items()}
    federation.server.initial = Initial(weights, federation.server.classes, "an earlier run")
    federation.method.start(federation.server)
    if rounds:
        federation.merge(federation.replies())
    assert torch.equal(federation.server.state.group("model")["head.weight"][3], weights["head.weight"][3])


def test_argmax_answers_unknown_where_its_output_is_the_largest(data: Dataset, tmp_path: Path) -> None:
    settings = {"method": {**EVERYTHING, "decision": "argmax"}}
    federation = Federation(data, uneven(data), tmp_path, settings)
    x = torch.rand(200, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    weights = federation.server.state.group("model")
    outputs = federation.server.task.network(weights, 4).eval()(x).detach()
    weights["head.bias"][3] -= (outputs[:, 3] - outputs[:, :3].amax(1)).median()
    answering = federation.method.answers(federation.server)
    answers = answering.predictor(None).predict(x)
    largest = federation.server.task.network(weights, 4).eval()(x).argmax(1) == 3
    assert answering.threshold == 0.0
    assert 0 < int(largest.sum()) < 200
    assert torch.equal(answers.unknown > 0, largest)


def test_a_calibrated_decision_has_no_fixed_threshold(data: Dataset, tmp_path: Path) -> None:
    federation = Federation(data, uneven(data), tmp_path, {"method": {"decision": "calibrated"}})
    answering = federation.method.answers(federation.server)
    assert answering.threshold is None
    assert not answering.personal
    assert list(answering.clients) == federation.names


def test_a_cut_that_the_network_does_not_have_is_rejected(data: Dataset) -> None:
    method = tiny_experiment("fedoss", data, uneven(data), {"method": {"cut": "layer9"}}).method
    method.check(None, None)
    with pytest.raises(UserError, match=r"method.cut 'layer9' is not known"):
        method.check(build("mlp", (1, 8, 8), 3), None)


def test_argmax_needs_the_proser_score(data: Dataset) -> None:
    settings = {"method": {"decision": "argmax"}, "score": {"name": "msp"}}
    with pytest.raises(UserError, match=r"score.name = 'msp' is not allowed with method.decision = 'argmax'"):
        tiny_experiment("fedoss", data, uneven(data), settings)


def test_phases_follow_the_settings(data: Dataset) -> None:
    method = tiny_experiment("fedoss", data, uneven(data), {"method": {"rounds": 4, "finetune_rounds": 3}}).method
    assert [(phase.name, phase.rounds) for phase in method.phases()] == [("pretrain", 4), ("finetune", 3)]


def test_the_learning_rate_is_halved_in_pretraining_and_fixed_afterwards(data: Dataset) -> None:
    settings = {"method": {"lr": 0.4, "halve_after": 2, "finetune_lr": 0.03}}
    pretrain, finetune = tiny_experiment("fedoss", data, uneven(data), settings).method.phases()
    assert isinstance(pretrain, Pretrain) and isinstance(finetune, Finetune)
    assert [pretrain.settings(n).lr for n in range(5)] == [0.4, 0.4, 0.2, 0.2, 0.1]
    assert [finetune.settings(n).lr for n in range(2)] == [0.03, 0.03]
    assert [phase.settings(0).optimizer for phase in (pretrain, finetune)] == ["sgd", "adam"]


def test_the_preset_of_the_paper_differs_in_its_defaults_only(data: Dataset, tmp_path: Path) -> None:
    ours = tiny_experiment("fedoss", data, uneven(data)).method.params.model_dump()
    paper = tiny_experiment("fedoss-paper", data, uneven(data)).method.params.model_dump()
    changed = {key: value for key, value in paper.items() if ours[key] != value}
    run_tiny(tmp_path / "paper", "fedoss-paper", data, uneven(data), {"method": BRIEF})
    run_tiny(tmp_path / "ours", "fedoss", data, uneven(data), {"method": {**BRIEF, **changed}})
    assert model_bytes(tmp_path / "paper") == model_bytes(tmp_path / "ours")


def test_fine_tuning_can_start_from_another_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick = ["--quiet", "--workers", "0", "--set", "method.epochs=1"]
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    finetuning = ["--method", "fedoss", "--start-from", first, "--rounds", "0", "--set", "method.finetune_rounds=1"]
    for arguments in (["run", "--rounds", "1", "--out", first, *quick], ["run", *finetuning, "--out", second, *quick]):
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
        assert exit_.value.code == 0, capsys.readouterr()
    begun, finished = (final(Path(folder)).group("model")["head.weight"] for folder in (first, second))
    assert len(begun) + 1 == len(finished)
