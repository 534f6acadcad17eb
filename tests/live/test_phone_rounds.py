"""A phone in Chromium trains a round of an ordinary federation: closed within it, it goes on to where Python ends."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from aggregator_api.http.web.phone import RUNTIME, files, version
from edge_agent.training.local_data import LocalData, local_data
from export.program.host import DeviceExamples, ProgramRound, RoundIdentity, train
from export.program.runtime import Arrays, TrainingProgram
from federation.plan import ModelSpec, Plan, RoundSettings, TrainingConfig
from federation.protocol import arrays
from har_pipeline import ClientWindows, PipelineSettings, dataset_labels
from tests.browser import NEEDS_BROWSER, listen
from tests.live.fleet import PATIENCE_S, embedded, fleet
from tests.live.test_phones import bring_windows, create, join
from tests.live.test_without_torch import runtimes

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [
    *(mark for mark in NEEDS_BROWSER if mark.name != "ci"),  # which tests/phone/training has of its kind
    pytest.mark.slow,
    pytest.mark.service,
    pytest.mark.skipif(RUNTIME not in files(), reason="no ONNX Runtime for the phone's client: make phone"),
]
PHONE = "phone-1"
TOLERANCE = 1e-4
EPOCHS_SAVED = """async (version) => {
  const { Store } = await import(`/phone/${version}/collection/store.js`);
  return (await (await Store.open()).get("round"))?.saved.progress.epoch ?? 0;
}"""
WINDOWS = """async (version) => {
  const { Store } = await import(`/phone/${version}/collection/store.js`);
  const windows = await (await Store.open()).windows();
  return windows.map(({ startMs, label, session, x }) => [startMs, label, session, Array.from(x)]);
}"""


def a_plan() -> Plan:
    labels = dataset_labels("synthetic")
    training = TrainingConfig(classes=len(labels), epochs=8, batch_size=32, seed=3)
    return Plan(
        labels=labels,
        model=ModelSpec(name="har_cnn"),
        method={"name": "fedavg"},
        training=training,
        rounds=RoundSettings(rounds=1, minimum_clients=1),
    )


@pytest.fixture
def page(browser: Browser, faults: list[str]) -> Any:
    context = browser.new_context(viewport={"width": 360, "height": 740})
    context.set_default_timeout(1e3 * PATIENCE_S)
    found = context.new_page()
    listen(found, faults)
    yield found
    context.close()


def test_a_phone_trains_a_round_is_closed_within_it_and_ends_where_python_does(
    tmp_path: Path, page: Page, faults: list[str]
) -> None:
    def under(name: str) -> list[str]:
        return ["env", "GAITWAY_PROGRAMS=true"] if name == "server" else []

    with fleet(tmp_path, under, broker=embedded) as here:
        create(here, a_plan())
        join(here, page, PHONE)
        bring_windows(here, page, PHONE)
        windows = page.evaluate(WINDOWS, version())
        begun_with = here.blob(here.listing("/v1/federations/live/models")[0]["sha256"])
        page.goto(f"{here.url}/phone/#take-part")
        page.get_by_text("Round 1:").wait_for()
        page.wait_for_function(f"async () => (await ({EPOCHS_SAVED})('{version()}')) > 0")
        page.goto("about:blank")  # closed: its worker is gone
        page.goto(f"{here.url}/phone/#take-part")
        here.wait_for(lambda: here.get("/v1/federations/live")["status"] == "finished", "the phone does not end it")
        page.get_by_text("network of version 1:").or_(page.get_by_text("network of round 1:")).first.wait_for()
        page.get_by_role("row", name="accepted").wait_for()
        assert page.get_by_text("Sums").count() == 0
        page.goto(f"{here.url}/phone/#recognize")
        page.get_by_text("Ready:").wait_for()
        program = here.blob(here.get("/v1/federations/live")["program"]["file"]["sha256"])
        came = here.last_broadcast()["params"]
        assert faults == []
    assert runtimes(tmp_path) == {(PHONE, "onnxruntime-web"): 1}
    expected = trained(program, begun_with, windows)
    for name, value in came.items():
        mine = expected[f"upload/params/{name}"]
        np.testing.assert_allclose(value.numpy(), mine, atol=TOLERANCE, rtol=0, err_msg=name)


def trained(program: bytes, broadcast: bytes, windows: list[Any]) -> Arrays:
    """What a device without torch of that name sends after the round, with these windows."""
    data = data_of(windows)
    sent = {f"broadcast/{name}": value for name, value in arrays.read_kept(broadcast).items()}
    mine = DeviceExamples(data.normalized(data.train).astype(np.float32), data.train.y)
    return train(ProgramRound(TrainingProgram.load(program), {}, sent, mine, RoundIdentity(PHONE, 1))).upload


def data_of(windows: list[Any]) -> LocalData:
    """Split a phone's windows as a device does."""
    labels = a_plan().labels
    starts, names, sessions, x = zip(*(one for one in windows if one[1] in labels), strict=True)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(sessions))}
    found = ClientWindows(
        PHONE,
        np.array(x, np.float32).reshape(-1, 128, 6),
        np.array([labels.index(name) for name in names], np.int64),
        np.array(starts) / 1000,
        np.array([numbers[name] for name in sessions], np.int64),
    )
    return local_data(found, a_plan().data, PipelineSettings())
