"""Rounds with secure sums: results, drop-outs at every step, wrong answers, kill and resume."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedwild.aggregation.secure.fixed_point import FixedPoint
from fedwild.aggregation.secure.vectors import HEAD, Layout
from fedwild.contract.engine import SECURE_KINDS, Answer, Job
from fedwild.core.errors import RoundFailed
from fedwild.core.payload import Payload
from fedwild.data import Dataset, Split
from fedwild.engines.executor import Executor
from fedwild.engines.local import LocalEngine
from fedwild.lifecycle.rounds import Federation
from fedwild.lifecycle.secure_exchange import MAX_SAMPLES
from fedwild.runs.events import read_events
from fedwild.runs.experiment import fingerprint
from fedwild.runs.folder import RunFolder
from tests.methods.by_hand import WITH_NORMS, final
from tests.tiny import even_shares, model_bytes, run_tiny, split_by, tiny_dataset, tiny_experiment

SECURE: dict[str, Any] = {"federation": {"secure": "required"}}
CLIENTS = 4
Change = Callable[[Answer], Answer]


@pytest.fixture(scope="module")
def data() -> Dataset:
    return tiny_dataset(classes=3)


@pytest.fixture(scope="module")
def split(data: Dataset) -> Split:
    return split_by(data, 2, even_shares(data, 2, CLIENTS))


class Disturbed(LocalEngine):
    """A local engine that changes answers, or raises, on their way."""

    def __init__(self, executor: Executor, change: Change) -> None:
        super().__init__(executor, 0)
        self.change = change

    def run(self, jobs: Iterable[Job], started: Callable[[Job], None] = lambda job: None) -> Iterator[Answer]:
        for answer in super().run(jobs, started):
            yield self.change(answer)


def run_disturbed(
    folder: Path, data: Dataset, split: Split, change: Change, settings: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Run FedAvg, from where it stopped if the folder exists."""
    experiment = tiny_experiment("fedavg", data, split, {**SECURE, **(settings or {})})
    if folder.exists():
        run = RunFolder.open(folder)
    else:
        facts = {"data": fingerprint(data)}
        run = RunFolder.create(folder, "tiny", experiment.config.to_toml(), experiment.split, facts)
    return Federation(experiment, run, connect=lambda executor: Disturbed(executor, change)).run()


def lose(kind: str, *clients: str) -> Change:
    """Lose the answers of clients to one kind of job."""

    def change(answer: Answer) -> Answer:
        lost = answer.job.kind == kind and answer.job.client in clients
        return Answer(answer.job, error="lost") if lost else answer

    return change


def rewrite(kind: str, client: str, change: Callable[[Payload], Payload]) -> Change:
    """Change what a client answers to one kind of job."""

    def changed(answer: Answer) -> Answer:
        if answer.job.kind != kind or answer.job.client != client:
            return answer
        path = Path(str(answer.path)).with_name(f"changed-{kind}")
        return Answer(answer.job, str(path), size=change(answer.read()).write(path), state=answer.state)

    return changed


def events_of(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_events(folder / "events.jsonl") if event["event"] == kind]


