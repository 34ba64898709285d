"""The page in a real browser: it loads nothing else, draws everything, and is legible in both themes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedwild import api
from fedwild.results.report import write_report
from tests.browser import Visit, open_browser
from tests.tiny import image_file

pytestmark = pytest.mark.slow

FIGURES = (
    *("Loss", "Accuracy and open-set metrics", "Unknown scores", "ROC", "OSCR", "Reliability", "Confusion matrix"),
    *("Feature map", "Samples by class and client", "Time by phase", "Bytes by phase"),
)
NAMES = ("plain", "discovering")
BACKGROUND = "() => getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def visits(tmp_path_factory: pytest.TempPathFactory, discovered_once: Path) -> Iterator[dict[str, Visit]]:
    """The open pages of two runs: one with long hostile names, and one that discovers classes.

    Tests share them, and leave the width, theme and media as they were.
    """
    folder = tmp_path_factory.mktemp("pages")
    with open_browser() as browser:
        names = {"<script>alert('x')</script> of some length": 0, "b" * 90: 2, "c": 4, "d": 5, "e": 6}
        data = image_file(folder / "own.npz", names, per_class=60)
        tables = {"data": {"known": 4}, "model": {"name": "mlp", "hidden": [8]}, "method": {"rounds": 12}}
        plain = api.run(tables, data=str(data), clients=12, workers=0, out=folder / "plain")
        files = (write_report(plain), write_report(discovered_once, folder / "discovering.html"))
        yield {name: Visit(browser, file.as_uri()) for name, file in zip(NAMES, files, strict=True)}


@pytest.fixture
def plain(visits: dict[str, Visit]) -> Visit:
    return visits["plain"]


@pytest.fixture(params=NAMES)
def visit(visits: dict[str, Visit], request: pytest.FixtureRequest) -> Visit:
    return visits[request.param]


def test_page_requests_nothing_else_and_reports_no_errors(visit: Visit) -> None:
    assert [url for url in visit.requests if not url.startswith("data:")] == [visit.page.url]
    assert visit.complaints == []


def test_all_charts_have_a_size(plain: Visit) -> None:
    sizes = plain.ask(
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


def open_details(visit: Visit) -> None:
    visit.ask("() => document.querySelectorAll('details').forEach(d => d.open = true)")


def test_texts_of_charts_stay_inside_and_do_not_overlap(visit: Visit) -> None:
    open_details(visit)
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


def test_page_fits_the_width_of_a_phone(visit: Visit) -> None:
    open_details(visit)
    wide = visit.page.viewport_size
    visit.page.set_viewport_size({"width": 390, "height": 900})
    widths = visit.ask("() => [document.documentElement.scrollWidth, document.body.scrollWidth]")
    visit.page.set_viewport_size(wide)
    assert max(widths) <= 390


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
def test_text_and_lines_have_contrast_in_both_themes(plain: Visit, scheme: str) -> None:
    plain.page.emulate_media(color_scheme=scheme)
    page, worst = plain.ask(BACKGROUND), plain.ask(CONTRAST)
    plain.page.emulate_media(color_scheme="light")
    level = sum(map(int, re.findall(r"\d+", page)[:3])) / 3
    assert (level > 200) == (scheme == "light")
    assert len(worst) >= 14
    for selector, ratio in worst.items():
        assert ratio >= (3 if selector == "path.line" else 4.5), (selector, ratio)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_button_switches_the_theme_and_back(plain: Visit, scheme: str) -> None:
    plain.page.emulate_media(color_scheme=scheme)
    colours = [plain.ask(BACKGROUND)]
    for _ in range(2):
        plain.page.click("#theme")
        colours.append(plain.ask(BACKGROUND))
    plain.ask("() => delete document.documentElement.dataset.theme")
    plain.page.emulate_media(color_scheme="light")
    first, second, third = colours
    assert first != second
    assert first == third


def test_menu_highlights_a_client(plain: Visit) -> None:
    open_details(plain)
    plain.page.select_option("select.switch", "client-03")
    chosen = plain.ask("() => [...document.querySelectorAll('path.chosen')].map(p => p.dataset.client)")
    assert chosen == ["client-03"]
    assert plain.ask("() => document.querySelectorAll('path.faded').length") == 11


def test_print_is_light_even_in_the_dark_theme(plain: Visit) -> None:
    plain.page.emulate_media(media="print", color_scheme="dark")
    background = plain.ask(BACKGROUND)
    navigation = plain.ask("() => getComputedStyle(document.querySelector('nav')).display")
    plain.page.emulate_media(media="screen", color_scheme="light")
    assert (background, navigation) == ("rgb(255, 255, 255)", "none")
