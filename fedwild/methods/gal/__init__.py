"""GAL: discovers novel classes among unlabelled samples and learns them."""

from fedwild.methods.gal.method import GAL

__all__ = ["GAL"]
