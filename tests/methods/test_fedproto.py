"""FedProto: the loss, prototypes and answers by hand, and what clients send."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedwild.contract import Replies, Server
from fedwild.contract.task import weights_of
from fedwild.core.errors import BadReply, UserError
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.data import Samples
from fedwild.methods.fedproto import (
    NETWORK,
    NO_PROTOTYPE,
    PROTOTYPES,
    FedProto,
    NearestPrototype,
    PrototypeRounds,
    PullToPrototypes,
    class_means,
    grow_head,
    owners,
)
from fedwild.openset import SCORES
from fedwild.openset.predictors import ScoredModel
from fedwild.openset.scores import Signals
from fedwild.runs.events import read_events
from fedwild.training.corrections import ClientCorrection
from tests.methods.by_hand import (
    NORMED,
    PLAIN,
    WITH_NORMS,
    client_of,
    final,
    phase_of,
    replies_of,
    server_of,
    states,
)
from tests.tiny import even_shares, run_tiny, split_by, tiny_dataset, tiny_experiment


@pytest.fixture
def data() -> Any:
    return tiny_dataset(classes=2)


def halves(data: Any) -> list[list[int]]:
    """Return two shares that both have both classes."""
    rows = even_shares(data, 2, 1)[0]
    return [rows[: len(rows) // 2], rows[len(rows) // 2 :]]


def shared(means: list[list[float]], clients: list[int]) -> dict[str, Tensor]:
    return {"mean": torch.tensor(means), "clients": torch.tensor(clients)}


def failures(folder: Path) -> list[Any]:
    return [event for event in read_events(folder / "events.jsonl") if event["event"] == "client-failed"]


# --- at the client ------------------------------------------------------------------------------------------


def test_the_penalty_is_the_squared_distance_to_existing_prototypes() -> None:
    model = PLAIN.build(3, Rng(0))
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(5, 1, 8, 8, generator=generator), torch.tensor([0, 2, 1, 2, 0])
    prototypes = {"mean": torch.randn(3, 6, generator=generator), "clients": torch.tensor([2, 0, 1])}
    found = PullToPrototypes(ClientCorrection(), model, prototypes, 0.7).penalty(x, y)
    assert found is not None
    z = model.double().embed(x.double()).detach()
    total = 0.0
    for i, c in enumerate(y.tolist()):
        # Class 1 has no prototype.
        total += 0.0 if c == 1 else float(((z[i] - prototypes["mean"][c].double()) ** 2).sum())
    assert found.item() == pytest.approx(0.7 * total / (5 * 6), rel=1e-5)


class Constant(ClientCorrection):
    def penalty(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.tensor(3.0)


def test_the_penalty_of_a_correction_is_added() -> None:
    model = PLAIN.build(2, Rng(0))
    x, y = torch.rand(2, 1, 8, 8), torch.tensor([0, 1])
    prototypes = shared([[0.0] * 6] * 2, [1, 1])
    alone = PullToPrototypes(ClientCorrection(), model, prototypes, 1.0).penalty(x, y)
    both = PullToPrototypes(Constant(), model, prototypes, 1.0).penalty(x, y)
    assert alone is not None and both is not None
    assert both.item() == pytest.approx(alone.item() + 3.0)
    assert float(PullToPrototypes(Constant(), model, prototypes, 0.0).penalty(x, y) or 0) == 3.0


def test_the_penalty_does_not_update_batch_norm_statistics() -> None:
    model = NORMED.build(2, Rng(0)).train()
    before = weights_of(model)
    width = model.embedding_dim
    PullToPrototypes(ClientCorrection(), model, shared([[0.0] * width] * 2, [1, 1]), 1.0).penalty(
        torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 0, 1])
    )
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights_of(model).items())


def test_a_round_at_a_client_is_gradient_descent_on_both_terms(data: Any, tmp_path: Path) -> None:
    """Two full-batch steps of plain SGD on CE + w * MSE, from autograd over the written-out loss in float64."""
    split = split_by(data, 2, halves(data))
    settings = {"epochs": 2, "batch_size": 64, "lr": 0.1, "momentum": 0.0, "proto_weight": 2.0}
    experiment = tiny_experiment("fedproto", data, split, {"method": settings})
    start = weights_of(PLAIN.build(2, Rng(3)))
    prototypes = {
        "mean": torch.randn(2, 6, generator=torch.Generator().manual_seed(5)),
        "clients": torch.tensor([1, 0]),
    }
    client = client_of(experiment, tmp_path, index=1, state=Payload.of({"classes": 2}, network=start))
    reply = phase_of(experiment.method).local(Payload.of(prototypes=prototypes), client, Rng(0))

    by_hand = PLAIN.build(2, Rng(3)).double()
    x, y = client.train.all()
    for _ in range(2):
        z = by_hand.embed(x.double())
        apart = ((z - prototypes["mean"].double()[y]) ** 2).mean(1) * (y == 0)
        loss = F.cross_entropy(by_hand.head(z), y) + 2.0 * apart.mean()
        gradients = torch.autograd.grad(loss, list(by_hand.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(by_hand.parameters(), gradients, strict=True):
                parameter.sub_(0.1 * gradient)
    for name, tensor in weights_of(by_hand).items():
        torch.testing.assert_close(client.state.group(NETWORK)[name].double(), tensor, rtol=1e-4, atol=1e-6)

    # The prototypes are the means under the weights after training; nothing else is sent.
    z = by_hand.embed(x.double()).detach()
    mine = reply.group(PROTOTYPES)
    assert set(reply.tensors) == {"prototypes/mean", "prototypes/count"}
    for c in (0, 1):
        torch.testing.assert_close(mine["mean"][c].double(), z[y == c].mean(0), rtol=1e-4, atol=1e-5)
        assert int(mine["count"][c]) == int((y == c).sum())
    assert reply.info["samples"] == len(y)


def test_class_means_are_computed_in_evaluation_mode() -> None:
    model = NORMED.build(3, Rng(0)).train()
    x = torch.rand(9, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 2, 2, 0, 2, 0, 0, 0, 2])
    found = class_means(model, Samples(x, y, torch.arange(9)), 3)
    with torch.no_grad():
        z = model.eval().embed(x)
    torch.testing.assert_close(found["mean"][0], z[y == 0].mean(0))
    torch.testing.assert_close(found["mean"][2], z[y == 2].mean(0))
    assert found["mean"][1].tolist() == [0.0] * model.embedding_dim
    assert found["count"].tolist() == [5, 0, 4]
    empty = class_means(model, Samples(x, y, torch.arange(9)).take([]), 3)
    assert empty["count"].tolist() == [0, 0, 0]


def test_a_lost_network_is_replaced_and_the_log_says_so(data: Any, tmp_path: Path) -> None:
    experiment = tiny_experiment("fedproto", data, split_by(data, 2, halves(data)))
    client = client_of(experiment, tmp_path, index=1)
    phase_of(experiment.method).local(Payload.of(prototypes=shared([[0.0] * 6] * 2, [1, 1])), client, Rng(0))
    assert NETWORK in client.state
    assert any("lost" in note for note in client.notes)


# --- at the server ------------------------------------------------------------------------------------------


def reply_with(means: list[list[float]], counts: list[int]) -> Payload:
    return Payload.of({"samples": sum(counts)}, prototypes={"mean": torch.tensor(means), "count": torch.tensor(counts)})


def test_prototypes_are_plain_means_over_the_clients_with_the_class() -> None:
    phase = phase_of("fedproto")
    server = server_of(("a", "b", "c"))
    rows = {k: [float(k)] * 6 for k in range(10)}
    phase.merge(
        server, replies_of(a=reply_with([rows[1], rows[9]], [100, 0]), b=reply_with([rows[2], rows[4]], [1, 1]))
    )
    found = server.state.group(PROTOTYPES)
    assert found["mean"].tolist() == [[1.5] * 6, [4.0] * 6]
    assert found["clients"].tolist() == [2, 1]
    assert owners(server) == ["a", "b"]
    # In the next round only class 1 occurs; class 0 does not change.
    phase.merge(server, replies_of(c=reply_with([rows[9], rows[7]], [0, 5])))
    found = server.state.group(PROTOTYPES)
    assert found["mean"].tolist() == [[1.5] * 6, [7.0] * 6]
    assert found["clients"].tolist() == [2, 1]
    assert owners(server) == ["a", "b", "c"]


def test_a_new_class_has_a_prototype_once_a_client_has_samples_of_it() -> None:
    phase = phase_of("fedproto")
    server = server_of(("a",))
    phase.merge(server, replies_of(a=reply_with([[1.0] * 6, [2.0] * 6], [1, 1])))
    server.classes.add("c", origin="a", since=1)
    phase.merge(server, replies_of(a=reply_with([[3.0] * 6, [0.0] * 6, [5.0] * 6], [1, 0, 1])))
    assert server.state.group(PROTOTYPES)["mean"][:, 0].tolist() == [3.0, 2.0, 5.0]
    phase.merge(server, replies_of(a=reply_with([[0.0] * 6] * 3, [0, 0, 0])))
    assert server.state.group(PROTOTYPES)["mean"][:, 0].tolist() == [3.0, 2.0, 5.0]


@pytest.mark.parametrize(
    ("means", "counts", "samples"),
    [
        (torch.zeros(2, 6), torch.tensor([-1, 3]), 2),
        (torch.zeros(2, 6), torch.tensor([5, 5]), 4),
        (torch.zeros(2, 6), torch.tensor([1, 1]), 9),
        (torch.zeros(2, 5), torch.tensor([1, 1]), 2),
        (torch.zeros(3, 6), torch.tensor([1, 1, 0]), 2),
        (torch.zeros(2, 6), torch.tensor([1.0, 1.0]), 2),
    ],
)
def test_invalid_prototypes_are_rejected(means: Tensor, counts: Tensor, samples: int) -> None:
    phase = phase_of("fedproto")
    phase.check(server_of(), reply_with([[0.0] * 6] * 2, [1, 1]))
    with pytest.raises(BadReply, match="prototypes"):
        phase.check(server_of(), Payload.of({"samples": samples}, prototypes={"mean": means, "count": counts}))


# --- what clients send and receive --------------------------------------------------------------------------


def test_the_network_is_sent_once_to_each_client_including_late_ones(data: Any, tmp_path: Path) -> None:
    split = split_by(data, 2, even_shares(data, 2, 3))
    settings = {"method": {"rounds": 4}, "federation": {"arrivals": {"client-02": 2}}}
    run_tiny(tmp_path / "run", "fedproto", data, split, settings)
    assert not failures(tmp_path / "run")
    events = [e for e in read_events(tmp_path / "run" / "events.jsonl") if e["event"] == "client"]
    weights = sum(tensor.nbytes for tensor in final(tmp_path / "run").group(NETWORK).values())
    big = {(event["client"], event["index"]) for event in events if event["bytes_down"] > weights}
    assert big == {("client-00", 0), ("client-01", 0), ("client-02", 2)}
    assert all(event["bytes_up"] < weights for event in events)
    assert set(states(tmp_path / "run")) == {"client-00", "client-01", "client-02"}


def test_only_the_prototypes_connect_the_clients(data: Any, tmp_path: Path) -> None:
    shares = halves(data)
    networks = {}
    for weight in (0.0, 1.0):
        for name, rows in (("both", shares), ("alone", shares[:1])):
            folder = tmp_path / f"{name}-{weight}"
            settings = {"method": {"rounds": 3, "proto_weight": weight}}
            run_tiny(folder, "fedproto", data, split_by(data, 2, rows), settings)
            networks[name, weight] = states(folder)["client-00"].group(NETWORK)
    assert all(torch.equal(t, networks["both", 0.0][n]) for n, t in networks["alone", 0.0].items())
    assert not torch.equal(networks["alone", 1.0]["head.weight"], networks["both", 1.0]["head.weight"])
    assert not torch.equal(networks["alone", 1.0]["head.weight"], networks["alone", 0.0]["head.weight"])


# --- later classes ------------------------------------------------------------------------------------------


def test_new_rows_of_a_head_come_before_the_outputs_that_the_objective_added() -> None:
    weights = {
        "x": torch.ones(2),
        "head.weight": torch.arange(6.0).view(3, 2),
        "head.bias": torch.tensor([1.0, 2.0, 3.0]),
    }
    fresh = {"x": torch.zeros(2), "head.weight": torch.full((5, 2), -1.0), "head.bias": torch.full((5,), -2.0)}
    found = grow_head(weights, fresh, 2, 4)
    assert found["x"].tolist() == [1.0, 1.0]
    assert found["head.weight"].tolist() == [[0, 1], [2, 3], [-1, -1], [-1, -1], [4, 5]]
    assert found["head.bias"].tolist() == [1, 2, -2, -2, 3]
    assert weights["head.bias"].tolist() == [1, 2, 3]


class GrowingRounds(PrototypeRounds):
    """Rounds that declare a third class after two of them."""

    def merge(self, server: Server, replies: Replies) -> None:
        super().merge(server, replies)
        if server.step.index == 1:
            server.classes.add("class-2", origin="declared", since=2)


class Growing(FedProto):
    round_type = GrowingRounds


@pytest.mark.parametrize("objective", ["ce", "proser"])
def test_classes_may_be_added_between_rounds(objective: str, tmp_path: Path) -> None:
    data = tiny_dataset(classes=3)
    rows = [i for i, label in enumerate(data.y_train.tolist()) if label < 3]
    # The last client arrives when there are three classes, and the first network has rows for two.
    split = split_by(data, 2, [rows[:12], rows[12:24], rows[24:]])
    settings = {
        "method": {"rounds": 4},
        "objective": {"name": objective},
        "federation": {"arrivals": {"client-02": 2}},
    }
    run_tiny(tmp_path / "run", f"{__name__}:Growing", data, split, settings)
    assert not failures(tmp_path / "run")
    found = final(tmp_path / "run")
    assert found.group(PROTOTYPES)["clients"].tolist() == [3, 3, 3]
    extra = objective == "proser"
    assert len(found.group(NETWORK)["head.weight"]) == 2 + extra
    for state in states(tmp_path / "run").values():
        assert len(state.group(NETWORK)["head.weight"]) == 3 + extra
        assert state.info["classes"] == 3


# --- answers ------------------------------------------------------------------------------------------------


def test_the_answer_is_the_nearest_prototype_and_a_class_without_one_never_wins() -> None:
    model = PLAIN.build(3, Rng(0)).eval()
    x = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    z = model.embed(x).detach()
    prototypes = {"mean": torch.stack([z[0], z[1], z[2]]), "clients": torch.tensor([1, 0, 4])}
    answer = NearestPrototype(model, 3, SCORES.make("maxlogit"), prototypes).predict(x)
    for i in range(6):
        for c in (0, 2):
            distance = sum(float(a - b) ** 2 for a, b in zip(z[i], z[c], strict=True))
            assert float(answer.logits[i, c]) == pytest.approx(-distance, abs=1e-6)
        assert float(answer.logits[i, 1]) == pytest.approx(NO_PROTOTYPE)
    assert answer.logits.argmax(1)[[0, 2]].tolist() == [0, 2]
    assert 1 not in answer.logits.argmax(1).tolist()
    torch.testing.assert_close(answer.unknown, -answer.logits.amax(1).double())
    without = NearestPrototype(
        model, 3, SCORES.make("msp"), {**prototypes, "clients": torch.zeros(3, dtype=torch.int64)}
    )
    assert torch.isfinite(without.predict(x).unknown).all()


def test_a_score_of_the_unknown_output_uses_the_clients_own_head() -> None:
    model = PLAIN.build(3, Rng(0)).eval()
    x = torch.rand(4, 1, 8, 8)
    prototypes = shared([[0.0] * 6, [1.0] * 6], [1, 1])
    score = SCORES.make("unknown")
    answer = NearestPrototype(model, 2, score, prototypes).predict(x)
    with torch.no_grad():
        torch.testing.assert_close(answer.unknown, score.score(Signals(model(x), 2), {}))
    assert answer.logits.shape == (4, 2)


@pytest.mark.parametrize(("answer", "kind"), [("prototypes", NearestPrototype), ("head", ScoredModel)])
def test_every_client_answers_with_its_own_network(
    answer: str, kind: type[ScoredModel], data: Any, tmp_path: Path
) -> None:
    split = split_by(data, 2, halves(data))
    run_tiny(tmp_path / "run", "fedproto", data, split)
    experiment = tiny_experiment("fedproto", data, split, {"method": {"answer": answer}})
    server = Server.from_payload(final(tmp_path / "run"), PLAIN, Rng(0))
    networks: list[Mapping[str, Tensor]] = []
    for name, state in states(tmp_path / "run").items():
        predictor: Any = experiment.method.answers(server).predictor(client_of(experiment, tmp_path, name, 2, state))
        assert type(predictor) is kind
        networks.append(weights_of(predictor.model))
        assert all(torch.equal(tensor, state.group(NETWORK)[key]) for key, tensor in networks[-1].items())
    assert not torch.equal(networks[0]["head.weight"], networks[1]["head.weight"])
    with pytest.raises(UserError, match="client-00, client-01"):
        experiment.method.answers(server).predictor(None)


def test_it_learns(data: Any, tmp_path: Path) -> None:
    split = split_by(data, 2, even_shares(data, 2, 3))
    for answer in ("prototypes", "head"):
        settings = {"method": {"rounds": 15, "lr": 0.1, "answer": answer}}
        assert run_tiny(tmp_path / answer, "fedproto", data, split, settings)["metrics"]["closed_accuracy"] > 0.9


def test_the_penalty_pulls_embeddings_towards_the_prototypes(data: Any, tmp_path: Path) -> None:
    split = split_by(data, 2, halves(data))
    apart = {}
    for weight in (0.0, 5.0):
        folder = tmp_path / str(weight)
        run_tiny(folder, "fedproto", data, split, {"method": {"rounds": 10, "lr": 0.1, "proto_weight": weight}})
        prototypes, distances = final(folder).group(PROTOTYPES)["mean"], []
        for name, state in states(folder).items():
            client = client_of(tiny_experiment("fedproto", data, split), tmp_path, name)
            x, y = client.train.all()
            with torch.no_grad():
                z = PLAIN.network(state.group(NETWORK), 2).embed(x)
            distances.append(float((z - prototypes[y]).square().mean()))
        apart[weight] = sum(distances)
    assert apart[5.0] < 0.8 * apart[0.0]


def test_it_works_with_batch_norm(data: Any, tmp_path: Path) -> None:
    split = split_by(data, 2, halves(data))
    run_tiny(tmp_path / "run", "fedproto", data, split, WITH_NORMS)
    assert not failures(tmp_path / "run")
