"""Trees in one large file: places used again, unlinked temporary files, disks that are full."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path
from typing import Any

import pytest
import torch

from federation.records import Tree
from sim.engines.shared_memory import PAGE, SEGMENT, MmapArena, read
from sim.errors import ClientStoreError


def test_a_slot_is_free_once_nothing_refers_to_it(tmp_path: Path) -> None:
    arena = MmapArena(tmp_path)
    slot, layout = arena.write_tree({"x": torch.arange(3000.0)})
    taken, place = arena.bytes_taken, slot.position
    view = read(layout, slot.memory)["x"]
    del slot
    other, _ = arena.write_tree({"x": torch.zeros(3000)})
    assert other.position != place  # the view is still there
    assert torch.equal(view, torch.arange(3000.0))
    del view
    again, _ = arena.write_tree({"x": torch.ones(3000)})
    assert again.position == place
    assert arena.bytes_taken == 2 * taken


def test_a_tree_larger_than_a_segment_and_one_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sim.engines.shared_memory.SEGMENT", 2 * PAGE)
    arena = MmapArena(tmp_path)
    values = [torch.arange(float(n)) for n in (10, 5000, 20, 1000, 30)]
    laid = [arena.write_tree({"x": value}) for value in values]
    for value, (slot, layout) in zip(values, laid, strict=True):
        assert torch.equal(read(layout, slot.memory)["x"], value)
    assert len({slot.position for slot, _ in laid}) == len(laid)


def test_the_file_has_no_name(tmp_path: Path) -> None:
    arena = MmapArena(tmp_path)
    arena.write_tree({"x": torch.zeros(9)})
    assert list(tmp_path.iterdir()) == []


# ---- a full disk


def test_a_write_that_the_kernel_cuts_short_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, asked = os.pwritev, list[int]()

    def cut(file: int, parts: list[memoryview], position: int) -> int:
        asked.append(len(parts))
        left, some = 1001, list[memoryview]()
        for part in parts:
            some.append(part[:left])
            left -= len(some[-1])
        return whole(file, some, position)

    tree: Tree = {f"{k}": torch.full((k % 7,), float(k)) for k in range(3000)}
    tree |= {"odd": torch.arange(2001, dtype=torch.uint8), "none": torch.empty(0), "scalar": torch.tensor(3)}
    monkeypatch.setattr(os, "pwritev", cut)
    slot, layout = MmapArena(tmp_path).write_tree(tree)
    assert max(asked) == 1024
    assert all(torch.equal(value, tree[name]) for name, value in read(layout, slot.memory).items())


@pytest.mark.parametrize("call", ["posix_fallocate", "pwritev", "ftruncate"])
def test_a_full_disk_is_an_error_with_the_way_out(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    arena = MmapArena(tmp_path)
    monkeypatch.setattr(os, call, full)
    with pytest.raises(
        ClientStoreError, match=r"no room for 8,192 more bytes .*No space left.*another folder with --client-store-dir"
    ):
        arena.write_tree({"x": torch.zeros(2000)})
    monkeypatch.undo()
    slot, layout = arena.write_tree({"x": torch.ones(2000)})  # somebody made room
    assert read(layout, slot.memory)["x"].sum() == 2000


def test_a_limit_of_the_system_is_an_error_and_no_signal(tmp_path: Path) -> None:
    """A signal would end this very process: Python asks for errors where files get too large, memory does not."""
    arena, before = MmapArena(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SEGMENT, before[1]))
    try:
        slot, _ = arena.write_tree({"x": torch.ones(1000)})
        with pytest.raises(ClientStoreError, match="File too large"):
            arena.write_tree({"x": torch.empty(SEGMENT, dtype=torch.uint8)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert slot.memory[:4000].view(torch.float32).sum().item() == 1000.0


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClientStoreError, match=r"nowhere: the clients' models can't be stored there \(No such file"):
        MmapArena(tmp_path / "nowhere")
