"""A phone in Chromium and two boards add a round's changes up by a secure sum: their weighted mean, and no single one.

The page is closed within the round; what it goes on with is what Python trains with the phone's windows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggregator_api.http.web.phone import RUNTIME, files, version
from edge_agent.training.local_data import LocalData
from export.program.host import DeviceExamples, ProgramRound, RoundIdentity, train
from export.program.runtime import TrainingProgram
from federation.plan import ModelSpec, Plan, RoundSettings, SecureSettings, TrainingConfig
from federation.protocol import arrays
from har_pipeline import dataset_labels
from tests.browser import NEEDS_BROWSER
from tests.live.fleet import embedded, fleet
from tests.live.test_continuous import rows
from tests.live.test_phone_rounds import EPOCHS_SAVED, PHONE, WINDOWS
from tests.live.test_phone_rounds import data_of as data_of_phone
from tests.live.test_phone_rounds import page as page
from tests.live.test_phones import bring_windows, create, join
from tests.live.test_private_phones import HASTE, SHOWS_NO_DEVICE
from tests.live.test_without_torch import data_of
from tests.live.walks import DEVICES, agent_toml

pytestmark = [
    *(mark for mark in NEEDS_BROWSER if mark.name != "ci"),
    pytest.mark.slow,
    pytest.mark.service,
    pytest.mark.skipif(RUNTIME not in files(), reason="no ONNX Runtime for the phone's client: make phone"),
]
TOLERANCE = 1e-4
"""Of what the phone and Python train; the sum's fixed point is far below it."""


NOISE = SecureSettings(
    mode="masked", stage_s=600, steps=65_536, max_weight=1, clip_norm=655_360.0, noise_multiplier=1e-3
)
"""Of a deviation that lets the mean be seen: 655 steps from each of the three, as the plan counts on one of them."""


def a_plan(secure: SecureSettings) -> Plan:
    labels = dataset_labels("synthetic")
    return Plan(
        labels=labels,
        model=ModelSpec(name="har_cnn", options={"channels": [8, 8], "feature_dim": 16, "hidden": 24}),
        method={"name": "fedavg"},
        # not Adam: of a bias before a GroupNorm of one channel a group it would make steps of `lr` of rounding alone
        training=TrainingConfig(
            classes=len(labels), feature_dim=16, epochs=6, batch_size=32, optimizer="sgd", lr=0.05, seed=3
        ),
        rounds=RoundSettings(rounds=1, minimum_clients=3, norm_factor=None, max_weight_ratio=None, deadline_s=600),
        secure=secure,
    )


@pytest.mark.parametrize("secure", [SecureSettings(mode="masked", stage_s=600), NOISE], ids=["sum", "noise"])
def test_a_phone_and_two_boards_end_at_their_mean_of_which_the_server_sees_the_sum(
    secure: SecureSettings, tmp_path: Path, page: Any, faults: list[str]
) -> None:
    def under(name: str) -> list[str]:
        return ["env", "GAITWAY_PROGRAMS=true"] if name == "server" else []

    with fleet(tmp_path, under, broker=embedded) as here:
        create(here, a_plan(secure))
        join(here, page, PHONE)
        bring_windows(here, page, PHONE)
        windows = page.evaluate(WINDOWS, version())
        begun_with = here.blob(here.listing("/v1/federations/live/models")[0]["sha256"])
        here.wait_for(
            lambda: here.get("/v1/federations/live")["program"]["state"] == "ready", "the server makes no program"
        )
        page.goto(f"{here.url}/phone/#take-part")
        for device in DEVICES:
            config = agent_toml(tmp_path, device, here.url, here.mqtt, 1.0)
            config.write_text(HASTE + config.read_text())
            here.add_device(config, enrols=True)
        page.wait_for_function(f"async () => (await ({EPOCHS_SAVED})('{version()}')) > 0")
        page.goto("about:blank")  # closed: its worker is gone
        page.goto(f"{here.url}/phone/#take-part")
        here.wait_for(lambda: here.get("/v1/federations/live")["status"] == "finished", "the round does not end")
        program = TrainingProgram.load(here.blob(here.get("/v1/federations/live")["program"]["file"]["sha256"]))
        came = here.last_broadcast()["params"]
        assert faults == []
    database = tmp_path / "data" / "gaitway.sqlite3"
    assert [rows(database, query) for query in SHOWS_NO_DEVICE] == [[0], [0], [0]]
    assert rows(database, "SELECT summed_devices FROM secure_sums") == [3]

    everybody = {PHONE: data_of_phone(windows), **{device: data_of(tmp_path / device) for device in DEVICES}}
    sent = {f"broadcast/{name}": value for name, value in arrays.read_kept(begun_with).items()}
    uploads = {name: trained(program, sent, name, data) for name, data in everybody.items()}
    weights = [min(len(data.train.y), secure.max_weight) for data in everybody.values()]
    moved, apart = 0.0, {}
    for name, value in came.items():
        mean = np.average([each[f"upload/params/{name}"] for each in uploads.values()], axis=0, weights=weights)
        moved = max(moved, np.abs(mean - sent[f"broadcast/params/{name}"]).max())
        apart[name] = (value.numpy() - mean).ravel()
    assert moved > 100 * TOLERANCE, "nothing was learnt"
    if not secure.noise_multiplier:
        assert {name: each for name, each in apart.items() if np.abs(each).max() > TOLERANCE} == {}
        return
    noise = np.concatenate(list(apart.values())) * secure.steps * len(everybody)
    wanted = secure.noise_multiplier * (secure.clip_norm or 0) * len(everybody) ** 0.5
    assert 0.92 < noise.std() / wanted < 1.08, "each of the three has added its share"  # two of them would be 0.82
    assert abs(noise.mean()) < 5 * wanted / noise.size**0.5


def trained(program: TrainingProgram, sent: dict[str, Any], name: str, data: LocalData) -> dict[str, Any]:
    """Train the round as a device of that name does."""
    mine = DeviceExamples(data.normalized(data.train).astype(np.float32), data.train.y)
    return train(ProgramRound(program, {}, sent, mine, RoundIdentity(name, 1))).upload
