"""Splits an update into chunks and tracks received ones; the driver handles the bytes."""

from __future__ import annotations

from dataclasses import dataclass, field

from federation.errors import WireError


def chunk_count(size: int, chunk_bytes: int) -> int:
    """Number of chunks of an update of `size` bytes."""
    return -(-size // chunk_bytes)


def chunk_range(size: int, chunk_bytes: int, n: int) -> slice:
    """Return where chunk n lies in the bytes."""
    return slice(n * chunk_bytes, min(size, (n + 1) * chunk_bytes))


@dataclass
class ChunkAssembly:
    """Which chunks of one update are here; chunks may come in any order and more than once."""

    size: int
    chunk_bytes: int
    received: set[int] = field(default_factory=set)

    def offset(self, n: int, length: int) -> int:
        """Validate chunk n and return where its bytes belong; call `add` once they are written.

        Raises:
            WireError: for a number or a length that the announced size does not allow.
        """
        count = chunk_count(self.size, self.chunk_bytes)
        if not 0 <= n < count:
            raise WireError(f"got chunk {n}, but the update has only {count}")
        place = chunk_range(self.size, self.chunk_bytes, n)
        if length != place.stop - place.start:
            raise WireError(f"chunk {n} has {length:,} bytes, expected {place.stop - place.start:,}")
        return int(place.start)

    def add(self, n: int) -> None:
        """Note that chunk n is written."""
        self.received.add(n)

    @property
    def first_missing(self) -> int | None:
        """The lowest chunk that is not here, or None when all are."""
        count = chunk_count(self.size, self.chunk_bytes)
        return next((n for n in range(count) if n not in self.received), None)

    @property
    def complete(self) -> bool:
        """Whether every chunk is here."""
        return len(self.received) == chunk_count(self.size, self.chunk_bytes)
