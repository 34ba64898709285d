"""The policy of a site: what a hostile coordinator may try, and what a policy file may say."""

from __future__ import annotations

import copy
import math
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedwild.core.errors import UserError
from fedwild.core.payload import Payload
from fedwild.runs.accountant import Mechanism, epsilon_of
from fedwild.runs.components import KINDS
from fedwild.sites.audit_check import check_log
from fedwild.sites.envelope import Envelope
from fedwild.sites.policy import COMPONENTS, Policy, read_policy
from fedwild.sites.site_server import SiteServer
from tests.conftest import Cli, Refused
from tests.sites.inprocess import ANIMALS, InProcessSites, coordinated, images, saved, site_server, tables

SETTINGS = tables(evaluation={"every": 0})
SETTINGS["method"] |= {"batch_size": 8, "rounds": 2}
Attack = Callable[[Envelope, Path], list[Envelope]]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Envelope]:
    """The requests of an honest run that the default policy allows, by kind."""
    folder = tmp_path_factory.mktemp("honest")
    file = saved(folder / "a.npz", images(ANIMALS, 0, train=40, test=10))
    sites = InProcessSites(*(site_server(name, file, folder, Policy()) for name in "ab"))
    coordinated(sites, SETTINGS, folder / "run")
    jobs = [sent for _, sent in sites.sent if sent.head["kind"] == "job" and sent.head["job"]["client"] == "a"]
    found = {job.head["job"]["kind"]: job for job in reversed(jobs)}
    hello = next(sent for _, sent in sites.sent if sent.head["kind"] == "hello")
    return {**found, "hello": hello}


@pytest.fixture
def server(tmp_path: Path) -> SiteServer:
    """A site with the default policy and a real file."""
    file = saved(tmp_path / "a.npz", images(ANIMALS, 0, train=40, test=10))
    notices: list[str] = []
    site = site_server("a", file, tmp_path, Policy(), notify=notices.append)
    site.__dict__["notices"] = notices
    return site


def changed(request: Envelope, *changes: tuple[str, Any]) -> Envelope:
    """Return a request with other values at dotted paths of its head."""
    head = copy.deepcopy(request.head)
    for path, value in changes:
        *parents, last = path.split(".")
        table = head
        for key in parents:
            table = table[key]
        table[last] = value
    return Envelope(head, bytearray(request.body))


def config(key: str, value: Any) -> Attack:
    return lambda job, folder: [changed(job, (f"setup.config.{key}", value))]


def program(job: Envelope, folder: Path) -> list[Envelope]:
    return [changed(job, ("setup.config.model", {"name": "subprocess:Popen", "args": ["touch", str(folder / "ran")]}))]


def without_parts(job: Envelope, name: str, **settings: Any) -> Envelope:
    """Return a job with another method and its default components."""
    request = changed(job, ("setup.config.method", {"name": name, **settings}))
    for kind in KINDS:
        request.head["setup"]["config"].pop(kind, None)
    return request


def job_field(*changes: tuple[str, Any]) -> Attack:
    return lambda job, folder: [changed(job, *((f"job.{key}", value) for key, value in changes))]


