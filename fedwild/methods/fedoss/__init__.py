"""FedOSS: federated open set recognition via inter-client discrepancy and collaboration."""

from fedwild.methods.fedoss.method import FedOSS

__all__ = ["FedOSS"]
