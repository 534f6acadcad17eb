"""The files under a root and their first bytes, in any folders and archives; damaged archives are left out.

`json_records` reads a file that is one array of records, in constant memory.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from har_pipeline.description.files import Bytes, DescribedFile, Matched
from har_pipeline.errors import SourceError
from har_pipeline.readers.archive import ARCHIVE, DAMAGED, Member, printable, walk

HEAD_BYTES = 1 << 16
MAX_META_BYTES = 1 << 20
META = re.compile(r"(^|/)(Metadata|Annotation|meta/(device|time))\.csv$", re.IGNORECASE)
"""Small files that are read whole."""
TABLE = re.compile(r"\.(csv|txt|json)(\.gz)?$", re.IGNORECASE)

Inspect = Callable[[Member, bytes], Any]
"""Inspects a whole file and returns its content; None if the file isn't the app's."""


class FileHead(NamedTuple):
    """A file's virtual name, its file on disk, its first bytes, and the result of inspecting it."""

    name: str
    path: Path
    data: bytes
    found: Any = None

    @property
    def text(self) -> str:
        """What it begins with, as text."""
        try:
            return self.data.decode("utf-8-sig")
        except UnicodeDecodeError:
            return self.data.decode("cp1252", "replace")

    @property
    def lines(self) -> list[str]:
        """The complete lines of the beginning."""
        whole = self.text if len(self.data) < HEAD_BYTES else self.text.rpartition("\n")[0]
        return whole.splitlines()


def read_heads(root: Path, report: Callable[[str], None], inspect: Inspect | None = None) -> Iterator[FileHead]:
    """Yield the beginning of each table and each properties file."""
    for member in each_member(root, report):
        if not TABLE.search(member.name):
            continue
        try:
            with member.open() as stream:
                data = stream.read(MAX_META_BYTES if META.search(member.name) else HEAD_BYTES)
            found = inspect(member, data) if inspect is not None else None
        except (SourceError, *DAMAGED) as error:
            report(f"{member.name} cannot be read: {error}")
            continue
        yield FileHead(member.name, member.path, data, found)


def each_member(root: Path, report: Callable[[str], None], only: Collection[Path] | None = None) -> Iterator[Member]:
    """Walk through a folder, archive or file, or `only` these files of it.

    Names begin with the archive's. A damaged archive in a folder is left out and reported; a damaged root raises
    SourceError.
    """
    alone = root.is_file()
    for path in [root] if alone else sorted(root.rglob("*")):
        if not path.is_file() or (only is not None and path not in only):
            continue
        name = printable(path.name if alone else path.relative_to(root).as_posix())
        prefix = f"{name}/" if ARCHIVE.search(name) else name.removesuffix(printable(path.name))
        try:
            for member in walk(path, _everything):
                yield member._replace(name=f"{prefix}{member.name}")
        except SourceError as error:
            if alone:
                raise
            report(str(error))


def as_file(member: Member) -> DescribedFile:
    """Return a member as an object that tables are read from."""
    return DescribedFile(member.name, member.path, Matched({}, member.name), member.open)


def _everything(_archive: str) -> bool:
    return True


MAX_RECORD = 1 << 16
BLOCK_BYTES = 1 << 16
FIRST, BETWEEN = re.compile(r"\s*\["), re.compile(r"[\s,]*")


def json_records(stream: Bytes, name: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of an array one after another.

    Raises:
        SourceError: if it isn't an array of objects, or an object is longer than MAX_RECORD characters.
    """
    blocks = _text_of(stream)
    decoder, text = json.JSONDecoder(), next(blocks, "")
    if not (first := FIRST.match(text)):
        raise SourceError(f"{name} is not an array of records: it begins with {text[:50]!r}")
    end = first.end()
    while True:
        between = BETWEEN.match(text, end)  # always, if only nothing
        at = between.end() if between else end
        try:
            record, end = decoder.raw_decode(text, at)
        except ValueError as error:
            block = next(blocks, "")
            if len(text) - at > MAX_RECORD or (not block and text[at:].strip() not in ("", "]")):
                raise SourceError(f"{name} is not an array of records: {str(error)[:100]}; export it again") from error
            if not block:
                return
            text, end = text[at:] + block, 0
            continue
        except RecursionError as error:
            raise SourceError(f"{name} is nested too deeply for an array of records") from error
        if not isinstance(record, dict):
            raise SourceError(f"{name} is not an array of records: it contains {str(record)[:50]!r}")
        yield record


def _text_of(stream: Bytes) -> Iterator[str]:
    """Yield a stream's text in blocks, none of them empty."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
    while data := stream.read(BLOCK_BYTES):
        if text := decoder.decode(data):
            yield text
    if text := decoder.decode(b"", final=True):
        yield text
