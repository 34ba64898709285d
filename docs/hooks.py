"""Adds pages to the documentation site whose sources lie outside `docs/`, and points links at them.

Links in the sources are paths in the repository, so that they also work where the files are read as they are.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
    "benchmarks/README.md": "benchmarks.md",
}
LINK = re.compile(r"\]\((?P<path>[^)#:\s]+)(?P<anchor>#[^)\s]*)?\)")


def _examples() -> dict[str, str]:
    """Return the page of each example, by its path in the repository."""
    files = sorted(file for file in (ROOT / "examples").iterdir() if file.suffix in {".py", ".toml"})
    return {f"examples/{file.name}": f"examples/{file.stem}-{file.suffix[1:]}.md" for file in files}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside `docs/`. An example becomes a page with its source."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    for source, page in _examples().items():
        text = (ROOT / source).read_text()
        language = "python" if source.endswith(".py") else "toml"
        files.append(File.generated(config, page, content=f"# {source}\n\n```{language}\n{text}```\n"))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links from paths in the repository to pages of the site."""
    pages = {**PAGES, **_examples()}
    sources = {uri: source for source, uri in pages.items()}
    here = page.file.src_uri
    folder = posixpath.dirname(sources.get(here, f"docs/{here}"))

    def rewrite(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link["path"]))
        uri = pages.get(target, target.removeprefix("docs/"))
        return f"]({posixpath.relpath(uri, posixpath.dirname(here) or '.')}{link['anchor'] or ''})"

    return LINK.sub(rewrite, markdown)