ATTACKS: dict[str, tuple[str, Attack, str]] = {
    # name: (kind of the honest request, what is tried, the reason sent to the coordinator)
    "run a program as the network": ("local", program, "model 'subprocess:Popen' is an import path"),
    "run code as the method": ("local", config("method.name", "os:system"), "method 'os:system' is an import path"),
    "run code as the objective": ("local", config("objective.name", "antigravity:Loss"), "is an import path"),
    "run code as the score": ("local", config("score.name", "pdb:Pdb"), "score 'pdb:Pdb' is an import path"),
    "take the answers for single samples": (
        "measure",
        job_field(("kind", "test"), ("stop", 10**6)),
        "does not answer jobs of kind 'test'",
    ),
    "ask for an unknown kind of job": ("local", job_field(("kind", "dump")), "does not answer jobs of kind 'dump'"),
    "take steps of one sample": ("local", config("method.batch_size", 1), "method.batch_size = 1 is refused"),
    "train on a few samples": ("local", config("data.train_samples", 4), "training on 2 samples is refused"),
    "send means of single samples": (
        "local",
        lambda job, folder: [without_parts(job, "gal", min_count=1)],
        "method.min_count = 1 is refused",
    ),
    "send the mean of a class with few samples": (
        "local",
        lambda job, folder: [
            changed(without_parts(job, "fedproto", rounds=2), ("setup.config.data.train_samples", 12))
        ],
        "sending a mean for each class",
    ),
    "use the samples themselves as embeddings": (
        "local",
        lambda job, folder: [
            changed(without_parts(job, "fedproto", rounds=2), ("setup.config.model", {"name": "mlp", "hidden": []}))
        ],
        "model.",
    ),
    "train for ever": ("local", config("method.epochs", 10**9), "method.epochs = 1000000000 is refused"),
    "plan rounds for ever": ("local", config("method.rounds", 10**9), "method.rounds = 1000000000 is refused"),
    "fill the memory with images": ("local", config("data.size", 1024), "data.size = 1024 is refused"),
    "fill the memory with a network": (
        "local",
        config("model.hidden", [10**6, 10**6]),
        "parameters is refused",
    ),
    "fill the memory with classes": (
        "local",
        job_field(("classes", [str(i) for i in range(100_000)])),
        "a run with 100000 classes is refused",
    ),
    "change the settings of a run": (
        "local",
        lambda job, folder: [job, changed(job, ("setup.config.method.lr", 1e-9))],
        "a change of the settings of run",
    ),
    "ask for a round that is not planned": (
        "local",
        job_field(("step", {"phase": "train", "round": 7, "index": 7})),
        "the plan of the run has no round 8",
    ),
    "evaluate a round that is not evaluated": (
        "validate",
        job_field(("step", {"phase": "train", "round": 0, "index": 0})),
        "round 1 needs jobs of kind local, not 'validate'",
    ),
    "ask for a single reply where a secure sum is planned": (
        "local",
        config("federation.secure", "required"),
        "not 'local'",
    ),
    "ask for the same again and again": (
        "measure",
        lambda job, folder: [job] * 7,
        "another measure job of run",
    ),
    "write into another folder": (
        "local",
        lambda job, folder: [changed(job, ("run", "../../evil"))],
        "no valid run id",
    ),
    "ask in the name of another client": ("local", job_field(("client", "b")), "a job for 'b' was sent to 'a'"),
    "ask as another version": (
        "local",
        lambda job, folder: [changed(job, ("version", "0.0.1"))],
        "install the same version",
    ),
    "fill the memory before the run": (
        "hello",
        lambda job, folder: [changed(job, ("data.size", 1024))],
        "data.size = 1024 is refused",
    ),
}


def test_the_default_policy_allows_an_honest_run(honest: dict[str, Envelope], server: SiteServer) -> None:
    assert honest.keys() == {"hello", "local", "validate", "measure"}
    for request in honest.values():
        assert server.answer(request).head["kind"] in ("hello", "answer")


@pytest.mark.parametrize("name", ATTACKS)
def test_what_a_hostile_coordinator_tries_is_refused(
    name: str, honest: dict[str, Envelope], server: SiteServer, tmp_path: Path
) -> None:
    kind, attack, told = ATTACKS[name]
    *allowed, last = attack(honest[kind], tmp_path)
    before = [server.answer(request) for request in allowed]
    assert all(reply.head["kind"] == "answer" and "error" not in reply.head for reply in before)
    notices: list[str] = server.__dict__["notices"]
    notices.clear()
    reply = server.answer(last)
    assert reply.head["kind"] == "rejected"
    assert reply.body == b""
    assert told in reply.head["reason"]
    assert len(reply.head["reason"]) <= 300 and "\n" not in reply.head["reason"]
    # One sentence for the operator, a line in the audit log, and nothing ran or was written elsewhere.
    assert len(notices) == 1 and "\n" not in notices[0]
    report = check_log(server.audit.path)
    assert (report.problems, report.refused) == ([], 1)
    assert not (tmp_path / "ran").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "site-a"]


def test_only_sketches_figures_and_weights_leave_a_site(honest: dict[str, Envelope], server: SiteServer) -> None:
    sketch = Payload.decode(bytearray(server.answer(honest["validate"]).body))
    assert set(sketch.tensors) == {"sketch/quantiles", "sketch/losses"} and sketch.info.keys() == {"count"}
    report = Payload.decode(bytearray(server.answer(honest["measure"]).body))
    assert not report.tensors and report.info.keys() == {"samples", "figures", "classes"}


def test_small_classes_are_not_measured(honest: dict[str, Envelope], tmp_path: Path) -> None:
    arrays = images(ANIMALS, 0, train=40, test=10)
    keep = [i for i, name in enumerate(arrays["y_test"]) if name != "bee"][:]
    keep += [i for i, name in enumerate(arrays["y_test"]) if name == "bee"][:4]
    few = {**arrays, "x_test": arrays["x_test"][keep], "y_test": arrays["y_test"][keep]}
    site = site_server("a", saved(tmp_path / "few.npz", few), tmp_path, Policy())
    report = Payload.decode(bytearray(site.answer(honest["measure"]).body))
    assert report.info["classes"].keys() == {"ant", "cat", "dog"}
    assert report.info["samples"] == 30


