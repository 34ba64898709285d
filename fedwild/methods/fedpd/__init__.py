"""FedPD: subnetworks (`subnetworks`), matching (`solvers`, `matching`), parts, means, and the two phases."""

from fedwild.methods.fedpd.method import FedPD

__all__ = ["FedPD"]
