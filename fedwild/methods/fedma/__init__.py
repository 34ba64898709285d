"""FedMA: matching of neurons (`bayes`), networks of any width (`widths`), layers, and the round."""

from fedwild.methods.fedma.method import FedMA

__all__ = ["FedMA"]
