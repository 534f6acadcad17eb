"""However often the server is killed between a row and its effect, a continuous federation ends with the same bits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from aggregator_api.storage.db.models import FederationRow
from federation import wire
from federation.records import Update
from tests.aggregator_api.bench import Bench
from tests.aggregator_api.continuous import continuous_plan, sums_of
from tests.aggregator_api.killed_server import DEVICES, FINAL, digest_of_sums


@pytest.mark.parametrize(
    "kills",
    [pytest.param(10, marks=pytest.mark.ci), pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])],
)
def test_kills_change_no_bit(kills: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-m", "tests.aggregator_api.killed_server", str(tmp_path), "--kills", str(kills)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["kills"] == kills
    assert found["announced"] > 2, "versions were published meanwhile"
    assert found["state"] == undisturbed(tmp_path / "beside", monkeypatch)


def undisturbed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The sha256 of the state of a federation that had each device's last sums alone, and no server between."""
    monkeypatch.setattr("aggregator_api.federations.exports.onnx", lambda made: b"onnx")
    bench = Bench(folder, continuous_plan())
    initial = wire.decode(data := bench.state(), limit_bytes=len(data))
    with bench.runtime.database.read() as session:
        method = bench.runtime.coordinator.contract(session.get_one(FederationRow, 1)).method
    bench.stop()
    trees = {device: sums_of(sum(device.encode()) + 1000 * FINAL) for device in DEVICES if device != "d"}
    updates = [Update(device, 10, 0, tree) for device, tree in trees.items()]
    return digest_of_sums(wire.encode(method.aggregate(initial, updates)))
