"""Archives that are damaged, locked, too deep or that explode are refused in words."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import pytest

from har_pipeline import SourceError, recordings
from har_pipeline.readers.archive import max_unpacked_bytes, walk
from tests.har_pipeline import layouts

OPTIONS: dict[str, Any] = {"rate_hz": 50, "acceleration": "specific force", "acc": {"columns": ["x", "y", "z"]}}
TABLE = b"x,y,z\n" + b"0,0,9.8\n" * 300


def read(path: Any) -> int:
    return sum(len(each.times_s) for each in recordings("described", path, options=OPTIONS))


@pytest.mark.parametrize("deep", [1, 4])
def test_archives_within_archives_are_read(tmp_path, deep):
    content = TABLE
    for level in range(deep):
        content = layouts.zipped({"a.zip" if level else "a.csv": content})
    (tmp_path / "data.zip").write_bytes(content)
    assert read(tmp_path / "data.zip") == 600


def test_a_file_in_a_tar_can_be_read_as_text(tmp_path):
    """As pandas before 3 reads it: a text stream asks whether what is below it can seek."""
    (tmp_path / "data.tar.xz").write_bytes(layouts.tarred({"a.csv": TABLE}, "xz"))
    files = walk(tmp_path / "data.tar.xz", lambda name: True)
    with next(files).open() as stream, io.TextIOWrapper(stream) as text:
        assert text.readline() == "x,y,z\n"


def test_archives_too_deep_in_one_another_are_refused(tmp_path):
    content = TABLE
    for level in range(9):
        content = layouts.zipped({"a.zip" if level else "a.csv": content})
    (tmp_path / "data.zip").write_bytes(content)
    with pytest.raises(SourceError, match="archives are nested more than 5 levels deep"):
        read(tmp_path / "data.zip")


@pytest.mark.parametrize("within", [False, True])
def test_what_unpacks_to_far_too_much_is_refused(tmp_path, monkeypatch, within):
    """A megabyte of zeros is a kilobyte in a zip; the bound is lowered to one that a test can reach."""
    monkeypatch.setattr("har_pipeline.readers.archive.UNPACKED_BYTES", 1 << 20)
    bomb = b"x,y,z\n" + b"0,0,0\n" * (1 << 19)
    files = {"a.zip": zipped_without_packing(bomb)} if within else {"a.csv": bomb}
    (tmp_path / "data.zip").write_bytes(layouts.zipped(files))
    with pytest.raises(SourceError, match=r"unpacks to more than 1 MiB"):
        read(tmp_path / "data.zip")


def test_small_files_unpack_to_a_quarter_of_a_gigabyte_at_the_most(tmp_path):
    """Of more a stranger's 5 MB would be read for ten minutes; text is packed to a tenth, rarely to a thirtieth."""
    (tmp_path / "small.csv.gz").write_bytes(b"0" * 1000)
    assert max_unpacked_bytes(tmp_path / "small.csv.gz") == (256 << 20) + 50_000


def zipped_without_packing(content: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as packed:
        packed.writestr("a.csv", content)
    return stream.getvalue()


def test_a_locked_or_strangely_packed_zip_is_refused(tmp_path):
    sound = bytearray(layouts.zipped({"a.csv": TABLE}))
    at = sound.rindex(b"PK\x01\x02")
    for offset, value, message in ((8, 1, "encrypted"), (10, 99, "compression")):
        broken = bytearray(sound)
        broken[at + offset] = value
        broken[offset - 2] = value
        (tmp_path / "data.zip").write_bytes(broken)
        with pytest.raises(SourceError, match=rf"a\.csv cannot be read or unpacked: .*{message}"):
            read(tmp_path / "data.zip")


def test_names_that_would_steer_a_terminal_are_shown_harmless(tmp_path):
    (tmp_path / "data.tar").write_bytes(layouts.tarred({"\x1b[31mred.csv": TABLE}, ""))
    assert {each.source for each in recordings("described", tmp_path / "data.tar", options=OPTIONS)} == {"?[31mred.csv"}
