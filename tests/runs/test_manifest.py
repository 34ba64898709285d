"""The signed manifest: who vouches for a model, whom the user trusts, and what is refused."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from fedwild import api
from fedwild.core.errors import UserError
from fedwild.runs import signing
from fedwild.runs.folder import RunFolder
from fedwild.runs.manifest import PURPOSE, SIGNED_BY, read_manifest
from tests.conftest import Cli, Refused, unfinish
from tests.folders import change_json, flip_bit, read_json


@pytest.fixture
def image(tmp_path: Path) -> Path:
    np.save(tmp_path / "image.npy", np.zeros((1, 8, 8), dtype=np.uint8))
    return tmp_path / "image.npy"


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], str]:
    """A function that gives the user another key, as on another machine. It returns the file of the old public key."""

    def become() -> str:
        before = str(signing.public_file())
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "elsewhere"))
        return before

    return become


def test_manifest_has_the_digests_and_a_signature_that_others_can_check(finished: Path) -> None:
    """Checked here without any function of fedwild."""
    table = read_json(finished / "manifest.json")
    assert table["files"] == {
        name: [{"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}]
        for name in ("run.json", "model.safetensors", "result.json")
        for data in [(finished / name).read_bytes()]
    }
    signed = table.pop(SIGNED_BY)
    key: Any = load_ssh_public_key(signed["key"].encode())
    key.verify(
        base64.b64decode(signed["signature"]), f"fedwild {PURPOSE}\n{json.dumps(table, sort_keys=True)}".encode()
    )


def test_own_run_is_used_without_a_question(finished: Path, image: Path, cli: Cli) -> None:
    assert cli("predict", finished, image).code == 0
    assert "manifest.json: signed by you (SHA256:" in cli("verify", finished).out


@pytest.mark.parametrize("command", ["predict", "evaluate", "start_from", "welcome"])
def test_model_that_a_stranger_signed_is_refused(
    command: str, finished: Path, image: Path, stranger: Callable[[], str], refused: Refused
) -> None:
    stranger()
    arguments: dict[str, list[Any]] = {
        "predict": ["predict", finished, image],
        "evaluate": ["evaluate", finished, "--workers", "0"],
        "start_from": ["run", "--start-from", finished, "--workers", "0", "--set", "federation.clients=2"],
        "welcome": ["welcome", finished, "--client", "digits", "--resize"],
    }
    assert "is signed with a key that you do not trust (SHA256:" in refused(*arguments[command])


def test_trusted_signer_is_accepted_until_removed(
    finished: Path, image: Path, stranger: Callable[[], str], cli: Cli
) -> None:
    public = stranger()
    assert cli("trust", public, "--name", "hospital-a").code == 0
    assert cli("predict", finished, image).code == 0
    assert "manifest.json: signed by 'hospital-a' (SHA256:" in cli("verify", finished).out
    assert "trusted: hospital-a (SHA256:" in cli("trust").out
    assert cli("trust", "--remove", "hospital-a").code == 0
    assert cli("predict", finished, image).code == 2


def test_key_of_a_run_can_be_trusted(finished: Path, image: Path, stranger: Callable[[], str], cli: Cli) -> None:
    public = stranger()
    outcome = cli("trust", finished)
    assert signing.fingerprint(signing.read_public(Path(public))) in outcome.out
    assert cli("predict", finished, image).code == 0


def test_file_of_another_size_is_not_read(tmp_path: Path) -> None:
    """A sparse terabyte would take hours."""
    tables = {"data": {"name": "synthetic:8x8x1:4:80", "known": 3}, "method": {"name": "fedproto", "rounds": 1}}
    run = api.run(tables, clients=2, workers=0, model="mlp", partition="iid", out=tmp_path / "run").path
    state = next((run / "clients" / "client-00").iterdir())
    os.truncate(state, 10**12)
    with pytest.raises(UserError, match="is not the file that was signed"):
        api.Run(run).evaluate(workers=0)
    with pytest.raises(UserError, match="it has 1000000000000 bytes"):
        RunFolder(run).sign()


@pytest.mark.parametrize("file", ["model.safetensors", "run.json"])
def test_file_that_is_replaced_with_right_digests_is_refused(
    file: str, finished: Path, image: Path, refused: Refused, cli: Cli
) -> None:
    """The digests inside the files do not notice this; the signature does."""
    if file == "run.json":
        change_json(finished / file, versions={"fedwild": "other"})
    else:
        payload = RunFolder(finished).server()
        next(iter(payload.tensors.values())).add_(1)
        payload.write(finished / file)
    message = f"{str(finished / file)!r} is not the file that was signed"
    assert message in refused("predict", finished, image)
    assert message in refused("predict", finished, image, "--trust-code")
    outcome = cli("verify", finished)
    assert outcome.code == 1 and f"DAMAGED {finished / 'manifest.json'}: {message}" in outcome.out


def test_changed_figures_are_found(finished: Path, cli: Cli) -> None:
    change_json(finished / "result.json", lambda table: table["metrics"].update(auroc=1.0))
    assert "result.json' is not the file that was signed" in cli("verify", finished).out


def test_run_without_a_manifest_is_refused_until_signed(
    finished: Path, image: Path, refused: Refused, cli: Cli
) -> None:
    (finished / "manifest.json").unlink()
    assert "has no manifest.json, so nobody vouches for its model" in refused("predict", finished, image)
    assert "manifest.json: damaged: it is missing, so nobody has signed the run" in cli("verify", finished).out
    assert cli("sign", finished).out.startswith(f"{finished} is signed with your key (SHA256:")
    assert cli("predict", finished, image).code == 0


def test_damaged_and_unfinished_runs_are_not_signed(finished: Path, refused: Refused) -> None:
    flip_bit(finished / "model.safetensors")
    assert "model.safetensors': damaged" in refused("sign", finished)
    assert "is unfinished" in refused("sign", unfinish(finished))


def change_signature(table: dict[str, Any]) -> None:
    table[SIGNED_BY]["signature"] = base64.b64encode(bytes(64)).decode()


@pytest.mark.parametrize(
    "change",
    [
        change_signature,
        lambda table: table.pop(SIGNED_BY),
        lambda table: table.update({SIGNED_BY: "me"}),
        lambda table: table["files"].update({"model.safetensors": ["0" * 64]}),
        lambda table: table.update(files=[]),
    ],
)
def test_forged_manifest_is_refused(change: Callable[[dict[str, Any]], object], finished: Path, cli: Cli) -> None:
    change_json(finished / "manifest.json", change)
    with pytest.raises(UserError, match=r"manifest\.json' has no valid signature: restore it from a copy"):
        read_manifest(finished)
    assert cli("verify", finished).code == 1


def test_signature_of_a_run_folder_is_not_valid_for_a_manifest(finished: Path) -> None:
    """Content that is signed for one purpose cannot be used for another."""
    table: dict[str, Any] = {"files": {}}
    assert signing.signer_of(PURPOSE, table, signing.sign("run 1", table)) is None
    assert signing.signer_of(PURPOSE, table, signing.sign(PURPOSE, table)) == signing.own_key()


def test_model_of_a_strangers_unfinished_run_is_refused(
    finished: Path, image: Path, stranger: Callable[[], str], refused: Refused, cli: Cli
) -> None:
    unfinish(finished)
    assert cli("predict", finished, image).code == 0
    public = stranger()
    assert "is unfinished and was not made by you or somebody you trust" in refused("predict", finished, image)
    assert cli("trust", public).code == 0
    assert cli("predict", finished, image).code == 0


def test_states_of_clients_are_signed(tmp_path: Path, refused: Refused) -> None:
    """With a model per client, the state is part of the model."""
    tables = {"data": {"name": "synthetic:8x8x1:4:80", "known": 3}, "method": {"name": "fedproto", "rounds": 1}}
    run = api.run(tables, clients=2, workers=0, model="mlp", partition="iid", out=tmp_path / "run").path
    states = {str(path.relative_to(run)) for path in (run / "clients").rglob("*.safetensors")}
    manifest = read_manifest(run)
    assert manifest is not None and states == {name for name in manifest.files if name.startswith("clients/")}
    first, second = sorted(states)
    shutil.copy(run / second, run / first)
    x = np.zeros((1, 1, 8, 8), dtype=np.uint8)
    with pytest.raises(UserError, match=r"client-00/.* is not the file that was signed"):
        api.Run(run).predict(x, client="client-00")
    assert api.Run(run).predict(x, client="client-01").labels
    with pytest.raises(UserError, match=r"client-00/.* is not the file that was signed"):
        api.Run(run).evaluate(workers=0)


def test_renaming_a_class_signs_the_new_model_at_every_moment(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(finished)
    model, result = folder.server(), folder.result()
    assert result is not None
    model.info["classes"][0]["name"] = "other"
    with folder.changing(model, {**result, "classes": ["other"]}):
        folder.check_signed(["model.safetensors", "result.json"])
        folder.write_result({**result, "classes": ["other"]})
        folder.check_signed(["model.safetensors", "result.json"])
        model.write(folder.model)
        folder.check_signed(["model.safetensors", "result.json"])
    manifest = read_manifest(finished)
    assert manifest is not None and all(len(digests) == 1 for digests in manifest.files.values())
    folder.check_signed(["model.safetensors", "result.json"])


def test_wrong_keys_and_names_are_refused(finished: Path, tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "text.pub").write_text("no key\n")
    assert "is not a public key (ssh-ed25519): use the signer's signing.pub" in refused("trust", "text.pub")
    (tmp_path / "other.pub").write_text("ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQ== me\n")
    assert "is not a public key (ssh-ed25519)" in refused("trust", "other.pub")
    assert "cannot be read" in refused("trust", "nowhere.pub")
    assert "'../x' is not allowed as a name" in refused("trust", finished, "--name", "../x")
    assert "--remove 'x' is not a trusted key. Trusted: none." in refused("trust", "--remove", "x")
    assert "--name x needs a file" in refused("trust", "--name", "x")


def test_name_of_another_trusted_key_is_refused(stranger: Callable[[], str], refused: Refused, cli: Cli) -> None:
    public = stranger()
    assert cli("trust", public, "--name", "a").code == 0
    assert cli("trust", public, "--name", "a").code == 0
    assert "--name 'a' is the name of another trusted key" in refused("trust", signing.public_file(), "--name", "a")


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
def test_fingerprint_is_that_of_ssh_keygen() -> None:
    shown = subprocess.run(["ssh-keygen", "-lf", signing.public_file()], capture_output=True, text=True, check=True)
    assert signing.fingerprint(signing.own_key() or "") in shown.stdout
