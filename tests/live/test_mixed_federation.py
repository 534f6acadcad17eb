"""A board with torch, a board without, and a phone's browser make one model, which is better than what each has alone.

Each has another person's windows, and lacks two of six activities; together they have all.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aggregator_api.http.web.phone import RUNTIME, files, version
from edge_agent.storage.window_store import WindowStore
from edge_agent.training.local_data import LocalData, local_data
from federation.plan import ModelSpec, Plan, RoundSettings, TrainingConfig
from har_pipeline import PipelineSettings, dataset_labels
from tests.browser import NEEDS_BROWSER
from tests.live import test_phone_rounds as phones
from tests.live.fleet import Fleet, embedded, fleet
from tests.live.test_phone_rounds import page  # noqa: F401  a fixture
from tests.live.test_phones import bring_windows, create, exported, join
from tests.live.test_without_torch import NOT_IN_EDGE_LITE, Judge, runtimes, torch_hidden

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [
    *(mark for mark in NEEDS_BROWSER if mark.name != "ci"),
    pytest.mark.slow,
    pytest.mark.service,
    pytest.mark.skipif(RUNTIME not in files(), reason="no ONNX Runtime for the phone's client: make phone"),
]
WITH, WITHOUT, PHONE = "board-torch", "board-lite", "phone-1"
PERSONS = {WITH: "s00_phone100-waist", WITHOUT: "s01_phone100-waist", PHONE: "s02_phone200-waist"}
LABELS = dataset_labels("synthetic")
LACKS = {WITH: LABELS[0:2], WITHOUT: LABELS[2:4], PHONE: LABELS[4:6]}
DESCRIPTION = f"""
files = '(?P<client>[^/]+)\\.csv'
labels = {list(LABELS)}
time = {{ column = "time_ms", unit = "ms" }}
acceleration = "specific force"
acc = {{ columns = ["acc_x", "acc_y", "acc_z"], unit = "m/s2" }}
gyro = {{ columns = ["gyro_x", "gyro_y", "gyro_z"], unit = "rad/s" }}
activity = {{ column = "activity" }}
session = {{ column = "session" }}
"""


def a_plan() -> Plan:
    """Six rounds of FedAvg with the HAR CNN."""
    training = TrainingConfig(classes=len(LABELS), epochs=4, batch_size=32, seed=3)
    return Plan(
        labels=LABELS,
        model=ModelSpec(name="har_cnn"),
        method={"name": "fedavg"},
        training=training,
        rounds=RoundSettings(rounds=6, minimum_clients=3),
    )


def windows_of(device: str) -> bytes:
    """Write what a device collected: one person's windows, without the activities that it lacks."""
    return exported(PERSONS[device], set(LABELS) - set(LACKS[device]))


def agent_toml(here: Fleet, device: str) -> Path:
    """Write a board's recordings and its config file."""
    recorded = here.folder / f"{device}-recordings"
    recorded.mkdir()
    (recorded / f"{device}.csv").write_bytes(windows_of(device))
    (recorded / "description.toml").write_text(DESCRIPTION)
    path = here.folder / f"{device}.toml"
    path.write_text(
        f'[agent]\ndevice = "{device}"\nfederation = "live"\ndata_dir = "{device}"\n'
        f'[server]\nurl = "{here.url}"\n[broker]\nhost = "127.0.0.1"\nport = {here.mqtt}\n'
        f'[sensors]\nsource = "csv"\npath = "{recorded}"\ndescription = "{recorded}/description.toml"\n'
        '[conditions]\nignore = ["all"]\n'
    )
    return path


def data_of(folder: Path) -> LocalData:
    """Read a board's windows as it split them."""
    with closing(WindowStore(folder)) as store:
        windows = store.read(folder.name, PipelineSettings(), LABELS)
    return local_data(windows, a_plan().data, PipelineSettings())


def test_two_boards_and_a_phone_make_a_model_that_is_better_than_each_alone(
    tmp_path: Path,
    page: Page,  # noqa: F811
    faults: list[str],
) -> None:
    def under(name: str) -> list[str]:
        return torch_hidden(tmp_path, name, {WITHOUT}, NOT_IN_EDGE_LITE - {"pandas"})  # which reads CSV files

    with fleet(tmp_path, under, broker=embedded) as here:
        create(here, a_plan())
        for device in (WITH, WITHOUT):
            here.add_device(agent_toml(here, device), "--until-finished")
        join(here, page, PHONE)
        bring_windows(here, page, PHONE, windows_of(PHONE))
        collected = page.evaluate(phones.WINDOWS, version())
        page.goto(f"{here.url}/phone/#take-part")
        here.wait_for(lambda: here.get("/v1/federations/live")["status"] == "finished", "the federation does not end")
        broadcast = here.last_broadcast()
        assert faults == []

    rounds = a_plan().rounds.rounds
    assert runtimes(tmp_path) == {
        (WITH, "torch"): rounds,
        (WITHOUT, "onnx"): rounds,
        (PHONE, "onnxruntime-web"): rounds,
    }
    data = {WITH: data_of(tmp_path / WITH), WITHOUT: data_of(tmp_path / WITHOUT), PHONE: phones.data_of(collected)}
    for device, mine in data.items():
        assert {LABELS[y] for y in mine.train.y} == set(LABELS) - set(LACKS[device])
    judge = Judge(a_plan(), data)
    together, alone = judge.score(broadcast["params"]), {device: judge.alone(device) for device in data}
    print({"together": together} | alone, {device: (len(m.train.y), len(m.holdout.y)) for device, m in data.items()})
    assert together > max(alone.values()), (together, alone)
