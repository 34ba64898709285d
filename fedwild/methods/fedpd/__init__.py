"""FedPD: federated open set recognition with parameter disentanglement."""

from fedwild.methods.fedpd.method import FedPD

__all__ = ["FedPD"]
