"""Code in run folders: a folder from elsewhere runs nothing; one's own runs are recognised."""

from __future__ import annotations

import shutil
import stat
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwild import api
from fedwild.core.errors import UserError
from fedwild.core.toml import dump_toml
from fedwild.runs.folder import RunFolder
from fedwild.runs.ownership import MARK, is_own, mark
from fedwild.runs.signing import key_file, own_key, read_public, trust
from tests.conftest import Cli, Refused, unfinish
from tests.folders import change_json, read_json

NETWORK = """
from torch import nn

open(r"{marker}", "a").close()


class Net(nn.Module):
    def __init__(self, input_shape, outputs):
        super().__init__()
        self.flat, self.out = nn.Flatten(), nn.Linear(input_shape[1] * input_shape[2], outputs)

    def forward(self, x):
        return self.out(self.flat(x))
"""
TABLES: dict[str, Any] = {
    "data": {"name": "synthetic:8x8x1:4:80", "known": 3},
    "model": {"name": "owners_net:Net"},
    "method": {"name": "fedavg", "rounds": 2},
    "partition": {"name": "iid"},
}


@pytest.fixture
def marker(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that exists if the module `owners_net` was imported."""
    found = tmp_path / "imported"
    (tmp_path / "owners_net.py").write_text(NETWORK.format(marker=found))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "owners_net", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
    return found


@pytest.fixture
def own(marker: Path, tmp_path: Path) -> Path:
    """A finished run with the user's own network, which is forgotten again."""
    folder = api.run(TABLES, clients=2, workers=0, out=tmp_path / "own").path
    forget(marker)
    return folder


@pytest.fixture
def foreign(own: Path, tmp_path: Path) -> Path:
    """The same folder as another user would get it: the key is that of somebody else."""
    for file in (key_file(), key_file().with_suffix(".pub")):
        file.rename(file.with_name(f"others-{file.name}"))
    return own


def forget(marker: Path) -> None:
    marker.unlink(missing_ok=True)
    sys.modules.pop("owners_net", None)


def image(folder: Path) -> Path:
    path = folder / "image.npy"
    np.save(path, np.zeros((1, 8, 8), dtype=np.uint8))
    return path


def test_a_users_own_run_is_recognised(own: Path, marker: Path, cli: Cli, tmp_path: Path) -> None:
    assert cli("predict", own, image(tmp_path)).code == 0
    assert marker.exists()


def test_a_copy_of_a_users_own_run_is_recognised(own: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(own, tmp_path / "copy")
    assert api.Run(copy).config.model is not None


def commands(folder: Path, image: Path) -> list[list[str | Path]]:
    return [
        ["predict", folder, image],
        ["evaluate", folder, "--workers", "0"],
        ["report", folder],
        ["name", folder],
        ["show", "confusion", folder, "--workers", "0"],
        ["show", "features", folder, "--workers", "0"],
        ["show", "exhibits", folder],
        ["show", "novel", folder],
        ["show", "outliers", "--run", folder],
        ["welcome", folder, "--client", "digits"],
    ]


def test_no_command_runs_the_code_of_a_foreign_run(
    foreign: Path, marker: Path, refused: Refused, tmp_path: Path
) -> None:
    """Not even if its signer is trusted."""
    trust("colleague", read_public(key_file().with_name("others-signing.pub")))
    for arguments in commands(foreign, image(tmp_path)):
        message = refused(*arguments)
        assert "model 'owners_net:Net' is an import path, and run" in message, arguments
        assert "--trust-code" in message
        assert not marker.exists(), arguments


def test_resume_does_not_run_the_code_of_a_foreign_run(foreign: Path, marker: Path, refused: Refused) -> None:
    assert "was not made by you on this machine" in refused("resume", unfinish(foreign, 1))
    assert not marker.exists()


def test_trust_code_runs_it(foreign: Path, marker: Path, cli: Cli, tmp_path: Path) -> None:
    assert cli("predict", foreign, image(tmp_path), "--trust-code").code == 0
    assert marker.exists()
    # The trust ends with the command.
    assert cli("predict", foreign, image(tmp_path)).code == 2


def test_trust_code_resumes_and_continues_it(foreign: Path, cli: Cli) -> None:
    assert cli("resume", unfinish(foreign, 1), "--workers", "0", "--trust-code").code == 0
    assert api.Run(foreign, trust_code=True).metrics


def test_a_run_may_start_from_a_foreign_run_with_the_network_that_it_names_itself(
    foreign: Path, marker: Path, tmp_path: Path
) -> None:
    """If its signer is trusted: that allows the model, and the new run allows the network."""
    trust("colleague", read_public(key_file().with_name("others-signing.pub")))
    run = api.run(TABLES, clients=2, workers=0, rounds=1, start_from=foreign, out=tmp_path / "next")
    assert run.metrics


def test_a_sweep_may_start_from_a_foreign_run_with_trust_code(foreign: Path, cli: Cli, tmp_path: Path) -> None:
    config = {**TABLES, "federation": {"clients": 2, "start_from": str(foreign)}}
    (tmp_path / "my.toml").write_text(dump_toml(config))
    command = ["sweep", "my.toml", "--grid", "method.lr=0.1,0.2", "--dry-run", "--quiet"]
    outcome = cli(*command)
    assert outcome.code == 2 and "is signed with a key that you do not trust" in outcome.err
    assert cli(*command, "--trust-code").code == 0


def popen(folder: Path, marker: Path) -> None:
    """Let the settings of a run folder name a program as the network, in both of its copies."""
    config = read_json(folder / "run.json")["config"]
    config["model"] = {"name": "subprocess:Popen", "args": ["touch", str(marker)]}
    change_json(folder / "run.json", config=config)
    text = (folder / "config.toml").read_text()
    before, _, rest = text.partition("[model]")
    after = rest.partition("\n\n")[2]
    model = f'[model]\nname = "subprocess:Popen"\nargs = ["touch", "{marker}"]\n\n'
    (folder / "config.toml").write_text(before + model + after)


@pytest.mark.parametrize("made_by_us", [True, False])
def test_a_program_in_a_run_folder_never_runs(
    made_by_us: bool, own: Path, finished: Path, marker: Path, refused: Refused, tmp_path: Path
) -> None:
    folder, touched = own if made_by_us else finished, tmp_path / "touched"
    picture = image(tmp_path)
    popen(folder, touched)
    RunFolder(folder).sign()
    for arguments in commands(folder, picture):
        assert "subprocess:Popen" in refused(*arguments), arguments
    # Even trusted code must be a class of the right kind.
    assert "is not a subclass of torch.nn.Module" in refused("predict", folder, picture, "--trust-code")
    assert not touched.exists()


def test_a_changed_config_file_cannot_name_other_code_in_a_users_own_run(own: Path, tmp_path: Path) -> None:
    text = (own / "config.toml").read_text()
    (own / "config.toml").write_text(text.replace("owners_net:Net", "owners_net:Other"))
    with pytest.raises(UserError, match=r"'owners_net:Other' is an import path, which run .* did not have"):
        _ = api.Run(own).config


def test_the_ray_cluster_of_a_foreign_run_is_refused(finished: Path, refused: Refused) -> None:
    text = (finished / "config.toml").read_text()
    (finished / "config.toml").write_text(text.replace("[engine]\n", '[engine]\naddress = "evil.example:6379"\n'))
    message = refused("resume", unfinish(finished, 1))
    assert "engine.address = 'evil.example:6379' is a Ray cluster, and run" in message


# --- the mark and its key -------------------------------------------------------------------------------------


def facts_of(**changes: Any) -> dict[str, Any]:
    facts = {"config": {"model": {"name": "own:Net"}}, "data": "x"}
    return {**facts, **mark(facts, None), **changes}


def test_the_mark_holds_for_this_id_config_and_cluster_only(marker: Path) -> None:
    facts = facts_of()
    assert is_own(facts, None)
    assert not is_own(facts, "cluster:6379")
    assert not is_own({**facts, MARK: {**facts[MARK], "cluster": "cluster:6379"}}, "cluster:6379")
    assert not is_own({**facts, "id": "0" * 32}, None)
    assert not is_own({**facts, "config": {"model": {"name": "own:Other"}}}, None)
    for field in ("key", "signature"):
        text = facts[MARK][field]
        for wrong in (text[:-4], text[4:], None, 3, "é", "", "ssh-ed25519 AAAA"):
            assert not is_own({**facts, MARK: {**facts[MARK], field: wrong}}, None)
    without = {key: value for key, value in facts[MARK].items() if key != "cluster"}
    assert not is_own({**facts, MARK: without}, "cluster:6379")
    for wrong in (None, "0" * 64, [], {}):
        assert not is_own({**facts, MARK: wrong}, None)


def test_only_the_user_can_read_the_key(marker: Path) -> None:
    facts = facts_of()
    assert stat.S_IMODE(key_file().stat().st_mode) == 0o600
    key_file().chmod(0o640)
    with pytest.raises(UserError, match="chmod 600"):
        is_own(facts, None)


def test_damaged_key_is_reported(marker: Path) -> None:
    facts = facts_of()
    key_file().write_bytes(bytes(32))
    with pytest.raises(UserError, match=r"signing\.key' is damaged: restore it from a copy, or delete it"):
        is_own(facts, None)


def test_a_run_does_not_start_without_a_usable_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/dev/null")
    with pytest.raises(UserError, match=r"the key that signs your runs cannot be written .* set XDG_CONFIG_HOME"):
        api.run({**TABLES, "model": {"name": "mlp"}}, clients=2, workers=0, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_key_of_two_processes_is_the_same(marker: Path) -> None:
    """Each links its key only if there is none."""
    first = facts_of()
    key = own_key()
    assert is_own(first, None) and is_own(facts_of(), None) and own_key() == key
