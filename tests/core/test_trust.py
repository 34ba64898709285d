"""Import paths are refused before anything is imported, unless every scope allows them."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from fedwild.core.trust import (
    UntrustedCode,
    check_import,
    import_paths,
    is_code_trusted,
    only,
    only_in_process,
    trusting_code,
)
from fedwild.models import MODELS
from fedwild.training.objectives import OBJECTIVES


def is_allowed(path: str) -> bool:
    try:
        check_import("model", path)
    except UntrustedCode:
        return False
    return True


def test_the_users_own_config_may_name_any_path() -> None:
    assert is_allowed("subprocess:Popen")


def test_a_scope_allows_only_its_paths_and_says_why() -> None:
    with only(["a:B"], "which is not in the list"):
        assert is_allowed("a:B")
        with pytest.raises(UntrustedCode) as caught:
            check_import("model", "a:C")
    assert str(caught.value) == "model 'a:C' is an import path, which is not in the list."
    assert is_allowed("a:C")


def test_nested_scopes_must_all_allow_a_path() -> None:
    with only(["a:B", "a:C"], "outer"), only(["a:B", "a:D"], "inner"):
        assert [path for path in ("a:B", "a:C", "a:D") if is_allowed(path)] == ["a:B"]


def test_a_restricted_process_restricts_its_threads() -> None:
    found: list[bool] = []

    def ask() -> None:
        thread = threading.Thread(target=lambda: found.append(is_allowed("a:B")))
        thread.start()
        thread.join()

    with only([], "of this thread"):
        ask()
    with only_in_process([], "of this process"):
        ask()
    ask()
    assert found == [True, False, True]


@pytest.mark.parametrize("registry", [MODELS, OBJECTIVES])
def test_the_module_of_a_refused_path_is_not_imported(
    registry: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "ran"
    (tmp_path / "hostile_module.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with only([], "which is refused"), pytest.raises(UntrustedCode, match="hostile_module:Net"):
        registry.make("hostile_module:Net", {})  # type: ignore[attr-defined]
    assert not marker.exists()
    assert "hostile_module" not in sys.modules


def test_code_is_trusted_only_inside() -> None:
    with trusting_code():
        assert is_code_trusted()
    assert not is_code_trusted()


def test_the_import_paths_of_a_config_are_found_in_every_section_but_the_data() -> None:
    table = {
        "seed": 3,
        "data": {"name": "synthetic:8x8x1:4:80"},
        "model": {"name": "own:Net"},
        "score": {"name": "own:Score"},
        "method": {"name": "fedavg"},
        "objective": {"name": 3},
    }
    assert import_paths(table) == ["own:Net", "own:Score"]
