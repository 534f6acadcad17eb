"""The cache: a hit equals a build, any change of input or setting misses, damage is rebuilt, writes are atomic."""

from __future__ import annotations

import os
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest

from har_pipeline import PipelineSettings, cache, default_cache_dir, prepare
from har_pipeline.readers import READERS
from tests.har_pipeline import layouts


@pytest.fixture
def root(tmp_path):
    return layouts.unpacked(layouts.motionsense(), tmp_path / "data")


def kept(tmp_path):
    return sorted((tmp_path / "cache").glob("*"))


def same(one, other) -> bool:
    return (one.name, one.labels, one.settings, list(one.clients)) == (
        other.name,
        other.labels,
        other.settings,
        list(other.clients),
    ) and all(
        np.array_equal(getattr(one.clients[name], field), getattr(other.clients[name], field), equal_nan=True)
        and getattr(one.clients[name], field).dtype == getattr(other.clients[name], field).dtype
        for name in one.clients
        for field in cache.FIELDS
    )


def test_windows_of_another_convention_are_never_used(tmp_path, root, monkeypatch):
    before = prepare("motionsense", root, cache_dir=tmp_path / "cache")
    monkeypatch.setitem(READERS, "motionsense", replace(READERS["motionsense"], acceleration="specific force"))
    after = prepare("motionsense", root, cache_dir=tmp_path / "cache")
    assert len(kept(tmp_path)) == 2
    np.testing.assert_array_equal(after.clients["s01"].x[..., :3], -before.clients["s01"].x[..., :3])
    np.testing.assert_array_equal(after.clients["s01"].x[..., 3:], before.clients["s01"].x[..., 3:])


def test_a_hit_equals_the_build_and_reads_no_recording(tmp_path, root, monkeypatch):
    built = prepare("motionsense", root, cache_dir=tmp_path / "cache")
    assert len(kept(tmp_path)) == 1
    calls = []
    again = prepare("motionsense", root, cache_dir=tmp_path / "cache", progress=lambda *call: calls.append(call))
    assert same(built, again)
    assert calls == []
    prepare("motionsense", root, progress=lambda *call: calls.append(call))
    assert calls[-1] == (8, "s24")


def test_settings_clients_and_inputs_each_have_their_own_entry(tmp_path, root):
    at = {"cache_dir": tmp_path / "cache"}
    prepare("motionsense", root, **at)
    prepare("motionsense", root, PipelineSettings(stride=32), **at)
    prepare("motionsense", root, clients=["s01"], **at)
    assert len(kept(tmp_path)) == 3
    unfiltered = PipelineSettings(anti_alias="downsampling")
    assert prepare("motionsense", root, unfiltered, **at).settings == unfiltered
    assert prepare("motionsense", root, unfiltered, **at).settings == unfiltered, "as the file says"
    assert len(kept(tmp_path)) == 4
    file = next(root.rglob("sub_1.csv"))
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))
    prepare("motionsense", root, **at)
    assert len(kept(tmp_path)) == 5


@pytest.mark.parametrize("damage", ["cut", "empty", "flip", "no zip", "array"])
def test_a_damaged_entry_is_rebuilt_not_trusted(tmp_path, root, damage):
    built = prepare("motionsense", root, cache_dir=tmp_path / "cache")
    (path,) = kept(tmp_path)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    path.write_bytes({"cut": whole[:-300], "empty": b"", "flip": bytes(flipped), "no zip": b"hello"}.get(damage, b""))
    if damage == "array":
        with path.open("wb") as stream:
            np.save(stream, np.zeros(3))
    assert cache.load(path) is None
    assert same(built, prepare("motionsense", root, cache_dir=tmp_path / "cache"))
    assert path.read_bytes() == whole


def test_a_failed_write_leaves_neither_an_entry_nor_a_rest(tmp_path, root, monkeypatch, caplog):
    def full(*args):
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", full)
    built = prepare("motionsense", root, cache_dir=tmp_path / "cache")
    assert kept(tmp_path) == []
    assert f"cannot be stored in {tmp_path / 'cache'}: disk full; name another folder with --cache" in caplog.text
    assert same(built, prepare("motionsense", root))


def test_the_default_folder_follows_xdg(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "gaitway" / "windows"


@pytest.mark.parametrize("home", [True, False])
def test_a_user_who_cannot_write_at_home_gets_windows_all_the_same(tmp_path, root, home, monkeypatch, caplog):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.chdir(tmp_path)
    if home:
        (tmp_path / "home").write_text("no folder: nobody may write here, root included")
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
    else:
        monkeypatch.setattr("pathlib.Path.home", Mock(side_effect=RuntimeError("no home")))
    assert same(prepare("motionsense", root), prepare("motionsense", root, cache_dir=default_cache_dir()))
    assert ("cannot be stored" in caplog.text) == home
    assert (tmp_path / ".cache").is_dir() == (not home)