def test_too_few_validation_samples_stay_at_the_site(honest: dict[str, Envelope], tmp_path: Path) -> None:
    file = saved(tmp_path / "few.npz", images(ANIMALS, 0, train=10, test=10))
    site = site_server("a", file, tmp_path, Policy())
    sketch = Payload.decode(bytearray(site.answer(honest["validate"]).body))
    assert sketch.info == {"count": 0}


# --- what a policy may say ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        (Policy(methods=["fedov"]), "method.name = 'fedavg' is refused"),
        (Policy(networks=["simple-cnn"]), "model.name = 'mlp' is refused"),
        (Policy(objectives=["proser"]), "objective.name = 'ce' is refused"),
        (Policy(corrections=["prox"]), "correction.name = 'none' is refused"),
        (Policy(scores=["mls"]), "score.name = 'msp' is refused"),
        (Policy(aggregations=["median"]), "aggregation.name = 'mean' is refused"),
        (Policy(require_secure_sums=True), "federation.secure = 'no' is refused"),
        (Policy(require_privacy="sample"), "privacy.level = 'none' is refused"),
        (Policy(max_epsilon=8.0), "privacy.level = 'none' is refused"),
        (Policy(max_rounds=1), "method.rounds = 2 is refused"),
        (Policy(max_parameters=100), "parameters is refused"),
        (Policy(max_classes=2), "classes is refused"),
        (Policy(max_reply_mb=0.0001), "bytes is refused"),
    ],
)
def test_a_policy_refuses_what_it_does_not_allow(
    policy: Policy, problem: str, honest: dict[str, Envelope], tmp_path: Path
) -> None:
    file = saved(tmp_path / "a.npz", images(ANIMALS, 0, train=40, test=10))
    reply = site_server("a", file, tmp_path, policy).answer(honest["local"])
    assert reply.head["kind"] == "rejected" and problem in reply.head["reason"]


PRIVATE: dict[str, Any] = {"level": "sample", "noise": 1.0, "delta": 1e-3, "seed": "secret"}


def private_answer(request: Envelope, policy: Policy, folder: Path, **privacy: Any) -> dict[str, Any]:
    """Return the head of a site's answer to a run with sample-level privacy, with these changes."""
    file = saved(folder / "a.npz", images(ANIMALS, 0, train=40, test=10))
    job = changed(request, ("setup.config.privacy", {**PRIVATE, **privacy}))
    return site_server("a", file, folder, policy).answer(job).head


def test_max_epsilon_is_the_cost_of_the_noise_that_the_site_adds(honest: dict[str, Envelope], tmp_path: Path) -> None:
    """Three classes of 40 samples, of which a tenth is for validation; 2 rounds of 1 epoch, batches of 8."""
    samples = 3 * 36
    steps, rate = 2 * math.ceil(samples / 8), 8 / samples
    cost = epsilon_of([Mechanism(rate, 1.0, steps)], 1e-3)
    assert private_answer(honest["local"], Policy(max_epsilon=cost * 1.001), tmp_path)["kind"] == "answer"
    (tmp_path / "other").mkdir()
    refusal = private_answer(honest["local"], Policy(max_epsilon=cost * 0.999), tmp_path / "other")
    assert refusal["reason"] == f"a run that costs epsilon = {cost:.4g} is refused by the policy of this site"


@pytest.mark.parametrize(
    ("policy", "privacy", "problem"),
    [
        # A claim of epsilon without noise.
        (Policy(max_epsilon=8.0), {"noise": None, "epsilon": 1.0}, "a run that costs epsilon = inf is refused"),
        (Policy(max_epsilon=8.0), {"noise": 0.0}, "a run that costs epsilon = inf is refused"),
        (Policy(require_privacy="sample"), {"noise": 0.0}, "a run that costs epsilon = inf is refused"),
        # Noise that the coordinator knows.
        (Policy(max_epsilon=8.0), {"seed": "run"}, "privacy.seed = 'run' is refused"),
        (Policy(require_privacy="sample"), {"seed": "run"}, "privacy.seed = 'run' is refused"),
        (Policy(max_epsilon=8.0), {"delta": 0.5}, "privacy.delta = 0.5 is refused"),
        (Policy(max_epsilon=8.0, max_delta=1e-5), {}, "privacy.delta = 0.001 is refused"),
        (Policy(max_epsilon=8.0), {"delta": None}, "privacy.delta = 1 is refused"),
        (Policy(require_privacy="client"), {}, "privacy.level = 'sample' is refused"),
    ],
)
def test_privacy_that_does_not_protect_is_refused(
    policy: Policy, privacy: dict[str, Any], problem: str, honest: dict[str, Envelope], tmp_path: Path
) -> None:
    assert problem in private_answer(honest["local"], policy, tmp_path, **privacy)["reason"]


