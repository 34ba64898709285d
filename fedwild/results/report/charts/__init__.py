"""Small charts as SVG: lines, histograms, bars, heat maps and points.

Colours are CSS custom properties, so that charts follow the page's theme. Series differ by dashes or markers too.
"""
