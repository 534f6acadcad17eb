"""Models on their way to devices: read once where many ask, verified while they are sent, and reported if damaged."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

from aggregator_api.errors import BlobError
from aggregator_api.storage.blob_cache import BlobCache, in_pieces
from aggregator_api.storage.blobs import BlobStore


class Downloads:
    """Reads blobs for whoever asks for them over REST."""

    def __init__(self, blobs: BlobStore, cache: BlobCache, report_damage: Callable[[str, str], None]) -> None:
        """Put the parts together; `report_damage` is told the sha256 of a missing or damaged blob, and the reason."""
        self._blobs = blobs
        self._cache = cache
        self._report_damage = report_damage

    def size(self, sha256: str) -> int:
        """Return how many bytes a blob has.

        Raises:
            BlobError: if it is missing.
        """
        with self._reported(sha256):
            return self._blobs.size(sha256)

    def pieces(self, sha256: str, start: int, stop: int) -> AsyncIterator[bytes] | Iterator[bytes]:
        """Return the bytes from `start` to before `stop`.

        A large blob that is sent whole is verified meanwhile, and cut short if it is damaged; of a part of it only the
        receiver knows the rest.

        Raises:
            BlobError: if it is missing, or damaged and small.
        """
        with self._reported(sha256):
            whole = self._cache.get(sha256)
            if whole is not None:
                return in_pieces(whole[start:stop])
            if stop - start < self._blobs.size(sha256):
                return self._blobs.part(sha256, start, stop)
        return self._verified(sha256)

    def _verified(self, sha256: str) -> Iterator[bytes]:
        with self._reported(sha256):
            yield from self._blobs.pieces(sha256)

    @contextmanager
    def _reported(self, sha256: str) -> Iterator[None]:
        try:
            yield
        except BlobError as error:
            self._report_damage(sha256, str(error))
            raise
