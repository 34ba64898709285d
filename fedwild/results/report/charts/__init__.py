"""Light charts as SVG: axes, lines, histograms, bars, heat maps and points.

Colours are CSS custom properties, so that a chart follows the page's theme; what colour tells apart, dashes or marks
tell apart too.
"""
