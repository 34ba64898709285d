"""The app that Flower runs at a site: only fedwild's own code passes."""

from __future__ import annotations

import hashlib
import io
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Message, MessageType, RecordDict
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import get_fab_metadata
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import start_client_internal as internal
from flwr.supernode.nodestate import NodeStateFactory

from fedwild.sites.app import APP_ID, CLIENT, is_own_app, write_app
from fedwild.sites.processes import Child
from fedwild.sites.site import UNVERIFIED, watch
from fedwild.sites.supernode import check_flower, pull_checked

Files = dict[str, bytes]


def own_app(folder: Path, **options: str) -> bytes:
    """Return an app as Flower packs it."""
    write_app(folder / "app", options.pop("config", "seed = 3\n"), **options)
    return build_fab_from_disk(folder / "app")


def files_of(content: bytes) -> Files:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(*files: tuple[str, bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in files:
            archive.writestr(name, content)
    return data.getvalue()


def test_the_app_that_fedwild_writes_passes(tmp_path: Path) -> None:
    assert is_own_app(own_app(tmp_path))
    assert is_own_app(own_app(tmp_path / "other", config="[method]\nlr = 1\n", socket='/a "b"/c', out="runs/x"))
    assert get_fab_metadata(own_app(tmp_path / "third"))[0] == APP_ID


def replaced(name: str, old: bytes, new: bytes) -> Callable[[Files], Files]:
    return lambda files: {**files, name: files[name].replace(old, new)}


@pytest.mark.parametrize(
    "change",
    [
        lambda files: {**files, "fedwild_app/client.py": CLIENT.encode() + b"import os\n"},
        lambda files: {**files, "fedwild_app/__init__.py": b"import os\n"},
        lambda files: {**files, "fedwild_app/server.py": b""},
        lambda files: {**files, "torch.py": b"import os\n"},
        lambda files: {**files, "fedwild/__init__.py": b""},
        lambda files: {name: text for name, text in files.items() if name != "fedwild_app/client.py"},
        replaced("pyproject.toml", b"fedwild_app.client:app", b"os:system"),
        replaced("pyproject.toml", b"dependencies = []", b'dependencies = ["evil"]'),
        replaced("pyproject.toml", b'publisher = "fedwild"', b'publisher = "someone"'),
        replaced("pyproject.toml", b"[tool.flwr.app.components]", b'[tool.flwr.app.components]\nagentapp = "a:b"'),
        replaced("pyproject.toml", b"[project]", b"[project"),
        lambda files: {**files, "fedwild_app/config.toml": b"#" * 20_000_000},
    ],
)
def test_an_app_with_other_code_does_not_pass(change: Callable[[Files], Files], tmp_path: Path) -> None:
    files = files_of(own_app(tmp_path))
    assert is_own_app(packed(*files.items()))
    assert not is_own_app(packed(*change(files).items()))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_file_that_occurs_twice_does_not_pass(tmp_path: Path) -> None:
    files = list(files_of(own_app(tmp_path)).items())
    client = next(entry for entry in files if entry[0].endswith("client.py"))
    assert not is_own_app(packed((client[0], b"import os\n"), *files))


@pytest.mark.parametrize("content", [b"", b"PK", b"PK\x05\x06" + bytes(18), zlib.compress(b"x" * 100)])
def test_what_is_no_archive_does_not_pass(content: bytes) -> None:
    assert not is_own_app(content)


def test_flower_has_what_is_replaced() -> None:
    check_flower()


def test_an_unknown_flower_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(internal, "_verify_fab")
    with pytest.raises(SystemExit, match="install flwr"):
        check_flower()


@pytest.mark.parametrize(
    ("fab_id", "version", "named"),
    [(APP_ID, "0.2.0", True), ("evil/app", "0.2.0", False), (APP_ID, "1/../../x", False)],
)
def test_every_app_is_verified_under_fedwilds_name(fab_id: str, version: str, named: bool) -> None:
    """Flower's function gets entities that it must verify, and an app without a name of ours is never verified."""
    seen: dict[str, Any] = {}

    def pull(**arguments: Any) -> int:
        run = arguments["get_run"](7)
        fab = arguments["get_fab"]("digest", 7)
        seen.update(run=run, fab=fab, trusted=arguments["trusted_entities"])
        return 7

    answer = pull_checked(pull)(
        get_run=lambda number: SimpleNamespace(fab_id=fab_id, fab_version=version),
        get_fab=lambda digest, number: Fab(digest, b"content", {"valid_license": "Valid", "key": "{}"}),
        trusted_entities=None,
        state=None,
    )
    assert answer == 7
    assert seen["trusted"]
    assert bool(seen["fab"].verifications.get("valid_license")) is named
    assert seen["fab"].content == b"content"


@pytest.mark.parametrize("is_own", [True, False])
def test_flowers_supernode_gives_no_work_to_another_app(
    is_own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower's own function and state: the app that a coordinator sends gets a task, or an error is its answer."""
    content = own_app(tmp_path)
    if not is_own:
        files = files_of(content)
        content = packed(*{**files, "fedwild_app/client.py": b"open('ran', 'w')\n"}.items())
    fab = Fab(hashlib.sha256(content).hexdigest(), content, {"valid_license": ""})
    run = Run.create_empty(7)
    run.fab_id, run.fab_version, run.fab_hash = APP_ID, "0.2.0", fab.hash_str
    objects = ObjectStoreFactory()
    state = NodeStateFactory(objects).state()
    state.set_node_id(1)
    for identity in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, identity, 7)
    request = Message(RecordDict(), dst_node_id=1, message_type=MessageType.QUERY)
    request.metadata.__dict__.update(_run_id=7, _message_id="m", _src_node_id=2)
    replies: list[Message] = []
    monkeypatch.setattr(internal, "_insert_message", lambda message, state, store: replies.append(message))
    monkeypatch.setattr(internal, "_verify_fab", lambda fab, trusted_entities: is_own_app(fab.content))
    pull_checked(internal._pull_and_store_message)(
        state=state,
        object_store=objects.store(),
        node_config={},
        receive=lambda: (request, get_object_tree(request)),
        get_run=lambda number: run,
        get_fab=lambda digest, number: fab,
        pull_object=lambda number, key: get_all_nested_objects(request)[key].deflate(),
        confirm_message_received=lambda number, key: None,
        trusted_entities=None,
    )
    if is_own:
        assert replies == [] and state.get_run(7) is not None
    else:
        assert [reply.error.reason for reply in replies] == ["The FAB could not be verified."]
        assert state.get_run(7) is None


def test_the_operator_is_told_once_about_a_refused_app(tmp_path: Path) -> None:
    code = f"import time; print({UNVERIFIED!r}, flush=True); time.sleep(1.5)"
    child = Child([sys.executable, "-c", code], tmp_path / "log", tmp_path)
    notices: list[str] = []
    try:
        watch(child, notices.append)
    finally:
        child.stop()
    assert notices == ["refused: the coordinator sent an app whose code is not that of this version of fedwild"]
