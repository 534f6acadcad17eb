"""Content-addressed blobs: a directory by default, an object store of fsspec by its URL.

On a local disk a blob is a temporary file that is synced and then renamed, so that its name never stands for half
of it. Object stores write an object whole or not at all.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import fsspec

from aggregator_api.core.errors import BlobError, ConfigError
from aggregator_api.storage.db.models import Blob
from gaitway.files import opener, private_file, private_folder

CHUNK_BYTES = 1 << 18
_SHA256 = re.compile(r"[0-9a-f]{64}")


def shown_url(url: str) -> str:
    """Return a URL without what may be secret in it: who logs in, and a query."""
    scheme, found, rest = url.partition("://")
    if not found:
        return url
    host, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


_FILE_URL = re.compile(r"(?:file|local):(?://(?:localhost)?(?=/))?")


def folder_of(place: str) -> Path | None:
    """Return the folder that a path or a URL of files names; None for an object store.

    A path is taken as it is, whatever it holds; in a URL, `%20` is a blank.
    """
    if prefix := _FILE_URL.match(place):
        return Path(unquote(place[prefix.end() :])).absolute()
    return None if "://" in place else Path(place).absolute()


class BlobStore:
    """Blobs in one folder, or under one fsspec URL, each named by its sha256.

    Raises:
        ConfigError: for a URL of a kind that fsspec does not know, or lacks a package for.
    """

    def __init__(self, place: str) -> None:
        self.url = place
        self.collecting = threading.Lock()  # two collections of one process put back what the other removes
        folder = folder_of(place)
        self.is_local = folder is not None
        if folder is not None:
            self._files, self.root = fsspec.filesystem("file"), str(folder)
            return
        try:
            self._files, self.root = fsspec.core.url_to_fs(place)
        except (ValueError, ImportError) as error:
            why = str(error).replace(place, shown_url(place))
            raise ConfigError(
                f"blob_url {shown_url(place)}: {why}; expected file:///FOLDER, or an installed fsspec store"
            ) from None  # what fsspec raised may repeat the URL

    def put(self, data: bytes) -> Blob:
        """Store bytes durably and return their name."""
        blob = Blob(hashlib.sha256(data).hexdigest(), len(data))
        if self._touched(blob.sha256):
            return blob
        if not self.is_local:
            self._files.pipe_file(self._path(blob.sha256), data)
            return blob
        temporary = self._temporary()
        try:
            with open(temporary, "wb", opener=opener) as file:
                file.write(data)
            self._commit(temporary, blob.sha256)
        finally:
            temporary.unlink(missing_ok=True)  # a full disk would keep half of it
        return blob

    def adopt(self, path: Path, sha256: str) -> Blob:
        """Move a local file, whose sha256 the caller has verified, into the store."""
        size = path.stat().st_size
        if not self.is_local:
            self._files.put_file(str(path), self._path(sha256))
            path.unlink()
        else:
            temporary = self._temporary()
            try:
                if self._elsewhere(path):
                    private_file(temporary)
                    shutil.copyfile(path, temporary)
                else:
                    os.replace(path, temporary)
                os.utime(temporary)  # young for the garbage collection, however long its bytes were on their way
                self._commit(temporary, sha256)
            finally:
                if temporary.exists():  # a full disk: it stays where it was
                    os.replace(temporary, path)
            path.unlink(missing_ok=True)
        return Blob(sha256, size)

    def older_than(self, moment: float) -> Iterator[Blob]:
        """Yield the blobs that were written before a Unix time.

        Raises:
            ConfigError: if the store is not a directory.
        """
        for path in self._folder().glob("??/*"):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue  # removed by another process
            if status.st_mtime < moment and _SHA256.fullmatch(path.name):
                yield Blob(path.name, status.st_size)

    @contextmanager
    def detach(self, sha256: str) -> Iterator[DetachedBlob]:
        """Move a blob aside; it comes back at the end unless it was removed, or written anew meanwhile."""
        path, aside = Path(self._path(sha256)), DetachedBlob(self._folder() / "incoming" / f"{sha256}.aside")
        private_folder(aside.path.parent)
        with suppress(FileNotFoundError):  # another process was faster
            os.replace(path, aside.path)
        try:
            yield aside
        finally:
            if aside.path.exists():
                os.replace(aside.path, path)

    def forget_unfinished(self, moment: float) -> None:
        """Bring back what a killed process left aside, and remove what it had not finished writing before `moment`."""
        for path in (self._folder() / "incoming").glob("*"):
            if path.name.endswith(".aside"):
                with suppress(FileNotFoundError):  # another process was faster
                    os.replace(path, self._path(path.name.removesuffix(".aside")))
            elif path.stat().st_mtime < moment:
                path.unlink(missing_ok=True)

    def has(self, sha256: str) -> bool:
        """Whether a blob of that name is stored."""
        return bool(self._files.exists(self._path(sha256)))

    def size(self, sha256: str) -> int:
        """Return size of a blob in bytes.

        Raises:
            BlobError: if there is no such blob.
        """
        try:
            return int(self._files.size(self._path(sha256)))
        except FileNotFoundError as error:
            raise BlobError(f"blob {sha256} is not in the store {self.root}") from error

    def read(self, sha256: str) -> bytes:
        """Return a whole blob, verified.

        Raises:
            BlobError: if it is missing or damaged.
        """
        return b"".join(self.pieces(sha256))

    def verify(self, sha256: str) -> None:
        """Read a whole blob and leave its bytes.

        Raises:
            BlobError: if it is missing or damaged.
        """
        for _ in self.pieces(sha256):
            pass

    def pieces(self, sha256: str) -> Iterator[bytes]:
        """Yield a blob in pieces; the last one only after the whole has been verified.

        Raises:
            BlobError: if it is missing or damaged.
        """
        digest = hashlib.sha256()
        held = b""
        for piece in self.part(sha256, 0, self.size(sha256)):
            digest.update(piece)
            if held:
                yield held
            held = piece
        if digest.hexdigest() != sha256:
            raise BlobError(f"blob {sha256} is damaged: its bytes have the sha256 {digest.hexdigest()}")
        yield held

    def part(self, sha256: str, start: int, stop: int) -> Iterator[bytes]:
        """Yield the bytes [start, stop) of a blob, unverified: the receiver checks the whole."""
        with self._open(sha256) as stream:
            stream.seek(start)
            while start < stop and (piece := stream.read(min(CHUNK_BYTES, stop - start))):
                start += len(piece)
                yield piece

    def check(self) -> None:
        """Raise OSError if the store cannot be reached."""
        if self.is_local:
            private_folder(Path(self.root))
        else:
            self._files.makedirs(self.root, exist_ok=True)
        self._files.ls(self.root)

    def require(self) -> None:
        """Look once, at the start, whether the store can be reached.

        Raises:
            ConfigError: if it cannot.
        """
        try:
            self.check()
        except Exception as error:  # each store of fsspec has its own
            text = " ".join(str(error).split()) or type(error).__name__
            raise ConfigError(f"the models' store {self.root} cannot be used: {text}; check blob_url") from error

    def _open(self, sha256: str) -> Any:
        try:
            return self._files.open(self._path(sha256), "rb")
        except FileNotFoundError as error:
            raise BlobError(f"blob {sha256} is not in the store {self.root}") from error

    def _path(self, sha256: str) -> str:
        if not _SHA256.fullmatch(sha256):
            raise BlobError(f"{sha256[:80]!r} is not a sha256 in lower-case hexadecimal")
        return f"{self.root}/{sha256[:2]}/{sha256}"

    def _touched(self, sha256: str) -> bool:
        """Whether a blob is here; it is made young, so that it is no garbage before its row is written."""
        if not self.is_local:
            return self.has(sha256)
        try:
            os.utime(self._path(sha256))
        except FileNotFoundError:
            return False
        return True

    def _elsewhere(self, path: Path) -> bool:
        return os.stat(path).st_dev != os.stat(self.root).st_dev

    def _folder(self) -> Path:
        if not self.is_local:
            raise ConfigError(f"the blobs are in {self.root}, not in a directory: set a rule for old objects there")
        return Path(self.root)

    def _temporary(self) -> Path:
        folder = Path(self.root) / "incoming"
        private_folder(folder)
        return folder / uuid.uuid4().hex

    def _commit(self, temporary: Path, sha256: str) -> None:
        target = Path(self._path(sha256))
        private_folder(target.parent)
        sync(temporary)
        os.replace(temporary, target)
        sync(target.parent)
        sync(target.parent.parent)


class DetachedBlob(NamedTuple):
    """A blob's file that was moved aside."""

    path: Path

    def modified(self) -> float:
        """Return when it was written; the end of time if it is gone."""
        try:
            return self.path.stat().st_mtime
        except FileNotFoundError:
            return float("inf")

    def remove(self) -> None:
        """Remove it for good."""
        self.path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Force a file's bytes, or a folder's names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
