"""Differential privacy in whole runs: the private mean by hand, epsilon in every output, resume, workers, refusals."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedwild import api
from fedwild.contract import Phase, Replies, Rng, Server
from fedwild.core.errors import RoundFailed, UserError
from fedwild.lifecycle.ledger import Ledger
from fedwild.lifecycle.presence import draw_independently
from fedwild.lifecycle.privacy import CLIENTS, Privacy, Readers, count
from fedwild.results.report import write_report
from fedwild.runs.accountant import Mechanism, epsilon_of
from fedwild.runs.config import resolve
from fedwild.runs.settings import PrivacySettings
from tests.conftest import Cli, Refused
from tests.tiny import model_bytes

SMALL: dict[str, Any] = {
    "data": {"name": "digits", "train_samples": 200, "test_samples": 60},
    "federation": {"clients": 4},
    "model": {"name": "mlp", "hidden": [8]},
    "method": {"rounds": 3, "epochs": 1, "batch_size": 16},
    "evaluation": {"every": 0},
    "engine": {"workers": 0},
}
CLIENT = {"privacy": {"level": "client", "clip": 0.2, "noise": 1.0}}
SAMPLE = {"privacy": {"level": "sample", "clip": 0.2, "noise": 1.0}}


def run(folder: Path, *layers: dict[str, Any], **options: Any) -> api.Run:
    return api.run(resolve(SMALL, *layers).table(), out=folder, **options)


def rounds_of(run: api.Run) -> list[dict[str, Any]]:
    return [event for event in run.events() if event["event"] == "round"]


# --- the private mean -------------------------------------------------------------------------------------------------


def test_a_round_at_client_level_equals_the_formula(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """w + sum_k (w_k - w) / (q N) with clipped updates, in float64; without noise, equal weights for unequal sizes."""
    seen: dict[str, Any] = {}
    protect = Privacy.protect

    def recording(self: Privacy, server: Server, accepted: Readers) -> Readers:
        seen["sent"] = {name: t.double().numpy() for name, t in server.state.group("model").items()}
        replies = [reply.payload for reply in Replies(accepted)]
        seen["models"] = [{n: t.double().numpy() for n, t in reply.group("model").items()} for reply in replies]
        seen["samples"] = [reply.info["samples"] for reply in replies]
        return protect(self, server, accepted)

    monkeypatch.setattr(Privacy, "protect", recording)
    layer = {"privacy": {"level": "client", "clip": 0.02, "noise": 0.0}, "method": {"rounds": 1}}
    done = run(tmp_path / "run", layer, {"partition": {"name": "dirichlet", "beta": 0.5}})
    assert len(set(seen["samples"])) > 1
    for model in seen["models"]:
        norm = math.sqrt(sum(((model[name] - sent) ** 2).sum() for name, sent in seen["sent"].items()))
        assert norm == pytest.approx(0.02, rel=1e-4)
    final = done.server().state.group("model")
    for name, sent in seen["sent"].items():
        expected = sent + sum(model[name] - sent for model in seen["models"]) / 4
        assert np.allclose(final[name].double().numpy(), expected, rtol=0, atol=1e-6)


def test_participants_are_drawn_independently() -> None:
    names = [f"client-{k:04d}" for k in range(2000)]
    sizes = [len(draw_independently(0.1, Rng(0).child(number))(names)) for number in range(50)]
    assert np.mean(sizes) == pytest.approx(200, abs=6 * math.sqrt(180 / 50))
    assert 180 / 2.5 < np.var(sizes) < 180 * 2.5
    assert list(draw_independently(0.001, Rng(3))(names[:3])) == []


def test_a_round_without_participants_still_adds_noise(tmp_path: Path) -> None:
    layer = {"federation": {"participation": 0.001}, "method": {"rounds": 2}}
    done = run(tmp_path / "run", CLIENT, layer)
    assert [event["participants"] for event in rounds_of(done)] == [[], []]
    checkpoint = done.folder.last_checkpoint()
    assert checkpoint is not None
    assert checkpoint.info["ledger"]["privacy"] == {CLIENTS: [[0.001, 1.0, 2]]}
    other = run(tmp_path / "other", CLIENT, layer, {"seed": 1})
    assert model_bytes(done.path) != model_bytes(other.path)


@pytest.mark.parametrize("layer", [CLIENT, SAMPLE])
def test_settings_take_effect(layer: dict[str, Any], tmp_path: Path) -> None:
    short = {"method": {"rounds": 1}}
    usual = run(tmp_path / "usual", layer, short)
    assert model_bytes(run(tmp_path / "again", layer, short).path) == model_bytes(usual.path)
    for number, change in enumerate(({"clip": 0.1}, {"noise": 2.0}, {"seed": "secret"})):
        other = run(tmp_path / str(number), layer, short, {"privacy": change})
        assert model_bytes(other.path) != model_bytes(usual.path), change
    secret = {"privacy": {"seed": "secret"}}
    once, twice = (run(tmp_path / f"secret-{k}", layer, short, secret) for k in range(2))
    assert model_bytes(once.path) != model_bytes(twice.path)


def test_level_none_is_bit_equal_to_a_config_without_privacy(tmp_path: Path) -> None:
    plain = run(tmp_path / "plain", {"method": {"rounds": 1}})
    none = run(tmp_path / "none", {"method": {"rounds": 1}, "privacy": {"level": "none"}})
    assert model_bytes(plain.path) == model_bytes(none.path)
    assert "privacy" not in none.result
    assert all("privacy" not in event for event in rounds_of(none))


@pytest.mark.parametrize("layer", [CLIENT, SAMPLE])
def test_two_workers_give_the_bits_of_one_process(layer: dict[str, Any], tmp_path: Path) -> None:
    short = {"method": {"rounds": 2}, "federation": {"participation": 0.7}}
    alone = run(tmp_path / "alone", layer, short)
    shared = run(tmp_path / "shared", layer, short, {"engine": {"workers": 2}})
    assert model_bytes(alone.path) == model_bytes(shared.path)
    assert alone.result["privacy"] == shared.result["privacy"]


def test_no_exact_loss_is_sent_at_sample_level(tmp_path: Path) -> None:
    events = run(tmp_path / "run", SAMPLE, {"method": {"rounds": 1}}).events()
    clients = [event for event in events if event["event"] == "client"]
    assert len(clients) == 4
    assert all(event["info"]["loss"] is None for event in clients)


@pytest.mark.parametrize(
    ("layer", "correction"), [(CLIENT, "prox"), (CLIENT, "moon"), (SAMPLE, "prox"), (SAMPLE, "scaffold")]
)
def test_corrections_compose(layer: dict[str, Any], correction: str, tmp_path: Path) -> None:
    short = {"method": {"rounds": 2}}
    plain = run(tmp_path / "plain", layer, short)
    strong = {"correction": {"name": correction, "strength" if correction == "scaffold" else "mu": 1.0}}
    assert model_bytes(run(tmp_path / "corrected", layer, short, strong).path) != model_bytes(plain.path)


# --- secure sums ------------------------------------------------------------------------------------------------------

SECURE = {"federation": {"secure": "required"}}


def test_secure_sums_without_noise_equal_the_private_mean(tmp_path: Path) -> None:
    """The server gets sums of clipped updates only, and the same model up to the rounding of the sums."""
    layer = {"privacy": {"level": "client", "clip": 0.02, "noise": 0.0}, "method": {"rounds": 2}}
    plain, secure = run(tmp_path / "plain", layer), run(tmp_path / "secure", layer, SECURE)
    ours, theirs = secure.server().state.group("model"), plain.server().state.group("model")
    for name, tensor in theirs.items():
        assert torch.allclose(ours[name], tensor, rtol=0, atol=1e-6), name
    assert secure.result["privacy"] == plain.result["privacy"]


def test_clients_of_a_secure_sum_add_the_noise(tmp_path: Path) -> None:
    """One round: the noise of four clients with shares for three has the variance 4/3 (noise clip / 4)^2."""
    layer = {
        "privacy": {"level": "client", "clip": 0.02, "noise": 50.0},
        "method": {"rounds": 1, "epochs": 0},
        "model": {"name": "mlp", "hidden": [300]},
    }
    start = run(tmp_path / "start", {**layer, "privacy": {"level": "client", "clip": 0.02, "noise": 0.0}})
    noisy = run(tmp_path / "noisy", layer, SECURE)
    before, after = start.server().state.group("model"), noisy.server().state.group("model")
    noise = torch.cat([(after[name] - tensor).flatten() for name, tensor in before.items()])
    # Over 20,000 numbers: five standard errors are 2.5 %.
    assert len(noise) > 20_000
    assert float(noise.std()) == pytest.approx(50.0 * 0.02 / 4 * math.sqrt(4 / 3), rel=0.025)
    events = noisy.events()
    assert [event["samples"] for event in events if event["event"] == "secure-sum"] == [4]
    assert all(event["loss"] is None for event in rounds_of(noisy))


def test_secure_sums_are_over_the_clients_that_were_drawn(tmp_path: Path) -> None:
    federation = {"federation": {"clients": 40, "participation": 0.5, "secure": "required"}}
    done = run(tmp_path / "run", CLIENT, federation, {"partition": {"name": "iid"}, "method": {"rounds": 2}})
    sums = [event["summed"] for event in done.events() if event["event"] == "secure-sum"]
    assert sums == [len(event["participants"]) for event in rounds_of(done)]
    assert len(set(sums)) > 1


# --- what it costs ----------------------------------------------------------------------------------------------------


def test_epsilon_at_client_level_is_the_accountants_and_grows(tmp_path: Path) -> None:
    done = run(tmp_path / "run", CLIENT, {"federation": {"participation": 0.5}})
    delta = 4**-1.1
    costs = [event["privacy"]["epsilon"] for event in rounds_of(done)]
    assert costs == [round(epsilon_of([Mechanism(0.5, 1.0, t)], delta), 6) for t in (1, 2, 3)]
    assert costs == sorted(set(costs))
    assert done.result["privacy"] == {
        "level": "client",
        "epsilon": costs[-1],
        "delta": delta,
        "clip": 0.2,
        "noise": 1.0,
        "sampling": "each client takes part in a round independently with probability 0.5 (Poisson)",
    }


def test_epsilon_at_sample_level_is_that_of_the_most_exposed_client(tmp_path: Path) -> None:
    done = run(tmp_path / "run", SAMPLE, {"partition": {"name": "dirichlet", "beta": 0.5}})
    sizes = [len(client.train) for client in done.experiment.split.clients]
    assert len(set(sizes)) > 1
    delta = sum(sizes) ** -1.1
    each = [epsilon_of([Mechanism(min(1.0, 16 / n), 1.0, 3 * math.ceil(n / 16))], delta) for n in sizes]
    assert done.result["privacy"]["epsilon"] == pytest.approx(max(each), abs=1e-6)
    assert done.result["privacy"]["delta"] == delta


@pytest.mark.parametrize("level", ["client", "sample"])
def test_a_target_epsilon_gives_the_noise_and_is_kept(level: str, tmp_path: Path) -> None:
    done = run(tmp_path / "run", {"privacy": {"level": level, "epsilon": 3.0}})
    privacy = done.result["privacy"]
    assert 2.99 < privacy["epsilon"] <= 3.0
    assert done.config.privacy.noise == privacy["noise"] > 0
    assert done.config.privacy.epsilon == 3.0
    # The settings of a run, with the noise filled in, describe the same run.
    assert resolve(done.config.table()).privacy == done.config.privacy


def test_without_noise_there_is_no_epsilon(tmp_path: Path) -> None:
    done = run(tmp_path / "run", CLIENT, {"privacy": {"noise": 0.0}, "method": {"rounds": 1}})
    assert done.result["privacy"]["epsilon"] is None


@pytest.mark.parametrize("layer", [CLIENT, SAMPLE])
def test_epsilon_after_resume_equals_that_of_an_uninterrupted_run(layer: dict[str, Any], tmp_path: Path) -> None:
    def stopping(event: dict[str, Any]) -> None:
        if event["event"] == "round-start" and event["index"] == 2:
            raise KeyboardInterrupt

    half = {"federation": {"participation": 0.5}}
    whole = run(tmp_path / "whole", layer, half)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "pieces", layer, half, listener=stopping)
    resumed = api.resume(tmp_path / "pieces")
    assert resumed.result["privacy"] == whole.result["privacy"]
    assert [e["privacy"] for e in rounds_of(resumed)] == [e["privacy"] for e in rounds_of(whole)]
    assert model_bytes(resumed.path) == model_bytes(whole.path)


def test_a_round_that_exceeds_epsilon_is_not_kept() -> None:
    privacy = Privacy(PrivacySettings(level="client", noise=3.0, epsilon=2.0, delta=1e-3), 0.5, 10)
    ledger, rounds = Ledger(), 0
    with pytest.raises(RoundFailed, match=r"this round would raise epsilon to .*, above privacy.epsilon = 2:"):
        while True:
            privacy.spend(ledger, Phase("train", 1), {})
            rounds += 1
    assert rounds >= 1
    assert epsilon_of([Mechanism(0.5, 3.0, rounds)], 1e-3) <= 2.0 < epsilon_of([Mechanism(0.5, 3.0, rounds + 1)], 1e-3)


def test_the_ledger_joins_equal_mechanisms_and_survives_json() -> None:
    ledger = Ledger()
    for times in (1, 1, 2):
        count(ledger, CLIENTS, Mechanism(0.5, 1.0, times))
    count(ledger, CLIENTS, Mechanism(0.5, 2.0, 1))
    assert ledger.privacy == {CLIENTS: [[0.5, 1.0, 4], [0.5, 2.0, 1]]}
    again = Ledger.from_json(json.loads(json.dumps(ledger.to_json())))
    privacy = Privacy(PrivacySettings(level="client", noise=1.0, delta=1e-3), 0.5, 10)
    assert privacy.report(again) == privacy.report(ledger)
    exact = epsilon_of([Mechanism(0.5, 1.0, 4), Mechanism(0.5, 2.0, 1)], 1e-3)
    assert privacy.report(again)["privacy"]["epsilon"] == round(exact, 6)


def test_limits_relative_to_other_clients_do_not_apply_at_client_level() -> None:
    def limit(level: Any) -> float:
        noise = None if level == "none" else 1.0
        return Privacy(PrivacySettings(level=level, noise=noise), 1.0, 4).max_update(100.0)

    assert (limit("none"), limit("client"), limit("sample")) == (100.0, math.inf, 100.0)


def test_the_terminal_and_the_report_show_epsilon(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(resolve(SMALL, CLIENT, {"method": {"rounds": 1}}).to_toml())
    outcome = cli("run", "config.toml", "--out", "run")
    assert outcome.code == 0, outcome.err
    done = api.Run(tmp_path / "run")
    epsilon = f"{done.result['privacy']['epsilon']:.2f}"
    printed = outcome.out + outcome.err
    assert f"epsilon {epsilon}" in printed
    assert f"epsilon: {epsilon}" in printed
    assert "noise is drawn from the run's seed, which must stay secret" in printed
    page = write_report(done).read_text()
    assert f"client level, epsilon {epsilon} at delta 0.218 (clip 0.2, noise 1); all clients take part" in page


# --- refusals ---------------------------------------------------------------------------------------------------------

START = ("run", "--set", "data.train_samples=200", "--set", "federation.clients=4")
CLIENT_ARGUMENTS = ("--set", "privacy.level=client", "--set", "privacy.noise=1")
SAMPLE_ARGUMENTS = ("--set", "privacy.level=sample", "--set", "privacy.noise=1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--set", "privacy.level=client"),
            "privacy: level = 'client' needs noise or epsilon; set one of them.",
        ),
        (
            ("--set", "privacy.noise=1", "--set", "privacy.clip=2"),
            "privacy: clip, noise set without a level; set level = 'client' or 'sample'.",
        ),
        (("--set", "privacy.level=none", "--set", "privacy.clip=-1"), "privacy.clip = -1 is not allowed"),
        (
            (*CLIENT_ARGUMENTS, "--set", "privacy.delta=0.25"),
            "privacy.delta = 0.25 is not allowed: it must be below 1/n = 0.25 for n = 4 clients.",
        ),
        (
            (*CLIENT_ARGUMENTS, "--set", "federation.clients=1"),
            "privacy.level = 'client' is not allowed for 1 clients: at least 2 are needed.",
        ),
        (
            (*CLIENT_ARGUMENTS, "--set", "privacy.epsilon=0.1"),
            "privacy.noise = 1 is not allowed with privacy.epsilon = 0.1: the planned rounds would cost",
        ),
        (
            (*CLIENT_ARGUMENTS, "--set", "correction.name=scaffold"),
            "privacy.level = 'client' is not allowed with correction.name = 'scaffold': it sends more than the model. "
            "Use moon or none or prox.",
        ),
        (
            (*SAMPLE_ARGUMENTS, "--set", "correction.name=moon"),
            "privacy.level = 'sample' is not allowed with correction.name = 'moon': it uses samples outside "
            "private steps. Use none or prox or scaffold.",
        ),
        (
            (*CLIENT_ARGUMENTS, "--set", "aggregation.clip=1.0"),
            "privacy.level = 'client' is not allowed with aggregation.clip, which would clip the mean: set privacy",
        ),
        (
            (*CLIENT_ARGUMENTS, "--set", "aggregation.name=median"),
            "privacy.level = 'client' is not allowed with aggregation.name = 'median': its sensitivity to one client "
            "is not known. Use mean.",
        ),
        (
            (*CLIENT_ARGUMENTS, "--set", "federation.secure=required", "--set", "federation.participation=0.5"),
            "federation.participation = 0.5 is not allowed with privacy.level = 'client' and secure sums for 4 "
            "clients: a round could have fewer than two clients. Set it to 1, or use at least 40 clients.",
        ),
        *(
            (
                (*SAMPLE_ARGUMENTS, "--set", f"objective.name={name}"),
                f"privacy.level = 'sample' is not allowed with objective.name = '{name}': the loss of a sample depends "
                "on other samples. Use ce.",
            )
            for name in ("balanced", "proser", "outlier-aware", "prototype-contrast")
        ),
        (
            (*CLIENT_ARGUMENTS, "--model", "resnet-18"),
            "model.name = 'resnet-18' is not allowed with privacy.level = 'client': noise cannot protect the "
            "statistics of its batch norm. Use a network without batch norm, such as mlp, simple-cnn or vgg-9.",
        ),
        ((*SAMPLE_ARGUMENTS, "--model", "digit-cnn"), "model.name = 'digit-cnn' is not allowed with privacy.level"),
        *(
            (
                (*CLIENT_ARGUMENTS, "--method", method),
                f"privacy.level = 'client' is not allowed with method '{method}': its phase '{phase}' does more than "
                "replace the model by a mean of the clients' models. Use method 'fedavg'.",
            )
            for method, phase in [
                *(("afl", "train"), ("qffl", "train"), ("fedheal", "train"), ("fedbn", "train")),
                *(("fedproto", "train"), ("fedpd", "train"), ("gal", "known"), ("local-only", "train")),
            ]
        ),
        (
            (*SAMPLE_ARGUMENTS, "--method", "qffl"),
            "privacy.level = 'sample' is not allowed with method 'qffl': its phase 'train' uses the clients' samples "
            "for more than private training steps. Use method 'fedavg'.",
        ),
        (
            (*CLIENT_ARGUMENTS, "--set", "score.name=tests.openset.test_fitting:NearestMean"),
            "privacy.level = 'client' is not allowed with method 'fedavg': its phase 'fit-score' does more than",
        ),
    ],
)
def test_what_cannot_be_protected_is_refused(arguments: tuple[str, ...], message: str, refused: Refused) -> None:
    assert message in refused(*START, *arguments)


def test_the_networks_that_the_message_names_are_accepted(tmp_path: Path) -> None:
    for name in ("mlp", "simple-cnn", "vgg-9"):
        params = {"width": 0.05} if name == "vgg-9" else {}
        layer = {"model": {"name": name, **params}, "method": {"rounds": 1, "epochs": 0}}
        table = resolve({**SMALL, "model": {}}, SAMPLE, layer).table()
        assert api.run(table, out=tmp_path / name).result["privacy"]["epsilon"] == 0


def test_a_subclass_with_another_merge_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="its phase 'train' does more than"):
        run(tmp_path / "run", CLIENT, {"method": {"name": "tests.sketches:HeadBank"}})


def test_a_run_that_starts_from_another_says_that_its_cost_is_not_included(tmp_path: Path) -> None:
    first = run(tmp_path / "first", {"method": {"rounds": 1}})
    notes: list[str] = []

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "note":
            notes.append(event["text"])

    run(tmp_path / "second", CLIENT, {"method": {"rounds": 1}}, start_from=first.path, listener=listen)
    assert "epsilon does not include what the run that this one starts from has cost" in notes
