"""Finds a data set's files under a path: a folder, a zip, a tar, or archives within archives.

Files have virtual names such as `proband1/data/acc_walking_csv.zip/acc_walking_shin.csv`. A tar is read once, in
order (a .tar.xz cannot be read otherwise); a zip within an archive is spooled to memory, or to disk when it is large.
"""

from __future__ import annotations

import gzip
import lzma
import re
import struct
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, NamedTuple, cast

from har_pipeline.errors import SourceError, UnpackingError

ARCHIVE = re.compile(r"\.(zip|tar|tgz|tbz2|txz|tar\.(gz|bz2|xz))$", re.IGNORECASE)
ARCHIVE_FOLDER = re.compile(rf"{ARCHIVE.pattern[:-1]}/", re.IGNORECASE)
SPOOL_BYTES = 64 << 20
UNPACKED_BYTES, UNPACKED_RATIO = 256 << 20, 50
MAX_ARCHIVE_DEPTH = 5
"""Archives within archives."""
DAMAGED = (
    *(zipfile.BadZipFile, tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError, struct.error),
    *(RuntimeError, ValueError, IndexError),  # encrypted, an unknown compression, broken fields
)
"""What reading a damaged archive, or a strange one, raises."""

Descend = Callable[[str], bool]
OnDamaged = Callable[[str], None]
"""Told in words which archive is left out, and why."""


class Member(NamedTuple):
    """One file: its virtual name, the file on disk that holds it, and how to open it.

    open() is valid only until the walk goes on; it undoes a plain .gz.
    """

    name: str
    path: Path
    open: Callable[[], IO[bytes]]


@dataclass(frozen=True)
class Layout:
    """What a reader looks for: `files` matches virtual names from the first folder of the layout on.

    `archives` matches the base names of archives that are worth opening in a folder; `expected` is told to the user.
    """

    files: re.Pattern[str]
    archives: re.Pattern[str]
    expected: str


@dataclass(frozen=True)
class Source:
    """A data set that was found: `members` walks the matching files under `base`."""

    root: Path
    base: str
    layout: Layout
    count: int
    inputs: tuple[Path, ...] = field(repr=False)

    def members(self) -> Iterator[tuple[re.Match[str], Member]]:
        """Yield each file with its match, in the container's order (folders and zips: sorted)."""
        for member in walk(self.root, self._leads_to_base):
            match = self.layout.files.search(member.name)
            if match and member.name[: match.start()] == self.base:
                yield match, member

    def _leads_to_base(self, archive: str) -> bool:
        if self.base.startswith(f"{archive}/"):
            return True
        return archive.startswith(self.base) and _wanted(archive, self.layout)


def locate(root: Path | str | None, layout: Layout, dataset: str) -> Source:
    """Find the layout under root (a folder or an archive); the place with most matching files wins.

    Raises SourceError that says what was expected where.
    """
    if root is None:
        raise SourceError(f"{dataset} needs its data: give --data-root DATA; expected {layout.expected}")
    root = Path(root)
    if not root.exists():
        raise SourceError(f"{root} does not exist; for {dataset} it must be a folder or archive with {layout.expected}")
    if root.is_file() and not ARCHIVE.search(root.name) and not layout.files.search(root.name):
        raise SourceError(f"{root} is neither a folder nor a zip or tar; for {dataset} expected {layout.expected}")
    found: Counter[str] = Counter()
    paths: dict[str, set[Path]] = {}
    for member in walk(root, lambda name: _wanted(name, layout)):
        match = layout.files.search(member.name)
        if match:
            base = member.name[: match.start()]
            found[base] += 1
            paths.setdefault(base, set()).add(member.path)
    if not found:
        raise SourceError(f"no {dataset} files under {root}; expected {layout.expected}")
    base, count = max(sorted(found.items()), key=lambda item: item[1])
    return Source(root, base, layout, count, tuple(sorted(paths[base])))


def walk(root: Path, descend: Descend, on_damaged: OnDamaged | None = None) -> Iterator[Member]:
    """Yield every file under root; archives that `descend` accepts by virtual name are opened, not yielded.

    An archive below root that cannot be read, or not to its end, is left out and told `on_damaged`; without that, and
    where it is root itself, it raises SourceError.
    """
    if root.is_file():
        if ARCHIVE.search(root.name):
            with root.open("rb") as stream:
                yield from _walk_archive(stream, root.name, "", root, descend, on_damaged)
        else:
            yield Member(printable(root.name), root, _opener(root.name, partial(_open_file, root)))
        return
    for path in sorted(root.rglob("*")):
        if not path.is_file():
            continue
        name = printable(path.relative_to(root).as_posix())
        if ARCHIVE.search(name):
            if descend(name):
                yield from _left_out(_walk_file(name, path, descend, on_damaged), on_damaged)
        else:
            yield Member(name, path, _opener(name, partial(_open_file, path)))


