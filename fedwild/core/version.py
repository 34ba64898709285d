"""The version of fedwild, defined only here."""

__version__ = "0.1.0"
