"""Random streams: every draw is derived from (run seed, phase, round, client, purpose).

Draws do not depend on which worker runs a client, nor on the order of clients. Results are therefore bit-equal for
any engine and any number of workers, and a resumed run draws the same numbers as an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

# Exchanging NumPy's generator takes one microsecond; saving and restoring its state takes a hundred.
_SPARE: list[np.random.MT19937] = []


@dataclass(frozen=True)
class Rng:
    """A key in the tree of random streams; immutable and cheap to copy."""

    seed: int
    path: tuple[str, ...] = ()

    def child(self, *names: str | int) -> Rng:
        """Return the key below this one with these names."""
        return Rng(self.seed, self.path + tuple(str(name) for name in names))

    def number(self, purpose: str) -> int:
        """Return a 63-bit number for one purpose."""
        key = "\x1f".join((str(self.seed), *self.path, purpose)).encode()
        return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") >> 1

    def torch(self, purpose: str) -> torch.Generator:
        """Return a new CPU generator for one purpose."""
        return torch.Generator().manual_seed(self.number(purpose))

    def numpy(self, purpose: str) -> np.random.Generator:
        """Return a new NumPy generator for one purpose."""
        return np.random.default_rng(self.number(purpose))

    def sklearn(self, purpose: str) -> int:
        """Return a number for scikit-learn's `random_state`."""
        return self.number(purpose) & 0xFFFFFFFF

    @contextmanager
    def seeded(self, purpose: str) -> Iterator[None]:
        """Seed the global generators of torch, NumPy and Python inside the block; restore them afterwards.

        For code that draws from global generators: initialisation, dropout, a library's defaults.
        """
        number = self.number(purpose)
        before, before_python = torch.get_rng_state(), random.getstate()
        before_numpy = np.random.get_bit_generator()  # type: ignore[attr-defined]
        spare = _SPARE.pop() if _SPARE else np.random.MT19937(0)
        on_cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        before_cuda = torch.cuda.get_rng_state_all() if on_cuda else []
        # torch.manual_seed also queues a call for every absent accelerator, which costs a millisecond.
        torch.default_generator.manual_seed(number)
        np.random.RandomState(spare).seed(number & 0xFFFFFFFF)
        np.random.set_bit_generator(spare)  # type: ignore[attr-defined]
        random.seed(number)
        if on_cuda:
            torch.cuda.manual_seed_all(number)
        try:
            yield
        finally:
            torch.set_rng_state(before)
            np.random.set_bit_generator(before_numpy)  # type: ignore[attr-defined]
            _SPARE.append(spare)
            random.setstate(before_python)
            if on_cuda:
                torch.cuda.set_rng_state_all(before_cuda)
