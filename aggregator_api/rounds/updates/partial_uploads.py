"""Partially received updates on disk: the bytes, the manifest, and a log of the received chunks.

A restarted server reads them back and asks only for what is missing. The log is not synced: after a power cut it may
claim chunks whose bytes were lost, which the sha256 at the end reveals; such an update is asked for from the start.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from federation.errors import WireError
from federation.protocol.chunks import ChunkAssembly, chunk_count
from federation.protocol.messages import UpdateManifest, read, write
from gaitway.files import opener, private_file, private_folder

_NUMBER = struct.Struct("<I")
Key = tuple[str, str, str]
"""Federation, device, update id."""


@dataclass
class PartialUpload:
    """One update that is on its way."""

    manifest: UpdateManifest
    assembly: ChunkAssembly
    stem: Path
    resumed: bool = False

    @property
    def path(self) -> Path:
        """The file that the chunks are written into."""
        return _sibling(self.stem, "part")

    @property
    def next_chunk(self) -> int:
        """The lowest chunk that is not here; their number if all are."""
        missing = self.assembly.first_missing
        return chunk_count(self.assembly.size, self.assembly.chunk_bytes) if missing is None else missing

    def continues(self, manifest: UpdateManifest) -> bool:
        """Whether a repeated `begin` is about these bytes in these chunks, and they are still here."""
        ours, theirs = ((m.nonce, m.sha256, m.size, m.chunk_bytes) for m in (self.manifest, manifest))
        return ours == theirs and self.path.exists()

    def write_chunk(self, n: int, data: bytes) -> None:
        """Put chunk n in its place; a repeated chunk is written again.

        Raises:
            WireError: for a number or a length that the manifest does not allow.
        """
        offset = self.assembly.offset(n, len(data))
        descriptor = opener(str(self.path), os.O_WRONLY | os.O_CREAT)
        try:
            os.pwrite(descriptor, data, offset)
        finally:
            os.close(descriptor)
        if n not in self.assembly.received:
            with open(_sibling(self.stem, "have"), "ab", opener=opener) as have:
                have.write(_NUMBER.pack(n))
            self.assembly.add(n)

    def read(self) -> bytes:
        """Return what is here."""
        return self.path.read_bytes()


class PartialUploads:
    """Every update on its way, by federation, device and update id."""

    def __init__(self, root: Path) -> None:
        self.root = root
        private_folder(root)
        self._uploads: dict[Key, PartialUpload] = {}
        self._of_device: dict[tuple[str, str], set[Key]] = {}
        self._take(_read_back(root, "*"))

    def get(self, key: Key) -> PartialUpload | None:
        """Return an upload that has begun."""
        return self._uploads.get(key)

    def of_device(self, federation: str, device: str) -> list[Key]:
        """Return what one device has begun."""
        return sorted(self._of_device.get((federation, device), ()))

    def read_again(self, federation: str) -> dict[Key, PartialUpload]:
        """Read a federation's uploads back from the disk, where another process has left them, and return them."""
        for key in [key for key in self._uploads if key[0] == federation]:
            self._forget(key)
        return self._take(_read_back(self.root, federation))

    def begin(self, key: Key, manifest: UpdateManifest) -> PartialUpload:
        """Start an upload from nothing."""
        self.discard(key)
        upload = PartialUpload(manifest, ChunkAssembly(manifest.size, manifest.chunk_bytes), self.root.joinpath(*key))
        private_folder(upload.stem.parent)
        private_file(upload.path)
        with open(_sibling(upload.stem, "json"), "wb", opener=opener) as described:
            described.write(write(manifest))
        self._take([(key, upload)])
        return upload

    def discard(self, key: Key) -> None:
        """Forget an upload and its files."""
        upload = self._forget(key)
        if upload is not None:
            _remove(upload.stem)

    def _take(self, found: Iterable[tuple[Key, PartialUpload]]) -> dict[Key, PartialUpload]:
        taken = dict(found)
        self._uploads.update(taken)
        for key in taken:
            self._of_device.setdefault(key[:2], set()).add(key)
        return taken

    def _forget(self, key: Key) -> PartialUpload | None:
        if key in self._uploads:
            self._of_device[key[:2]].remove(key)
            if not self._of_device[key[:2]]:
                del self._of_device[key[:2]]
        return self._uploads.pop(key, None)


def _read_back(root: Path, federation: str) -> Iterator[tuple[Key, PartialUpload]]:
    for described in root.glob(f"{federation}/*/*.json"):
        stem = described.with_suffix("")
        try:
            manifest = read(UpdateManifest, described.read_bytes())
        except WireError:
            _remove(stem)  # the server died while it wrote the manifest; the device begins again
            continue
        upload = PartialUpload(manifest, ChunkAssembly(manifest.size, manifest.chunk_bytes), stem, resumed=True)
        if not upload.path.exists():
            _remove(stem)
            continue
        upload.assembly.received.update(_chunks_of(stem, chunk_count(manifest.size, manifest.chunk_bytes)))
        yield (stem.parent.parent.name, stem.parent.name, stem.name), upload


def _chunks_of(stem: Path, count: int) -> Iterator[int]:
    have = _sibling(stem, "have")
    data = have.read_bytes() if have.exists() else b""
    whole = len(data) - len(data) % _NUMBER.size
    return (n for (n,) in _NUMBER.iter_unpack(data[:whole]) if n < count)


def _sibling(stem: Path, suffix: str) -> Path:
    return stem.with_name(f"{stem.name}.{suffix}")


def _remove(stem: Path) -> None:
    for suffix in ("json", "have", "part"):
        _sibling(stem, suffix).unlink(missing_ok=True)
