"""Two phones in Chromium and two agents in one continuous federation: sums are added, and each uses a head of them.

A phone also withdraws, learns by itself without the server, and goes back to the model before.
"""

from __future__ import annotations

import io
import json
import re
import urllib.request
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from aggregator_api.http.web.phone import RUNTIME, files, version
from federation.plan import Plan
from federation.protocol.enrolment_uri import EnrolmentUri
from har_pipeline import PipelineSettings, StreamPipeline, dataset_labels, recordings
from tests.browser import NEEDS_BROWSER, listen
from tests.live.fleet import PATIENCE_S, Fleet, embedded, fleet
from tests.live.walks import DEVICES, agent_toml, data_options, experiment_for, plan_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [
    *NEEDS_BROWSER,
    pytest.mark.service,
    pytest.mark.skipif(RUNTIME not in files(), reason="no ONNX Runtime for the phone's client: make phone"),
]
MINUTES = 2.0
PHONE_MINUTES = 5.0
"""Enough for a holdout that can tell whether a model works."""
COSINES = 40
PHONES = {"phone-1": "s01_phone100-waist", "phone-2": "s01_phone200-waist"}
HEADER = "time_ms,acc_x,acc_y,acc_z,gyro_x,gyro_y,gyro_z,activity,session"
BEGAN_MS = 1.78e12
HOUR_MS = 3.6e6
USED = re.compile(r"^The (shared|personal) model( for any orientation)? of version \d+")


def a_plan() -> Plan:
    """Exact sums of hand-made features, for boards and browsers alike."""
    plan = plan_of(experiment_for("analytic", minutes=MINUTES))
    changed = {
        "model": {"name": "har_features", "options": {"cosines": COSINES}},
        "training": plan.training.model_copy(update={"feature_dim": 183 + COSINES}),
        "publication": {"interval_s": 2, "send_after_windows": 20},
        "data": plan.data.model_copy(update={"normalization": "none"}),
    }
    return Plan.model_validate({**plan.model_dump(), **changed})


def exported(client: str, activities: Collection[str] = ()) -> bytes:
    """Write somebody's windows as the phone's own export has them: all, or those of some activities."""
    options = {**data_options(PHONE_MINUTES), "subjects": 3}
    stream = StreamPipeline(PipelineSettings(), dataset_labels("synthetic", options))
    windows = [
        window
        for each in recordings("synthetic", None, clients=[client], options=options)
        for window in stream.push(each)
    ]
    windows += stream.flush()
    labels, text = dataset_labels("synthetic", options), io.StringIO()
    print(HEADER, file=text)
    before, number = None, 0
    for window in windows:
        if activities and labels[window.y] not in activities:
            continue
        follows = before is not None and before.session == window.session
        follows = follows and abs(window.start_s - before.start_s - 1.28) < 1e-6
        number += not follows
        for row in range(64 if follows else 0, 128):
            values = ",".join(f"{value:.9g}" for value in window.x[row])
            time_ms = BEGAN_MS + HOUR_MS * window.session + 1e3 * window.start_s + 20 * row
            print(f"{time_ms:.3f},{values},{labels[window.y]},{window.session}/{number}", file=text)
        before = window
    return text.getvalue().encode()


@pytest.fixture
def phones(browser: Browser, faults: list[str]) -> Iterator[dict[str, Page]]:
    """Phones with storage of their own."""
    contexts = {name: browser.new_context(viewport={"width": 360, "height": 740}) for name in PHONES}
    found = {name: context.new_page() for name, context in contexts.items()}
    for page in found.values():
        page.set_default_timeout(1e3 * PATIENCE_S)
        listen(page, faults)
    yield found
    for context in contexts.values():
        context.close()


def test_phones_and_boards_share_one_federation_and_a_phone_withdraws(
    tmp_path: Path, phones: dict[str, Page], faults: list[str]
) -> None:
    with fleet(tmp_path, broker=embedded) as here:
        create(here, a_plan())
        for device, transport in zip(DEVICES, ("mqtt", "http"), strict=True):
            here.add_device(agent_toml(tmp_path, device, here.url, here.mqtt, MINUTES, "", transport))
        for name, page in phones.items():
            join(here, page, name)
            bring_windows(here, page, name)
            page.goto(f"{here.url}/phone/#take-part")
        here.wait_for(lambda: clients(here) == 4, "the sums of two boards and two phones do not come together")
        for page in phones.values():
            page.get_by_text(USED).first.wait_for()
            page.get_by_role("row", name="accepted").first.wait_for()
        everybody = {*DEVICES, *PHONES}
        here.wait_for(lambda: adopters(here) >= everybody, "not every device says which head it uses")
        withdraws_and_returns(here, phones["phone-2"])
        assert faults == []
        recognizes_without_the_server(here, phones["phone-1"])


def withdraws_and_returns(here: Fleet, page: Page) -> None:
    """Its sums go, exactly; it says so, and takes part again when it is told to."""
    before = sums(here)
    page.get_by_text("Withdraw …").click()
    page.get_by_role("button", name="Withdraw", exact=True).click()
    page.get_by_text("It is withdrawn, and sends nothing about its windows.").wait_for()
    here.wait_for(lambda: clients(here) == 3, "the phone's sums are not taken out")
    page.get_by_role("row", name="withdrawal accepted").wait_for()
    page.reload()
    page.get_by_role("button", name="Take part again").click()
    here.wait_for(lambda: clients(here) == 4, "the phone does not come back")
    after = sums(here)
    assert all(torch.equal(after[name], before[name]) for name in ("gram", "moment")), "the same windows, the same sums"


