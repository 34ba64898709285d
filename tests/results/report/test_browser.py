"""The page in a real browser: it loads nothing else, draws everything, and is legible by day and by night."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedwild import api
from fedwild.results.report import write_report
from tests.browser import Visit, open_browser

FIGURES = (
    *("Loss", "Accuracy and open-set figures", "Unknown scores", "ROC", "OSCR", "Reliability", "Confusion matrix"),
    *("Feature map", "Samples by class and client", "Time by phase", "Bytes by phase"),
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of two runs: one model for everyone with long hostile names, and one that discovers classes."""
    from tests.conftest import DISCOVERING
    from tests.tiny import image_file

    folder = tmp_path_factory.mktemp("pages")
    names = {"<script>alert('x')</script> of some length": 0, "b" * 90: 2, "c": 4, "d": 5, "e": 6}
    data = image_file(folder / "own.npz", names, per_class=60)
    tables = {"data": {"known": 4}, "model": {"name": "mlp", "hidden": [8]}, "method": {"rounds": 12}}
    plain = api.run(tables, data=str(data), clients=12, workers=0, out=folder / "plain")
    found = api.run(DISCOVERING, clients=3, workers=0, out=folder / "found")
    return {"plain": write_report(plain), "found": write_report(found)}


@pytest.mark.parametrize("name", ["plain", "found"])
def test_the_page_asks_for_nothing_and_complains_of_nothing(browser: Any, files: dict[str, Path], name: str) -> None:
    with Visit(browser, files[name].as_uri()) as visit:
        outside = [url for url in visit.requests if not url.startswith("data:")]
        assert outside == [files[name].as_uri()]
        assert visit.complaints == []


def test_all_charts_are_there_and_have_a_size(browser: Any, files: dict[str, Path]) -> None:
    with Visit(browser, files["plain"].as_uri()) as visit:
        sizes = visit.ask(
            """() => [...document.querySelectorAll('figure')].map(figure => {
                const chart = figure.querySelector('svg.chart, .sheet');
                const box = chart ? chart.getBoundingClientRect() : {width: 0, height: 0};
                return [figure.querySelector('b').textContent, box.width, box.height,
                        chart ? chart.childElementCount : 0];
            })"""
        )
    drawn = {title: (width, height, parts) for title, width, height, parts in sizes}
    for title in FIGURES:
        width, height, parts = drawn[title]
        assert width > 200, title
        assert height > 25, title
        assert parts >= 4 or title == "Feature map", title


@pytest.mark.parametrize("name", ["plain", "found"])
def test_no_text_of_a_chart_leaves_its_box_or_covers_another(browser: Any, files: dict[str, Path], name: str) -> None:
    with Visit(browser, files[name].as_uri()) as visit:
        visit.ask("() => document.querySelectorAll('details').forEach(d => d.open = true)")
        problems = visit.ask(
            """() => {
                const found = [];
                for (const chart of document.querySelectorAll('svg.chart')) {
                    const frame = chart.getBoundingClientRect();
                    const texts = [...chart.querySelectorAll('text')].map(t => [t, t.getBoundingClientRect()]);
                    for (const [text, box] of texts)
                        if (box.left < frame.left - 2 || box.right > frame.right + 2 ||
                            box.top < frame.top - 2 || box.bottom > frame.bottom + 2)
                            found.push(chart.getAttribute('aria-label') + ': outside: ' + text.textContent);
                    for (let i = 0; i < texts.length; i++)
                        for (let j = i + 1; j < texts.length; j++) {
                            const [a, b] = [texts[i][1], texts[j][1]];
                            const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
                            const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
                            if (across > 2 && down > 4)
                                found.push(chart.getAttribute('aria-label') + ': ' + texts[i][0].textContent +
                                           ' covers ' + texts[j][0].textContent);
                        }
                }
                return found;
            }"""
        )
    assert problems == []


@pytest.mark.parametrize("name", ["plain", "found"])
def test_a_phone_needs_no_scrolling_sideways(browser: Any, files: dict[str, Path], name: str) -> None:
    with Visit(browser, files[name].as_uri(), width=390) as visit:
        visit.ask("() => document.querySelectorAll('details').forEach(d => d.open = true)")
        assert visit.ask("() => document.documentElement.scrollWidth") <= 390
        assert visit.ask("() => document.body.scrollWidth") <= 390


CONTRAST = """() => {
    const numbers = text => text.match(/[\\d.]+/g).map(Number);
    const clear = text => text === 'transparent' || numbers(text)[3] === 0;
    const behind = element => {
        for (let e = element; e; e = e.parentElement) {
            const colour = getComputedStyle(e).backgroundColor;
            if (!clear(colour)) return colour;
        }
        return 'rgb(255, 255, 255)';
    };
    const light = colour => {
        const [r, g, b] = numbers(colour).slice(0, 3).map(v => {
            const share = v / 255;
            return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const worst = {};
    const look = (selector, property) => {
        for (const element of document.querySelectorAll(selector)) {
            const [a, b] = [light(getComputedStyle(element)[property]), light(behind(element))];
            const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
            worst[selector] = Math.min(worst[selector] || 99, ratio);
        }
    };
    for (const selector of ['h1', 'h2', 'dd', 'dt', 'nav a', 'summary', 'figcaption span', '.tiles span', 'td', 'th',
                            '.key li', 'button'])
        look(selector, 'color');
    look('text.tick:not([class*=on-])', 'fill');
    look('text.name', 'fill');
    look('path.line', 'stroke');
    return worst;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_lines_stand_out_in_both_themes(browser: Any, files: dict[str, Path], scheme: str) -> None:
    with Visit(browser, files["plain"].as_uri(), scheme=scheme) as visit:
        page = visit.ask("() => getComputedStyle(document.body).backgroundColor")
        worst = visit.ask(CONTRAST)
    level = sum(map(int, re.findall(r"\d+", page)[:3])) / 3
    assert (level > 200) == (scheme == "light")
    assert len(worst) >= 14
    for selector, ratio in worst.items():
        assert ratio >= (3 if selector == "path.line" else 4.5), (selector, ratio)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_button_changes_the_theme_and_back(browser: Any, files: dict[str, Path], scheme: str) -> None:
    colour = "() => getComputedStyle(document.body).backgroundColor"
    with Visit(browser, files["plain"].as_uri(), scheme=scheme) as visit:
        first = visit.ask(colour)
        visit.page.click("#theme")
        second = visit.ask(colour)
        visit.page.click("#theme")
        assert first != second
        assert visit.ask(colour) == first


def test_a_client_can_be_brought_out(browser: Any, files: dict[str, Path]) -> None:
    with Visit(browser, files["plain"].as_uri()) as visit:
        visit.page.click("summary:has-text('Loss of each of the 12 clients')")
        visit.page.select_option("select.switch", "client-03")
        chosen = visit.ask("() => [...document.querySelectorAll('path.chosen')].map(p => p.dataset.client)")
        assert chosen == ["client-03"]
        assert visit.ask("() => document.querySelectorAll('path.faded').length") == 11


def test_print_is_light_even_from_a_dark_screen(browser: Any, files: dict[str, Path]) -> None:
    with Visit(browser, files["plain"].as_uri(), scheme="dark") as visit:
        visit.page.emulate_media(media="print", color_scheme="dark")
        assert visit.ask("() => getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert visit.ask("() => getComputedStyle(document.querySelector('nav')).display") == "none"
