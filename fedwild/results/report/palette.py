"""The colours of the page, light and dark. The hues are those of Okabe and Ito, chosen for colour blindness."""

from __future__ import annotations

COLOURS: dict[str, tuple[str, str]] = {
    "page": ("#f6f7f9", "#12151a"),
    "card": ("#ffffff", "#1a1e25"),
    "ink": ("#1b2027", "#e4e7eb"),
    "muted": ("#545d68", "#a5aeb9"),
    "rule": ("#dfe3e8", "#2e343d"),
    "grid": ("#eceff2", "#262b33"),
    "accent": ("#005a9c", "#7cbcf0"),
    "warn": ("#8a3b00", "#ffb877"),
    "warn-page": ("#fdf1e3", "#33230f"),
    "s0": ("#0072b2", "#5bb0ea"),
    "s1": ("#c44d00", "#f08a4b"),
    "s2": ("#007d5c", "#3fc79b"),
    "s3": ("#a3487b", "#e59ac2"),
    "s4": ("#9a6b00", "#e6b84a"),
    "s5": ("#2a7fb0", "#8fd0f5"),
    "s6": ("#5b4ab0", "#a99cf0"),
    "s7": ("#555d66", "#b5bcc5"),
    "c0": ("#0072b2", "#4aa3e0"),
    "c1": ("#e69f00", "#f0b02e"),
    "c2": ("#009e73", "#2fbf93"),
    "c3": ("#d55e00", "#f07a30"),
    "c4": ("#56b4e9", "#7fcaf5"),
    "c5": ("#cc79a7", "#de93bc"),
    "c6": ("#a89b00", "#d8ca3a"),
    "c7": ("#8c564b", "#c08a7d"),
    "c8": ("#6e3cbe", "#a685ea"),
    "c9": ("#7fa32e", "#b0d65a"),
    "heat": ("#0b5fa5", "#6ab4ee"),
    "on-pale": ("#0d1116", "#f7f8fa"),
    "on-middle": ("#0d1116", "#05080b"),
    "on-full": ("#ffffff", "#05080b"),
}
"""By name: the colours on a light and on a dark page. s0 ... are for series, c0 ... for classes."""


def stylesheet() -> str:
    """Return the rules that set the colours: dark on screens if the system or the page's button asks for it."""
    light, dark = (declarations(theme) for theme in (0, 1))
    preferred = f"@media (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {{ {dark} }} }}"
    return f":root {{ {light} }}\n@media screen {{ {preferred}\n:root[data-theme=dark] {{ {dark} }} }}\n"


def declarations(theme: int) -> str:
    name = ("light", "dark")[theme]
    values = "".join(f"--{key}:{pair[theme]};" for key, pair in COLOURS.items())
    return f"color-scheme:{name};--theme:{name};{values}"
