"""Reliability diagrams: how often answers of a given confidence are right."""

from __future__ import annotations

from fedwild.results.report.calibration import Calibration
from fedwild.results.report.charts.frame import Axis, Frame, group, key, line, sign
from fedwild.results.report.markup import Html, joined, tag


def reliability_chart(calibration: Calibration) -> Html:
    """A bar for each bin of confidence; on the diagonal, confidence says how often answers are right."""
    frame = Frame(
        Axis("confidence", 0, 1, percent=True), Axis("share of right answers", 0, 1, percent=True), height=300
    )
    content = []
    for low, high, count, right in calibration.rows():
        left, top = float(frame.across(low)), float(frame.up(right))
        width = float(frame.across(high)) - left
        told = f"confidence {100 * low:.0f} to {100 * high:.0f} %: {100 * right:.1f} % of {count} right"
        bar = tag("rect", tag("title", told), x=left + 1, y=top, width=width - 2, height=frame.bottom - top)
        content.append(group(bar, class_="pale s0"))
    content.append(line(frame.left, frame.bottom, frame.right, frame.top, "chance"))
    answers = sign(group(tag("rect", x=5, y=1, width=16, height=10), class_="pale s0"))
    entries = [
        (answers, f"answers; ECE {100 * calibration.error:.1f} %"),
        (sign(line(1, 6, 25, 6, "chance")), "confidence as it should be"),
    ]
    return joined([frame.drawn("reliability diagram", *content), key(entries)])
