"""A disk that is full or nearly: uploads are put off, nothing acknowledged is lost, and the server goes on."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from aggregator_api.storage import outages
from aggregator_api.storage.blobs import BlobStore
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.generated_devices import tiny_plan


def opened(folder: Path, **settings: object) -> Bench:
    bench = Bench(folder, tiny_plan(rounds=1), **settings)
    for device in "ab":
        bench.say(device, "ready")
    return bench


def test_an_upload_is_put_off_before_the_disk_is_full(tmp_path: Path) -> None:
    bench = opened(tmp_path, min_free_bytes=1 << 60)
    answer = bench.begin(bench.update_of("a"))
    assert answer.status == "retry"
    assert "try later" in answer.reason
    assert bench.count("quarantined") == 0
    bench.runtime.stop()


PLACES = (
    "os.pwrite",
    "os.replace",
    "aggregator_api.rounds.updates.partial_uploads.opener",
    "aggregator_api.rounds.updates.partial_uploads.private_file",
    "os.fsync",
)


@pytest.mark.parametrize("place", PLACES)
def test_a_write_that_finds_no_room_puts_the_upload_off(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = opened(tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    first = bench.update_of("a")
    with monkeypatch.context() as patch:
        patch.setattr(place, full)
        bench.upload(first)
    assert "retry" in [answer.status for answer in bench.wires.acknowledgements("a")]
    assert bench.count("accepted") == 0
    for update in (first, bench.update_of("b")):  # there is room again
        assert bench.upload(update).status == "accepted"
    wait_for(lambda: bench.now().state == "finished")
    bench.runtime.stop()


def fill(ballast: Path) -> None:
    """Write until nothing more can be written."""
    with ballast.open("wb", buffering=0) as stream, suppress(OSError):
        while stream.write(bytes(4096)):
            pass
    assert shutil.disk_usage(ballast.parent).free < 4096


def test_a_real_full_disk_costs_no_acknowledged_update(small_disk: Path) -> None:
    bench = opened(small_disk, min_free_bytes=0)
    first, second = bench.update_of("a"), bench.update_of("b")
    assert bench.upload(first).status == "accepted"
    ballast = small_disk / "ballast"
    fill(ballast)
    assert bench.begin(second).status == "retry"
    assert bench.now().state == "collecting"  # it answers, and knows what it has
    ballast.unlink()
    assert bench.upload(second).status == "accepted"
    wait_for(lambda: bench.now().state == "finished")
    assert bench.count("accepted") == 2
    bench.runtime.stop()


def test_blobs_keep_no_half_of_what_found_no_room(small_disk: Path) -> None:
    blobs = BlobStore(small_disk.as_uri())
    with pytest.raises(OSError, match="No space left"):
        blobs.put(bytes(4 << 20))
    assert [path for path in small_disk.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (OSError(errno.ENOSPC, "x"), True),
        (OSError(errno.EACCES, "x"), False),
        (OperationalError("INSERT", {}, Exception("database or disk is full")), True),
        (OperationalError("INSERT", {}, Exception("database is locked")), False),
        (ValueError("disk is full"), False),
    ],
)
def test_what_a_full_disk_looks_like(error: Exception, full: bool) -> None:
    assert outages.is_full(error) is full


def test_a_damaged_update_ends_its_round_with_a_reason_and_not_the_server(tmp_path: Path) -> None:
    bench = opened(tmp_path)
    update = bench.update_of("a")
    assert bench.upload(update).status == "accepted"
    name = update.manifest.sha256
    path = Path(bench.runtime.blobs.root) / name[:2] / name
    path.write_bytes(bytes(path.stat().st_size))
    bench.upload(bench.update_of("b"))
    from tests.aggregator_api.rounds.test_rounds import ends

    wait_for(lambda: ends(bench)[0][0] == "failed")
    (phase, reason) = ends(bench)[0]
    assert phase == "failed"
    assert f"blob {name} is damaged" in reason
    bench.runtime.stop()