def assert_close(one: Payload, other: Payload, atol: float = 1e-6) -> None:
    assert one.tensors.keys() == other.tensors.keys()
    for name, tensor in one.tensors.items():
        torch.testing.assert_close(tensor, other.tensors[name], rtol=0, atol=atol)


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "fedavg": ("fedavg", {}),
    "prox": ("fedavg", {"correction": {"name": "prox"}}),
    "scaffold": ("fedavg", {"correction": {"name": "scaffold"}}),
    "moon": ("fedavg", {"correction": {"name": "moon"}}),
    "equal weights": ("fedbn", WITH_NORMS),
    "prototypes": ("fedproto", {}),
    "fitted score": ("fedavg", {"score": {"name": "tests.openset.test_fitting:NearestMean"}}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_result_is_the_plain_one_up_to_quantisation(case: str, data: Dataset, split: Split, tmp_path: Path) -> None:
    method, settings = CASES[case]
    run_tiny(tmp_path / "plain", method, data, split, settings)
    run_tiny(tmp_path / "secure", method, data, split, {**settings, **SECURE})
    plain, secure = final(tmp_path / "plain"), final(tmp_path / "secure")
    for name in [name for name in plain.tensors if name.endswith("num_batches_tracked")]:
        del plain.tensors[name], secure.tensors[name]
    assert_close(plain, secure, 1e-5)
    losses = [[event["loss"] for event in events_of(tmp_path / run, "round")] for run in ("plain", "secure")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert all(event["info"] == {} for event in events_of(tmp_path / "secure", "client"))


def test_where_possible_protects_the_phases_that_are_sums(data: Dataset, split: Split, tmp_path: Path) -> None:
    """FedPD's training needs single replies; pooling its batch-norm statistics does not."""
    settings = {**WITH_NORMS, "method": {"norms": "merged", "mean": "all"}}
    run_tiny(tmp_path / "plain", "fedpd", data, split, settings)
    run_tiny(tmp_path / "secure", "fedpd", data, split, {**settings, "federation": {"secure": "where-possible"}})
    assert [event["phase"] for event in events_of(tmp_path / "secure", "secure-sum")] == ["calibrate"]
    assert_close(final(tmp_path / "plain"), final(tmp_path / "secure"), 1e-5)
    plain, secure = final(tmp_path / "plain").group("model"), final(tmp_path / "secure").group("model")
    variances = [name for name in plain if name.endswith("running_var")]
    assert variances and all(not torch.equal(plain[name], torch.ones_like(plain[name])) for name in variances)
    assert torch.equal(plain["head.weight"], secure["head.weight"])


def test_the_model_is_exactly_the_mean_of_the_quantised_vectors(
    data: Dataset, split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Computed here with Python's integers, and compared with the exact sum within the stated error."""
    vectors: list[np.ndarray] = []
    plain = Layout.to_vector

    def recording(self: Layout, reply: Payload, weight: float) -> np.ndarray:
        vectors.append(plain(self, reply, weight))
        return vectors[-1]

    monkeypatch.setattr(Layout, "to_vector", recording)
    run_tiny(tmp_path / "run", "fedavg", data, split, {**SECURE, "method": {"rounds": 1}})
    code = FixedPoint(16384.0 * MAX_SAMPLES, CLIENTS)
    sums = [sum(round(x * 2**code.fraction_bits) for x in column) for column in zip(*map(list, vectors), strict=True)]
    values = np.array([total / 2**code.fraction_bits for total in sums])
    model = final(tmp_path / "run").group("model")
    found = np.concatenate([model[name].flatten().numpy() for name in sorted(model)])
    assert found.tolist() == (values[HEAD:] / values[1]).astype(np.float32).tolist()
    assert np.abs(values - np.sum(vectors, axis=0)).max() <= code.max_error
    assert code.max_error / values[1] < 1e-8


@pytest.mark.parametrize("method", ["fedavg", "fedproto"])
def test_bits_do_not_depend_on_keys_or_workers(method: str, data: Dataset, split: Split, tmp_path: Path) -> None:
    for run, workers in (("a", 0), ("b", 0), ("c", 2)):
        run_tiny(tmp_path / run, method, data, split, SECURE, workers=workers)
    assert model_bytes(tmp_path / "a") == model_bytes(tmp_path / "b") == model_bytes(tmp_path / "c")


@pytest.mark.parametrize("kind", SECURE_KINDS)
def test_a_client_that_drops_out_in_any_step_does_not_stop_the_round(
    kind: str, data: Dataset, split: Split, tmp_path: Path
) -> None:
    run_disturbed(tmp_path / "secure", data, split, lose(kind, "client-01"))
    # A client that has sent its vector is in the sum, whether or not it helps to unmask it.
    plain: dict[str, Any] = {"federation": {"secure": "no"}}
    lost = "none" if kind == "unmask" else "local"
    run_disturbed(tmp_path / "plain", data, split, lose(lost, "client-01"), plain)
    assert_close(final(tmp_path / "secure"), final(tmp_path / "plain"))
    (first, _) = events_of(tmp_path / "secure", "secure-sum")
    assert (first["clients"], first["summed"]) == (CLIENTS, CLIENTS if kind == "unmask" else CLIENTS - 1)
    failed = events_of(tmp_path / "secure", "client-failed")
    assert [event["reason"] for event in failed] == ["lost", "lost"]


@pytest.mark.parametrize("kind", SECURE_KINDS)
def test_below_the_threshold_the_round_fails_with_a_sentence(
    kind: str, data: Dataset, split: Split, tmp_path: Path
) -> None:
    with pytest.raises(RoundFailed) as caught:
        run_disturbed(tmp_path / "run", data, split, lose(kind, "client-01", "client-03"))
    assert str(caught.value) == (
        f"round 1 (train): 2 of 4 clients completed the step {kind!r} of the secure sum, and 3 are needed "
        "(federation.secure_threshold = 0.667). Most frequent reason: lost. "
        f"`fedwild resume {tmp_path / 'run'}` tries the round again with new keys."
    )
    # The repeated round has new keys and the same result.
    run_disturbed(tmp_path / "run", data, split, lose("none"))
    run_disturbed(tmp_path / "undisturbed", data, split, lose("none"))
    assert model_bytes(tmp_path / "run") == model_bytes(tmp_path / "undisturbed")


@pytest.mark.parametrize("kind", SECURE_KINDS)
def test_a_run_that_is_stopped_in_any_step_resumes_bit_equal(
    kind: str, data: Dataset, split: Split, tmp_path: Path
) -> None:
    def stop(answer: Answer) -> Answer:
        if answer.job.kind == kind and answer.job.client == "client-02" and answer.job.step.index == 1:
            raise KeyboardInterrupt
        return answer

    with pytest.raises(KeyboardInterrupt):
        run_disturbed(tmp_path / "run", data, split, stop)
    run_disturbed(tmp_path / "run", data, split, lose("none"))
    run_disturbed(tmp_path / "undisturbed", data, split, lose("none"))
    assert model_bytes(tmp_path / "run") == model_bytes(tmp_path / "undisturbed")


def test_secrets_exist_during_a_round_only_and_only_their_owner_can_read_them(
    data: Dataset, split: Split, tmp_path: Path
) -> None:
    seen: dict[str, set[int]] = {}

    def look(answer: Answer) -> Answer:
        spool = Path(str(answer.path)).parent
        files = list(spool.glob("secrets-*"))
        seen.setdefault(answer.job.kind, set()).update(file.stat().st_mode & 0o777 for file in files)
        return answer

    run_disturbed(tmp_path / "run", data, split, look, {"evaluation": {"every": 1}})
    assert {seen[kind] == {0o600} for kind in ("advertise", "share", "masked")} == {True}
    assert seen["validate"] == set()
    assert not [path for path in (tmp_path / "run").rglob("*") if "secrets" in path.name]


def test_a_wrong_share_is_ignored_with_a_note(data: Dataset, split: Split, tmp_path: Path) -> None:
    def forge(reply: Payload) -> Payload:
        return Payload({"shares": reply.tensors["shares"] * 0}, reply.info)

    run_disturbed(tmp_path / "run", data, split, rewrite("unmask", "client-00", forge))
    run_disturbed(tmp_path / "undisturbed", data, split, lose("none"))
    assert model_bytes(tmp_path / "run") == model_bytes(tmp_path / "undisturbed")
    notes = [event["text"] for event in events_of(tmp_path / "run", "note")]
    assert "client-00 sent a wrong share of a secure sum, which was ignored" in notes


@pytest.mark.parametrize(
    ("value", "problem"), [(None, "outside the range of secure sums"), (2**38, "federation.max_update")]
)
def test_a_sum_that_no_honest_client_can_cause_is_not_merged(
    value: int | None, problem: str, data: Dataset, split: Split, tmp_path: Path
) -> None:
    def forge(reply: Payload) -> Payload:
        masked = reply.tensors["masked"]
        noise = torch.randint(-(2**63), 2**63 - 1, masked.shape, generator=torch.Generator().manual_seed(0))
        added = noise if value is None else torch.full_like(masked, value)
        added[:HEAD] = 0
        return Payload({"masked": masked + added})

    run_disturbed(tmp_path / "run", data, split, rewrite("masked", "client-00", forge))
    failed = events_of(tmp_path / "run", "merge-failed")
    assert len(failed) == 2 and all(problem in event["reason"] for event in failed)


def test_more_samples_than_the_clients_have_are_not_merged(data: Dataset, split: Split, tmp_path: Path) -> None:
    def forge(reply: Payload) -> Payload:
        claim = torch.zeros_like(reply.tensors["masked"])
        claim[0] = 1000 * 2 ** FixedPoint(16384.0 * MAX_SAMPLES, CLIENTS).fraction_bits
        return Payload({"masked": reply.tensors["masked"] + claim})

    run_disturbed(tmp_path / "run", data, split, rewrite("masked", "client-00", forge))
    reasons = [event["reason"] for event in events_of(tmp_path / "run", "merge-failed")]
    assert len(reasons) == 2 and all(reason.startswith("the sum has 10") for reason in reasons)


@pytest.mark.parametrize(
    ("kind", "forge", "reason"),
    [
        ("advertise", lambda r: Payload({"keys": r.tensors["keys"][:, :5]}), "public keys have 5 bytes"),
        ("advertise", lambda r: Payload(), "KeyError: 'keys'"),
        ("share", lambda r: Payload({"sealed": r.tensors["sealed"]}), "the shares lacks ['commitment']"),
        ("masked", lambda r: Payload({"masked": r.tensors["masked"][1:]}), "the masked vector tensor 'masked' is"),
        ("masked", lambda r: Payload({"masked": r.tensors["masked"].double()}), "expected torch.int64"),
        ("unmask", lambda r: Payload(r.tensors, {"names": ["x"] * 4}), "bad reply: "),
        ("unmask", lambda r: Payload({"shares": r.tensors["shares"][:, 1:]}, r.info), "not those that were asked for"),
    ],
)
def test_a_malformed_answer_costs_only_its_client(
    kind: str, forge: Callable[[Payload], Payload], reason: str, data: Dataset, split: Split, tmp_path: Path
) -> None:
    run_disturbed(tmp_path / "run", data, split, rewrite(kind, "client-00", forge))
    failed = events_of(tmp_path / "run", "client-failed")
    assert {event["client"] for event in failed} == {"client-00"}
    assert all(reason in event["reason"] for event in failed), failed


def test_values_out_of_range_exclude_the_client_with_the_setting(data: Dataset, split: Split, tmp_path: Path) -> None:
    settings = {"federation": {"secure": "required", "secure_range": 1e-9}}
    with pytest.raises(RoundFailed, match=r"0 of 4 clients completed the step 'masked'.*raise federation.secure_range"):
        run_tiny(tmp_path / "run", "fedavg", data, split, settings)


def test_one_client_is_not_protected_by_a_sum(data: Dataset, tmp_path: Path) -> None:
    alone = split_by(data, 2, even_shares(data, 2, 1))
    with pytest.raises(RoundFailed, match=r"1 of 1 clients completed the step 'advertise'.*2 are needed"):
        run_tiny(tmp_path / "run", "fedavg", data, alone, SECURE)
