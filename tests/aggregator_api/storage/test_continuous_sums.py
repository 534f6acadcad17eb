"""A continuous federation's sums: `fsck` adds them up again, garbage keeps their blobs, a backup brings them back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from aggregator_api.core.settings import Settings
from aggregator_api.federations import exports
from aggregator_api.maintenance import fsck
from aggregator_api.maintenance.backup import back_up
from aggregator_api.maintenance.restore import restore
from aggregator_api.storage.db.models import ContributionRow, ModelVersionRow
from aggregator_api.storage.findings import Severity
from federation import wire
from tests.aggregator_api.bench import Bench, copied, wait_for
from tests.aggregator_api.continuous import continuous_plan, sends, state_of, sums_of
from tests.aggregator_api.storage.test_garbage_collection import age, collected


@pytest.fixture(scope="module", autouse=True)
def no_export() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exports, "onnx", lambda made: b"onnx")
        yield


@pytest.fixture(scope="module")
def summed(no_export: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a server that ended: the sums of a, b and c in a version; a change of b waits for longer."""
    folder = tmp_path_factory.mktemp("summed") / "data"
    bench = Bench(folder, continuous_plan(min_changes=3))
    for device in "abc":
        bench.say(device, "ready")
        sends(bench, device, 1)
    wait_for(lambda: bench.now().round == 2)
    sends(bench, "b", 2)
    bench.stop()
    return folder


@pytest.fixture
def live(summed: Path, tmp_path: Path) -> Iterator[Bench]:
    """A server over a copy of it."""
    bench = Bench(copied(summed, tmp_path / "data"))
    yield bench
    bench.stop()


def problems(folder: Path) -> list[str]:
    return [one.message for one in fsck.check(Settings(data_dir=folder)) if one.level is Severity.PROBLEM]


def test_sums_that_are_those_of_the_rows_pass(live: Bench, tmp_path: Path) -> None:
    assert problems(tmp_path / "data") == []
    said = [one.message for one in fsck.check(Settings(data_dir=tmp_path / "data"))]
    assert "federation walk: the sums of version 1 are those of its 3 devices, bit for bit" in said


def test_one_bit_of_one_device_is_found(live: Bench, tmp_path: Path) -> None:
    tree = sums_of(sum(b"a") + 1000)
    tree["moment"][0, 0] += 1
    other = live.runtime.blobs.put(wire.encode(tree))
    with live.runtime.database.write() as session:
        row = session.scalars(select(ContributionRow).order_by(ContributionRow.id)).first()
        assert row is not None
        row.published_sha256 = row.sha256 = other.sha256
    (found,) = problems(tmp_path / "data")
    assert "are not those of its 3 devices: " in found
    assert "sums/moment" in found


def test_a_lost_blob_is_named_after_its_device(live: Bench, tmp_path: Path) -> None:
    with live.runtime.database.read() as session:
        lost = session.scalars(select(ContributionRow.published_sha256).order_by(ContributionRow.id)).first()
    (path,) = Path(live.runtime.blobs.root).glob(f"??/*{str(lost)[2:]}")
    path.unlink()
    first, second = problems(tmp_path / "data")
    assert first.startswith("the sums of a: its blob")
    assert "its sums cannot be added up" in second


def test_a_flipped_byte_of_the_newest_state_is_told(live: Bench, tmp_path: Path) -> None:
    """The state's own blob is named by its sha256; sums that were written wrongly are found by adding them up."""
    state = state_of(live)
    state["sums"]["gram"][3] ^= 1
    other = live.runtime.blobs.put(wire.encode(state))
    with live.runtime.database.write() as session:
        newest = session.scalars(select(ModelVersionRow).order_by(ModelVersionRow.version.desc())).first()
        assert newest is not None
        newest.state_sha256 = other.sha256
    (found,) = [one for one in fsck.check(Settings(data_dir=tmp_path / "data")) if one.level is Severity.PROBLEM]
    assert "are not those of its 3 devices: sums/gram differ" in found.message
    assert "backup" in found.advice


def test_a_row_that_has_lost_its_blobs_name_is_found(live: Bench, tmp_path: Path) -> None:
    """A row without a blob is a device that has withdrawn: what the version still has of it does not add up."""
    with live.runtime.database.write() as session:
        row = session.scalars(select(ContributionRow).order_by(ContributionRow.id)).first()
        assert row is not None
        row.sha256 = row.published_sha256 = row.size = None
    (found,) = problems(tmp_path / "data")
    assert "are not those of its 2 devices" in found
    assert "sums/clients" in found


def test_what_devices_have_in_the_sums_is_no_garbage(live: Bench, tmp_path: Path) -> None:
    age(live)
    collected(live)
    assert problems(tmp_path / "data") == []
    with live.runtime.database.read() as session:
        replaced = list(session.scalars(select(ContributionRow.published_sha256)))
    for device in "ac":
        sends(live, device, 2)
    wait_for(lambda: live.now().round == 3)
    age(live)
    collected(live)  # as the server itself may at the same moment
    assert len(replaced) == 3
    assert not any(live.runtime.blobs.has(str(sha256)) for sha256 in replaced)
    assert problems(tmp_path / "data") == []


def test_a_backup_brings_the_sums_back(live: Bench, tmp_path: Path) -> None:
    back_up(live.runtime.settings, tmp_path / "copy")
    restore(Settings(data_dir=tmp_path / "again"), tmp_path / "copy")
    assert problems(tmp_path / "again") == []
    restored = Bench(tmp_path / "again")
    for device in "ac":
        sends(restored, device, 2)
    wait_for(lambda: restored.now().round == 3)
    sums = state_of(restored)["sums"]
    expected = [sums_of(sum(device.encode()) + 2000) for device in "abc"]
    assert int(sums["clients"]) == 3
    for name in ("gram", "moment"):
        assert (sums[name] == sum(tree[name].long() for tree in expected)).all(), "b's change was in the backup"
    restored.stop()
