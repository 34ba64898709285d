"""The accepted replies of a round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fedwild.core.payload import Payload


@dataclass(frozen=True)
class Reply:
    """A client's accepted answer."""

    client: str
    payload: Payload

    @property
    def samples(self) -> int:
        """How many training samples stand behind this reply."""
        return int(self.payload.info["samples"])


class Replies:
    """The round's accepted replies in the order of the clients' names, read one at a time.

    Every pass reads them anew, one at a time, so that a round costs the same for ten clients and ten thousand, and
    a merge may change what it is given.
    """

    def __init__(self, readers: dict[str, Callable[[], Payload]]) -> None:
        self._readers = dict(sorted(readers.items()))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._readers)

    def __len__(self) -> int:
        return len(self._readers)

    def __iter__(self) -> Iterator[Reply]:
        for name, read in self._readers.items():
            yield Reply(name, read())
