"""The documentation site is complete, works without a network, and can be searched when it is opened from a file."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import fedwild
from fedwild import contract
from tests.browser import Visit, open_browser

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
FOREIGN = re.compile(r"\s*(https?:)?//")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it. With --strict, a broken link or a missing page ends the build."""
    folder = tmp_path_factory.mktemp("documentation") / "site"
    command = [sys.executable, "-m", "mkdocs", "--quiet", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert built.stderr == ""
    return folder


class Loads(HTMLParser):
    """Collects the addresses that a page loads: not its links, but scripts, styles, fonts, images and frames."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {"src", "srcset", "data", "poster"} | ({"href"} if tag in {"link", "use", "image"} else set())
        self.addresses += [value or "" for name, value in attrs if name in names]


def test_every_page_is_built_and_in_the_search_index(site: Path) -> None:
    pages = {file.relative_to(ROOT / "docs").with_suffix(".html") for file in (ROOT / "docs").rglob("*.md")}
    extra = ["contributing", "reporting", "changelog", "benchmarks", "examples/own_method-py", "examples/sites-toml"]
    built = pages | {Path(f"{name}.html") for name in extra}
    assert [page for page in built if not (site / page).is_file()] == []
    index = json.loads((site / "search" / "search_index.json").read_text())
    places = {document["location"] for document in index["docs"]}
    assert {page.as_posix() for page in built} - places == set()


def test_the_public_names_are_in_the_reference(site: Path) -> None:
    def missing(page: str, module: str, names: list[str]) -> list[str]:
        text = (site / "api" / page).read_text()
        return [name for name in names if f'id="{module}.{name}"' not in text]

    assert missing("index.html", "fedwild", [name for name in fedwild.__all__ if name != "__version__"]) == []
    assert missing("contract.html", "fedwild.contract", contract.__all__) == []


def test_no_page_loads_anything_from_the_network(site: Path) -> None:
    for file in site.rglob("*.html"):
        loads = Loads()
        loads.feed(file.read_text())
        assert len(loads.addresses) > 3
        assert [address for address in loads.addresses if FOREIGN.match(address)] == [], file
    for file in site.rglob("*.css"):
        addresses = re.findall(r"(?:url\(|@import)\s*['\"]?([^'\")\s]+)", file.read_text())
        assert [address for address in addresses if FOREIGN.match(address)] == [], file


def test_the_site_can_be_searched_when_it_is_opened_from_a_file(site: Path) -> None:
    with open_browser() as browser, Visit(browser, (site / "methods" / "fedavg.html").as_uri()) as visit:
        visit.page.click("input.md-search__input")
        visit.page.keyboard.type("threshold")
        visit.page.wait_for_selector(".md-search-result__item")
        assert [url for url in visit.requests if not url.startswith(("file:", "data:"))] == []
        assert visit.complaints == []