def bring_windows(here: Fleet, page: Page, name: str, content: bytes | None = None) -> None:
    page.goto(f"{here.url}/phone/#data")
    file = {"name": f"{name}.csv", "mimeType": "text/csv", "buffer": content or exported(PHONES[name])}
    page.get_by_label("A file of this app").set_input_files(file)
    page.get_by_role("button", name="Import").click()
    page.get_by_text("windows came in").wait_for()


def create(here: Fleet, plan: Plan) -> None:
    """Make the federation; the server exports the phones' model meanwhile, for which it loads the exporter."""
    body = json.dumps({"name": "live", "plan": plan.model_dump(mode="json")}).encode()
    request = urllib.request.Request(
        here.url + "/v1/federations", body, {"Content-Type": "application/json", **here.bearer}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        assert answer.status == 201


def join(here: Fleet, page: Page, name: str) -> None:
    """Open the operator's link; the second phone has to wait for an approval."""
    approved = name == "phone-1"
    made = here.get("/v1/federations/live/enrolment-tokens", {"device": name, "auto_approve": approved})
    page.goto(EnrolmentUri(here.url, "live", name, made["token"]).phone_link)
    page.get_by_role("button", name="Join").click()
    assert made["token"] not in page.evaluate("location.href")
    if not approved:
        page.get_by_text("has to approve this phone").wait_for()
        here.wait_for(lambda: is_pending(here, name), "the phone does not enrol")
        here.get(f"/v1/federations/live/devices/{name}/approve", {})
    page.get_by_text("It was approved and takes part.").wait_for()


def is_pending(here: Fleet, name: str) -> bool:
    return any(one["name"] == name for one in here.listing("/v1/federations/live/devices"))


def sums(here: Fleet) -> Any:
    """The sums of the newest version."""
    return here.last_broadcast()["sums"]


def clients(here: Fleet) -> int:
    return int(sums(here)["clients"])


def adopters(here: Fleet) -> set[str]:
    """Return who uses a head of the federation's sums, by its own word."""
    used = ("adopted", "kept")  # kept: an older head of its own scores higher there than the newest ones
    return {one["name"] for one in here.listing("/v1/federations/live/devices") if one["adoption"] in used}


def recognizes_without_the_server(here: Fleet, page: Page) -> None:
    """The model lies on the phone: it is there after a reload, without the server."""
    here.server.stop()
    page.goto(f"{here.url}/phone/#recognize")
    page.reload()
    page.get_by_text("Ready:").wait_for()


MADE_WORSE = """async (version) => {
  const { Store } = await import(`/phone/${version}/collection/store.js`);
  const store = await Store.open();
  const kept = await store.get("model");
  const { weight, bias, version: of, sha256 } = kept.model;
  const worse = { weight: weight.map(() => 0), bias: bias.map((_, code) => -code) };
  const model = { head: "personalized_any_orientation", ...worse, version: of, sha256 };
  await store.set("model", { model, release: 0, before: { model: kept.model, release: 0, before: null } });
}"""
"""A model that is of no use, before which another one was in use: it answers the first class to everything."""
IS_USELESS = """async (version) => {
  const { Store } = await import(`/phone/${version}/collection/store.js`);
  return (await (await Store.open()).get("model")).model.weight.every((each) => each === 0);
}"""


@pytest.mark.slow
def test_a_phone_learns_by_itself_and_goes_back_without_the_server(tmp_path: Path, phones: dict[str, Page]) -> None:
    """Both are the owner's to do; what is in use then is so after a reload."""
    page = phones["phone-1"]
    with fleet(tmp_path, broker=embedded) as here:
        create(here, a_plan())
        join(here, page, "phone-1")
        bring_windows(here, page, "phone-1")
        page.goto(f"{here.url}/phone/#take-part")
        here.wait_for(lambda: clients(here) == 1, "the phone's sums do not come")
        page.get_by_text(USED).first.wait_for()
        here.server.stop()
        learns_by_itself_and_goes_back(here, page)


def learns_by_itself_and_goes_back(here: Fleet, page: Page) -> None:
    page.evaluate(MADE_WORSE, version())
    page.goto(f"{here.url}/phone/#take-part")
    page.reload()
    card = page.get_by_role("region", name="The model in use")
    useless = card.get_by_text("The personal model for any orientation of version").first
    useless.wait_for()
    card.get_by_role("button", name="Learn from this phone's windows").click()
    said = card.get_by_role("status")
    said.get_by_text(re.compile(r"% on \d+ holdout windows of")).wait_for()
    assert not page.evaluate(IS_USELESS, version())  # it may be the same kind of head, of the phone's windows now
    card.get_by_text(USED).first.wait_for()
    card.get_by_role("button", name="Go back to the personal model for any orientation").click()
    said.get_by_text("In use: the personal model for any orientation").wait_for()
    useless.wait_for()
    page.reload()
    useless.wait_for()
    assert page.evaluate(IS_USELESS, version())