@contextmanager
def unpacking(name: str) -> Iterator[None]:
    """Turn what a damaged archive raises into a UnpackingError that names the file."""
    try:
        yield
    except DAMAGED as error:
        raise UnpackingError(f"{name} cannot be read or unpacked: {error or type(error).__name__}") from error


def max_unpacked_bytes(path: Path) -> int:
    """Return how many bytes the file on disk may unpack to: far more than recordings do, far less than a bomb."""
    return UNPACKED_BYTES + UNPACKED_RATIO * path.stat().st_size


def printable(name: str) -> str:
    """Put `?` for bytes that are no text and for what would steer a terminal: names come from outside."""
    return name if name.isprintable() else "".join(character if character.isprintable() else "?" for character in name)


def _open_file(path: Path) -> IO[bytes]:
    return path.open("rb")


def _wanted(name: str, layout: Layout) -> bool:
    return layout.archives.search(name.rpartition("/")[2]) is not None


def _walk_file(name: str, path: Path, descend: Descend, on_damaged: OnDamaged | None) -> Iterator[Member]:
    with path.open("rb") as stream:
        yield from _walk_archive(stream, name, f"{name}/", path, descend, on_damaged)


def _left_out(members: Iterator[Member], on_damaged: OnDamaged | None) -> Iterator[Member]:
    try:
        yield from members
    except SourceError as error:
        if on_damaged is None:
            raise
        on_damaged(str(error))


def _walk_archive(
    stream: IO[bytes], name: str, prefix: str, path: Path, descend: Descend, on_damaged: OnDamaged | None
) -> Iterator[Member]:
    try:
        members = _zip_members(stream) if name.lower().endswith(".zip") else _tar_members(stream)
        for inner, opener in members:
            virtual = prefix + printable(inner)
            if not ARCHIVE.search(inner):
                yield Member(virtual, path, _opener(virtual, opener))
            elif descend(virtual):
                yield from _left_out(_walk_inner(opener, virtual, path, descend, on_damaged), on_damaged)
    except DAMAGED as error:
        raise UnpackingError(f"{path} ({name}) cannot be read as an archive: {error}; download it again") from error


def _walk_inner(
    opener: Callable[[], IO[bytes]], name: str, path: Path, descend: Descend, on_damaged: OnDamaged | None
) -> Iterator[Member]:
    """Walk an archive that lies in another."""
    if len(ARCHIVE_FOLDER.findall(f"{name}/")) > MAX_ARCHIVE_DEPTH:
        raise SourceError(f"{path} ({name}): archives are nested more than {MAX_ARCHIVE_DEPTH} levels deep")
    with _Spool(max_size=SPOOL_BYTES) as stored:
        with unpacking(f"{path} ({name})"), opener() as packed:
            _copy(packed, stored, name, max_unpacked_bytes(path))
        stored.seek(0)
        yield from _walk_archive(stored, name, f"{name}/", path, descend, on_damaged)


class _Spool(SpooledTemporaryFile[bytes]):
    """One that zipfile takes on Python 3.10 too, where it is no whole file object yet."""

    def seekable(self) -> bool:
        return True


def _copy(packed: IO[bytes], stored: IO[bytes], name: str, most: int) -> None:
    while part := packed.read(1 << 20):
        if stored.tell() + len(part) > most:
            raise SourceError(f"{name} unpacks to more than {most >> 20} MiB; unpack it by hand if you trust it")
        stored.write(part)


def _zip_members(stream: IO[bytes]) -> Iterator[tuple[str, Callable[[], IO[bytes]]]]:
    with zipfile.ZipFile(stream) as packed:
        for info in sorted(packed.infolist(), key=lambda info: info.filename):
            if not info.is_dir():
                yield info.filename, partial(packed.open, info)


def _tar_members(stream: IO[bytes]) -> Iterator[tuple[str, Callable[[], IO[bytes]]]]:
    with tarfile.open(fileobj=stream, mode="r|*") as packed:
        packed.fileobject = _ReadForward
        for info in packed:
            if info.isfile():
                yield info.name.removeprefix("./"), partial(_extract, packed, info)


class _ReadForward(tarfile.ExFileObject):
    """A member of a tar that is read as a stream, which cannot say whether it can seek: pandas before 3 asks it."""

    def seekable(self) -> bool:
        return False


def _extract(packed: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    stream = packed.extractfile(info)
    if stream is None:
        raise SourceError(f"{info.name} in the tar isn't a regular file")
    return stream


def _opener(name: str, plain: Callable[[], IO[bytes]]) -> Callable[[], IO[bytes]]:
    if not name.lower().endswith(".gz"):
        return plain
    return lambda: cast("IO[bytes]", _Gunzipped(plain()))


class _Gunzipped(gzip.GzipFile):
    """A GzipFile that closes the stream below it, which gzip leaves open."""

    def __init__(self, packed: IO[bytes]) -> None:
        self._packed = packed
        super().__init__(fileobj=packed, mode="rb")

    def close(self) -> None:
        super().close()
        self._packed.close()
