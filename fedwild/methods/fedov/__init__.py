"""FedOV: one-shot federated learning by votes of open-set classifiers."""

from fedwild.methods.fedov.method import DistilledFedOV, FedOV

__all__ = ["DistilledFedOV", "FedOV"]
