"""Gains: welcomes newcomers, one at a time, and finds out what each of them brings."""

from fedwild.methods.gains.method import Gains

__all__ = ["Gains"]
