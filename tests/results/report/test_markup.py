"""Text never becomes markup."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from fedwild.results.report.markup import Html, joined, prose, short, tag


class Reader(HTMLParser):
    """Collects what a browser reads."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


@given(st.text(st.characters(codec="utf-8", exclude_characters="\r\x00")))
def test_any_text_is_escaped_in_content_and_attributes(text: str) -> None:
    reader = Reader()
    reader.feed(tag("p", text, title=text))
    reader.close()
    assert reader.tags == ["p"]
    assert reader.text == text
    assert reader.attributes == [("title", text)]


def test_only_children_that_are_not_markup_are_escaped() -> None:
    assert joined([Html("<b>x</b>"), "<i>", None, 3]) == "<b>x</b>&lt;i&gt;3"


def test_attributes_have_dashes_for_underscores_and_none_is_omitted() -> None:
    assert tag("path", stroke_width=1.25, class_="a", fill=None) == '<path stroke-width="1.2" class="a"></path>'
    assert tag("details", open=True) == "<details open></details>"
    assert tag("details", open=False) == "<details></details>"


def test_coordinates_have_at_most_one_decimal() -> None:
    assert [short(value) for value in (3.0, 3.14159, -0.26)] == ["3", "3.1", "-0.3"]


def test_words_between_backticks_are_code() -> None:
    assert prose("use `a <b>` now") == "use <code>a &lt;b&gt;</code> now"
    assert prose("<i>") == "&lt;i&gt;"
