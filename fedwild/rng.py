"""The random source: every draw is derived from (run seed, phase, round, client, purpose).

Nothing depends on which worker runs a client or in which order, so results are bit-equal for any engine and
any number of workers, and a resumed run draws what the undisturbed one would have drawn.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Rng:
    """A key into the tree of random streams; cheap to copy, never advanced."""

    seed: int
    path: tuple[str, ...] = ()

    def child(self, *names: str | int) -> Rng:
        """The stream below this one called `names`."""
        return Rng(self.seed, self.path + tuple(str(name) for name in names))

    def number(self, purpose: str) -> int:
        """A 63-bit number for one purpose."""
        key = "\x1f".join((str(self.seed), *self.path, purpose)).encode()
        return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") >> 1

    def torch(self, purpose: str) -> torch.Generator:
        """A fresh CPU generator for one purpose."""
        return torch.Generator().manual_seed(self.number(purpose))

    def numpy(self, purpose: str) -> np.random.Generator:
        """A fresh numpy generator for one purpose."""
        return np.random.default_rng(self.number(purpose))

    def seed_torch(self, purpose: str) -> None:
        """Seed torch's global generators: for layers that draw without asking (initialisation, dropout)."""
        # torch.manual_seed also queues a call for every absent accelerator, which costs a millisecond.
        torch.default_generator.manual_seed(self.number(purpose))
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(self.number(purpose))
