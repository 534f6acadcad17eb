"""A backup from before a device's sums were taken out does not bring them back, whoever took them out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aggregator_api.core.settings import Settings
from aggregator_api.federations import exports
from aggregator_api.maintenance.backup import back_up
from aggregator_api.maintenance.restore import restore
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.continuous import continuous_plan, sends, state_of, withdrawal_parcel
from tests.aggregator_api.generated_devices import FEDERATION


@pytest.fixture(autouse=True)
def no_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network below the head takes seconds to export."""
    monkeypatch.setattr(exports, "onnx", lambda made: b"onnx")


def by_the_device(bench: Bench) -> None:
    assert bench.begin(withdrawal_parcel(bench.now(), "b", 2)).status == "accepted"


def by_the_operator(bench: Bench) -> None:
    bench.runtime.devices.withdraw(FEDERATION, "b")


def by_the_device_which_is_back(bench: Bench) -> None:
    by_the_device(bench)
    wait_for(lambda: clients_of(bench) == 2)
    sends(bench, "b", 3)
    wait_for(lambda: clients_of(bench) == 3)


def clients_of(bench: Bench) -> int:
    return int(state_of(bench)["sums"]["clients"])


@pytest.mark.ci
@pytest.mark.parametrize(
    "way",
    [
        pytest.param(by_the_device, marks=pytest.mark.ci),
        pytest.param(by_the_operator, marks=pytest.mark.ci),
        by_the_device_which_is_back,
    ],
)
def test_the_next_version_of_a_restored_server_is_without_it(way: Callable[[Bench], None], tmp_path: Path) -> None:
    """Also where the device is gone, and says nothing any more: the ledger says it."""
    data, brought_back = tmp_path / "data", tmp_path / "restored"
    bench, without = Bench(data, continuous_plan()), Bench(tmp_path / "other", continuous_plan())
    try:
        for device in "abc":
            bench.say(device, "ready")
            sends(bench, device, 1)
        wait_for(lambda: clients_of(bench) == 3)
        back_up(Settings(data_dir=data), tmp_path / "backup")
        way(bench)
        wait_for(lambda: clients_of(bench) == (3 if way is by_the_device_which_is_back else 2))
        for device in "ac":
            without.say(device, "ready")
            sends(without, device, 1)
        wait_for(lambda: clients_of(without) == 2)
    finally:
        bench.stop()
    ledger = Settings(data_dir=data).ledger
    result = restore(Settings(data_dir=brought_back, ledger_dir=ledger), tmp_path / "backup")
    assert "the sums of 1 devices were taken out again" in str(result.replayed)
    back = Bench(brought_back, ledger_dir=ledger)
    try:
        wait_for(lambda: clients_of(back) == 2)
        assert back.state() == without.state()
        if way is by_the_device_which_is_back:  # a new epoch has every device send again
            sends(back, "b", 4)
            wait_for(lambda: clients_of(back) == 3)
    finally:
        back.stop()
        without.stop()
