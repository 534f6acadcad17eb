"""Models on their way to devices: the parts asked for, and damage that is reported."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aggregator_api.core.errors import BlobError
from aggregator_api.storage.blobs import BlobStore
from aggregator_api.storage.broadcasts import BlobCache, Downloads

DATA = bytes(range(256)) * 40


class Shop:
    """A store with one blob, what reads it, and the damage that was reported."""

    def __init__(self, folder: Path, *, cached: int) -> None:
        self.store = BlobStore(str(folder))
        self.blob = self.store.put(DATA)
        self.damage: list[tuple[str, str]] = []
        cache = BlobCache(self.store, largest=cached)
        self.downloads = Downloads(self.store, cache, lambda sha256, reason: self.damage.append((sha256, reason)))
        self.path = next(path for path in folder.rglob(self.blob.sha256) if path.is_file())

    def read(self, start: int, stop: int) -> bytes:
        """Download from `start` to before `stop`, as a response does."""
        pieces = self.downloads.pieces(self.blob.sha256, start, stop)
        if hasattr(pieces, "__aiter__"):

            async def gather() -> bytes:
                return b"".join([piece async for piece in pieces])

            return asyncio.run(gather())
        return b"".join(pieces)


@pytest.mark.parametrize("cached", [0, len(DATA)], ids=["too large for the cache", "cached"])
def test_the_whole_and_parts_are_the_bytes_asked_for(tmp_path: Path, cached: int) -> None:
    shop = Shop(tmp_path, cached=cached)
    assert shop.downloads.size(shop.blob.sha256) == len(DATA)
    assert shop.read(0, len(DATA)) == DATA
    assert shop.read(5, 300) == DATA[5:300]
    assert shop.damage == []


@pytest.mark.parametrize("cached", [0, len(DATA)], ids=["too large for the cache", "cached"])
def test_a_damaged_model_is_reported_and_not_sent_as_if_it_were_whole(tmp_path: Path, cached: int) -> None:
    shop = Shop(tmp_path, cached=cached)
    shop.path.chmod(0o600)
    shop.path.write_bytes(DATA[:-1] + b"x")
    with pytest.raises(BlobError):
        shop.read(0, len(DATA))
    assert [sha256 for sha256, _ in shop.damage] == [shop.blob.sha256]


def test_a_missing_model_is_reported(tmp_path: Path) -> None:
    shop = Shop(tmp_path, cached=0)
    shop.path.unlink()
    with pytest.raises(BlobError, match="not in the store"):
        shop.downloads.size(shop.blob.sha256)
    assert [sha256 for sha256, _ in shop.damage] == [shop.blob.sha256]
