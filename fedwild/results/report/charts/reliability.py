"""Reliability diagrams: accuracy by confidence."""

from __future__ import annotations

from fedwild.core.text import percent
from fedwild.results.report.calibration import Calibration
from fedwild.results.report.charts.frame import Axis, Frame, group, legend, line, symbol
from fedwild.results.report.markup import Html, joined, tag


def reliability_chart(calibration: Calibration) -> Html:
    """Return a bar for each bin of confidence. Bars end on the diagonal if confidence equals accuracy."""
    frame = Frame(Axis("confidence", 0, 1, percent=True), Axis("accuracy", 0, 1, percent=True), height=300)
    content = []
    for low, high, count, accuracy in calibration.rows():
        left, top = float(frame.across(low)), float(frame.up(accuracy))
        width = float(frame.across(high)) - left
        text = f"confidence {100 * low:.0f} to {100 * high:.0f} %: {percent(accuracy)} of {count} correct"
        bar = tag("rect", tag("title", text), x=left + 1, y=top, width=width - 2, height=frame.bottom - top)
        content.append(group(bar, class_="pale s0"))
    content.append(line(frame.left, frame.bottom, frame.right, frame.top, "chance"))
    bar = symbol(group(tag("rect", x=5, y=1, width=16, height=10), class_="pale s0"))
    entries = [
        (bar, f"answers, ECE {percent(calibration.error)}"),
        (symbol(line(1, 6, 25, 6, "chance")), "perfect calibration"),
    ]
    return joined([frame.draw("reliability diagram", *content), legend(entries)])