@pytest.mark.parametrize(("name", "policy"), [("gains", Policy(welcome=False)), ("gal", Policy(discovery=False))])
def test_welcome_and_discovery_can_be_forbidden(
    name: str, policy: Policy, honest: dict[str, Envelope], server: SiteServer, tmp_path: Path
) -> None:
    site = site_server("a", Path(server.data), tmp_path, policy)
    reply = site.answer(without_parts(honest["local"], name))
    assert f"method.name = '{name}' is refused" in reply.head["reason"]


def test_classes_that_may_not_leave_take_no_part(
    honest: dict[str, Envelope], server: SiteServer, tmp_path: Path
) -> None:
    site = site_server("a", Path(server.data), tmp_path, Policy(class_names=["cat", "ant"]))
    facts = site.answer(honest["hello"]).head["facts"]
    assert (list(facts["classes"]), facts["samples"]) == (["ant", "cat"], 80)
    replies = [site.answer(honest[kind]) for kind in ("local", "validate", "measure")]
    assert all("bee" not in str(reply.head) and b"bee" not in reply.body for reply in replies)
    assert Payload.decode(bytearray(replies[2].body)).info["classes"].keys() == {"ant", "cat"}
    nothing = site_server("a", Path(server.data), tmp_path, Policy(class_names=["eel"]))
    assert "class_names of the policy has no class of this site" in nothing.answer(honest["hello"]).head["reason"]


def test_listed_code_runs_at_the_site(honest: dict[str, Envelope], server: SiteServer, tmp_path: Path) -> None:
    path = "tests.models.own_modules:PlainNet"
    request = changed(honest["local"], ("setup.config.model", {"name": path}))
    assert "is an import path" in server.answer(request).head["reason"]
    allowed = site_server("a", Path(server.data), tmp_path, Policy(import_paths=[path]))
    # The weights in the request are those of another network: the code ran and found that.
    assert allowed.answer(request).head["kind"] == "answer"


def test_work_that_takes_too_long_is_stopped(honest: dict[str, Envelope], server: SiteServer, tmp_path: Path) -> None:
    policy = Policy(max_job_seconds=0.2, max_epochs=10**9)
    site = site_server("a", Path(server.data), tmp_path, policy)
    reply = site.answer(changed(honest["local"], ("setup.config.method.epochs", 10**8)))
    assert reply.head["reason"] == "a request that takes too long is refused by the policy of this site"
    assert site.answer(honest["hello"]).head["kind"] == "hello"


def test_without_an_audit_log_nothing_is_answered(honest: dict[str, Envelope], server: SiteServer) -> None:
    server.audit.path.mkdir(parents=True)
    assert server.answer(honest["hello"]).head["reason"] == "the audit log of this site cannot be written"


def test_every_kind_of_component_is_in_the_policy() -> None:
    assert {f"{kind}s" for kind in KINDS} <= COMPONENTS.keys() <= Policy.model_fields.keys()


def test_the_printed_policy_is_the_default(cli: Cli, tmp_path: Path) -> None:
    printed = cli("policy").out
    assert Policy(**tomllib.loads(printed)) == Policy()
    (tmp_path / "policy.toml").write_text(printed)
    assert read_policy(tmp_path / "policy.toml") == Policy() == read_policy(None)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("min_batch_size = 0", "policy.min_batch_size = 0 is not allowed"),
        ("max_epoch = 3", "policy.max_epoch is not a setting. Did you mean 'max_epochs'?"),
        ('approve = "never"', "policy.approve = 'never' is not allowed"),
        ('methods = ["fedav"]', "policy: methods: method 'fedav' is not known. Did you mean 'fedavg'?"),
        ('networks = ["own:Net"]', "policy: networks: model 'own:Net' is not known."),
        ('import_paths = ["own"]', "policy: import_paths: 'own' is not an import path"),
        ("min_count = ", "is not valid TOML"),
    ],
)
def test_a_wrong_policy_is_rejected_before_the_site_starts(
    line: str, problem: str, refused: Refused, tmp_path: Path
) -> None:
    (tmp_path / "policy.toml").write_text(line + "\n")
    site = ("site", "--superlink", "127.0.0.1:1", "--data", "digits", "--name", "a", "--folder", tmp_path / "f")
    assert problem in refused(*site, "--policy", tmp_path / "policy.toml")


def test_a_missing_policy_is_rejected() -> None:
    with pytest.raises(UserError, match="does not exist"):
        read_policy(Path("nowhere.toml"))
