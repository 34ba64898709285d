"""Personal heads: never averaged, sent as a snapshot, and used to find boundary samples."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedwild.data import Dataset
from fedwild.methods.fedoss.heads import Bank, LightBranch
from tests.methods.fedoss.federation import BRIEF, final, pretrained, split_by_class, uneven
from tests.tiny import even_shares, run_tiny, split_by


def test_personal_heads_do_not_change_the_pretrained_model(data: Dataset, tmp_path: Path) -> None:
    models = []
    for branch in ("light", "full"):
        settings = {"method": {"rounds": 3, "finetune_rounds": 0, "branch": branch}}
        run_tiny(tmp_path / branch, "fedoss", data, uneven(data), settings)
        models.append(final(tmp_path / branch).group("model"))
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


def test_every_client_keeps_its_own_head(data: Dataset, tmp_path: Path) -> None:
    federation = pretrained(data, uneven(data), tmp_path, boundary="informed", branch="light")
    bank = federation.server.state.subgroups("bank")
    assert list(bank) == federation.names
    for name in federation.names:
        assert torch.equal(bank[name]["head.weight"], federation.states[name].group("head")["head.weight"])
    assert not torch.equal(bank["client-00"]["head.weight"], bank["client-01"]["head.weight"])
    before = {name: state.group("head")["head.weight"].clone() for name, state in federation.states.items()}
    first = federation.replies()["client-00"].group("head")["head.weight"]
    # It continues from its last weights: a new light head would be a random one.
    assert 0 < (first - before["client-00"]).abs().max() < 0.01


def test_the_order_of_clients_does_not_matter(data: Dataset, tmp_path: Path) -> None:
    ends = []
    for turn in (1, -1):
        federation = pretrained(data, uneven(data), tmp_path, boundary="agreement")
        for round_ in range(2):
            federation.go_to("finetune", round_)
            federation.merge(federation.replies(federation.names[::turn]))
        ends.append(federation.server.state.encode())
    assert ends[0] == ends[1]


def test_boundary_samples_depend_on_the_heads_of_other_clients(data: Dataset, tmp_path: Path) -> None:
    federation = pretrained(data, uneven(data), tmp_path, boundary="agreement", branch="light")
    for name, says in zip(federation.names, (0, 1, 2), strict=True):
        head = {key: torch.zeros_like(tensor) for key, tensor in federation.server.state.group(f"bank/{name}").items()}
        head["head.bias"][says] = 9.0
        federation.server.state.put(f"bank/{name}", head)
    # Each head always answers with its own class, so one of three is correct for every sample.
    assert federation.replies()["client-00"].info["boundary"] == 1.0
    for name in federation.names[1:]:
        federation.server.state.put(f"bank/{name}", federation.server.state.group("bank/client-00"))
    assert federation.replies()["client-00"].info["boundary"] == 0.0


def test_a_bank_has_a_limit_and_is_the_same_for_all_clients(data: Dataset, tmp_path: Path) -> None:
    rows = even_shares(data, 3, 1)[0]
    split = split_by(data, 3, [rows[i::6] for i in range(6)])
    federation = pretrained(data, split, tmp_path, bank=2, boundary="informed")
    sent = [federation.phase.send(federation.server, name) for name in federation.names]
    assert len(sent[0].subgroups("bank")) == 2
    assert len({payload.encode() for payload in sent}) == 1
    assert (
        list(sent[0].info["held"]) == list(sent[0].subgroups("bank")) == list(federation.server.state.subgroups("bank"))
    )


def test_heads_of_clients_without_samples_are_not_used(data: Dataset, tmp_path: Path) -> None:
    split = split_by_class(data, [{0: 8, 1: 8, 2: 8}, {}, {0: 8, 2: 8}])
    federation = pretrained(data, split, tmp_path, boundary="informed")
    assert list(federation.server.state.subgroups("bank")) == ["client-00", "client-02"]
    assert federation.server.state.info["held"] == {"client-00": [0, 1, 2], "client-02": [0, 2]}


@pytest.mark.parametrize("boundary", ["all", "margin", "perturbation"])
def test_rules_without_heads_send_none(boundary: str, data: Dataset, tmp_path: Path) -> None:
    federation = pretrained(data, uneven(data), tmp_path, boundary=boundary)
    assert "bank" not in federation.phase.send(federation.server, "client-00")


def test_heads_are_deleted_after_the_last_round(data: Dataset, tmp_path: Path) -> None:
    run_tiny(tmp_path / "run", "fedoss", data, uneven(data), {"method": BRIEF})
    assert "bank" not in final(tmp_path / "run")


def test_a_head_chooses_among_the_classes_of_its_client(data: Dataset, tmp_path: Path) -> None:
    """Client 0 has no class 2: its head, whose largest output is always 2, chooses between 0 and 1."""
    split = split_by_class(data, [{0: 12, 1: 12}, {0: 8, 1: 4, 2: 12}])
    federation = pretrained(data, split, tmp_path, boundary="informed", branch="light")
    for name, biases in (("client-00", [1.0, 0.0, 9.0]), ("client-01", [9.0, 0.0, 0.0])):
        head = {key: torch.zeros_like(tensor) for key, tensor in federation.server.state.group(f"bank/{name}").items()}
        head["head.bias"] = torch.tensor(biases)
        federation.server.state.put(f"bank/{name}", head)
    # Both heads are correct for 0 and wrong for 1; only one head knows class 2.
    assert federation.replies()["client-01"].info["boundary"] == 0.0
    federation.server.state.info["held"] = {"client-00": [0, 1, 2], "client-01": [0, 1, 2]}
    # If client 0 held class 2, the heads would disagree about 0 and 2.
    assert federation.replies()["client-01"].info["boundary"] > 0.5


def test_a_bank_answers_with_each_head_and_keeps_its_snapshot() -> None:
    own = LightBranch(4, 3)
    heads = [{name: torch.randn_like(t) for name, t in own.state_dict().items()} for _ in range(2)]
    bank = Bank(own, heads, [[0, 2], [1]], 3)
    assert bank.held.tolist() == [[True, False, True], [False, True, False]]
    h = torch.rand(5, 4)
    before = bank.logits(h)
    assert before.shape == (2, 5, 3)
    for answers, weights in zip(before, heads, strict=True):
        assert torch.allclose(answers, h @ weights["head.weight"].T + weights["head.bias"])
    with torch.no_grad():
        own.head.weight += 1
        heads[0]["head.weight"] += 1
    assert torch.equal(bank.logits(h), before)
