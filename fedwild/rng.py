"""The random source: every draw is derived from (run seed, phase, round, client, purpose).

Nothing depends on which worker runs a client or in which order, so results are bit-equal for any engine and
any number of workers, and a resumed run draws what the undisturbed one would have drawn.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

# Exchanging numpy's generator takes a microsecond; copying its state out and in would take a hundred.
_SPARE: list[np.random.MT19937] = []


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

    def sklearn(self, purpose: str) -> int:
        """A number that scikit-learn takes as `random_state`."""
        return self.number(purpose) & 0xFFFFFFFF

    @contextmanager
    def seeded(self, purpose: str) -> Iterator[None]:
        """Inside, torch's, numpy's and Python's own generators follow this key; afterwards they are as they were.

        For what draws without asking: initialisation, dropout, a library's defaults.
        """
        number = self.number(purpose)
        before, before_python = torch.get_rng_state(), random.getstate()
        before_numpy = np.random.get_bit_generator()  # type: ignore[attr-defined]
        spare = _SPARE.pop() if _SPARE else np.random.MT19937(0)
        on_cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        before_cuda = torch.cuda.get_rng_state_all() if on_cuda else []
        # torch.manual_seed would also queue a call for every absent accelerator, which costs a millisecond.
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
