"""What an operator does with versions by pages alone: roll out, roll back, promote; and whom the gates turn away."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from sqlalchemy import select

from aggregator_api.auth import api_keys
from aggregator_api.core.settings import Settings
from aggregator_api.federations.service import get_federation
from aggregator_api.http.app import create_app
from aggregator_api.rollouts.transitions import under_way
from aggregator_api.storage.db.models import AuditRow, DeviceRow
from edge_agent.machine.releases import offered_to
from federation.protocol import topics
from federation.protocol.messages import Announcement, DeviceStatus, ReleaseOrder, ReleaseReport, read, write
from federation.protocol.signing import unwrap
from tests.aggregator_api.generated_devices import Wires
from tests.aggregator_api.http_client import TestClient
from tests.aggregator_api.web.seeded import WALKS, seed
from tests.aggregator_api.web.visitors import Visitor, key_of

HERE = f"/federations/{WALKS}"
DEVICES = [f"phone-{k:02d}" for k in range(1, 5)]


class SentForm(NamedTuple):
    """The form of a release's page, as a browser would send it."""

    action: str
    fields: dict[str, str]
    wants_reason: bool


@pytest.fixture
def visitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitor]:
    """An operator at a server with four devices and versions 0 to 2, none of which was rolled out."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("releases"), aggregation_process=False)
    with TestClient(create_app(settings, Wires)) as client:
        seed(client.runtime, devices=4, rounds=3, rollout=False)
        yield Visitor.logged_in(client, (settings.data_dir / api_keys.OPERATOR_FILE).read_text().strip())


def form_on(visitor: Visitor, page: str) -> SentForm | None:
    """Return the form that a page offers for its action; None where it offers none."""
    text = visitor.get(page).text
    found = re.search(r'<form method="post" action="([^"]+)" class="stack">(.*?)</form>', text, re.S)
    if found is None:
        return None
    fields = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', found[2]))
    return SentForm(html.unescape(found[1]), fields, 'name="reason"' in found[2])


def order_of(visitor: Visitor) -> ReleaseOrder:
    """Return what devices were told last about releases."""
    wires = visitor.server.runtime.transport
    assert isinstance(wires, Wires)
    said = [read(Announcement, unwrap(body).body) for topic, body, _ in wires.sent if topic == topics.announce(WALKS)]
    assert said[-1].release is not None
    return said[-1].release


def answer(visitor: Visitor, device: str, rollout: int) -> None:
    """Let a device say that it uses a rollout's version."""
    runtime = visitor.server.runtime
    with runtime.database.read() as session:
        instance = get_federation(session, WALKS).instance
    said = {"answer": "adopted", "score": {1: 0.3, 2: 0.9}[rollout]}  # so that the second version stays the better one
    report = ReleaseReport.model_validate({"instance": instance, "rollout": rollout, **said})
    runtime.ingest.handle(topics.status(WALKS, device), write(DeviceStatus(state="ready", release=report)))


def words_in(text: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


@pytest.mark.ci
def test_a_version_is_rolled_out_completed_replaced_and_rolled_back_by_pages(visitor: Visitor) -> None:
    for version in (1, 2):  # the first, which then is what the second is taken back to
        page = f"{HERE}/models/{version}/roll-out?schedule=standard"
        assert "10 % of the devices, 1 of 4" in words_in(visitor.get(page).text)
        form = form_on(visitor, page)
        assert form is not None
        assert form.wants_reason == (version == 1)  # stable is version 2, which is better
        fields = {**form.fields, "reason": "the first"} if form.wants_reason else form.fields
        assert visitor.post(form.action, fields).headers["location"] == f"{HERE}/rollouts/{version}"
        order = order_of(visitor)
        getting = [device for device in DEVICES if offered_to(device, order) == order.candidate]
        assert len(getting) == 1
        assert order.candidate is not None
        assert order.candidate.version == version
        assert "rolling" in visitor.get(f"{HERE}/rollouts/{version}").text
        for device in getting:
            answer(visitor, device, version)
        if version == 1:
            complete(visitor)
            assert all(offered_to(device, order_of(visitor)) == order_of(visitor).released for device in DEVICES)
    back = form_on(visitor, f"{HERE}/models/2/roll-back")
    assert back is not None
    assert "leave version 2 for version 1" in words_in(visitor.get(f"{HERE}/models/2/roll-back").text)
    assert visitor.post(back.action, back.fields).status_code == 303
    order = order_of(visitor)
    assert (order.candidate, order.withdrawn) == (None, (2,))
    assert order.released is not None
    assert order.released.version == 1
    assert form_on(visitor, f"{HERE}/models/2/roll-back") is None  # no rollout gives it to anybody, and it is latest
    timeline = words_in(visitor.get(f"{HERE}/rollouts").text).partition("Timeline of versions")[2]
    assert timeline.index("halted") < timeline.index("completed") < timeline.rindex("rollout")
    with visitor.server.runtime.database.read() as session:
        done = session.scalars(select(AuditRow.action).where(AuditRow.federation == WALKS).order_by(AuditRow.id)).all()
    assert [one for one in done if one.startswith("rollouts.")] == ["rollouts.create"] * 2 + ["rollouts.halt"]


def complete(visitor: Visitor) -> None:
    """Let every device take the version up, and the waves' time pass."""
    runtime = visitor.server.runtime
    for _ in range(8):
        with runtime.database.read() as session:
            row = under_way(session, get_federation(session, WALKS))
            if row is None:
                return
            began, number = row.wave_started_at, row.number
            names = session.scalars(select(DeviceRow.name).where(DeviceRow.enrolment == "approved")).all()
        order = order_of(visitor)
        for device in names:
            if offered_to(device, order) == order.candidate:
                answer(visitor, device, number)
        runtime.rollout_scheduler.tick(began + 601)
    pytest.fail("the rollout was not completed")


@pytest.mark.ci
def test_a_gate_turns_away_in_words_and_a_reason_opens_only_that_of_the_measure(visitor: Visitor) -> None:
    page = f"{HERE}/models/1/promote"  # stable is version 2, which devices measured to be better
    form = form_on(visitor, page)
    assert form is not None
    assert form.wants_reason
    assert "needs a reason" in words_in(visitor.get(page).text)
    unforced = {name: value for name, value in form.fields.items() if name != "force"}
    refused = visitor.post(form.action, unforced)
    assert refused.status_code == 409
    assert "it is worse" in words_in(refused.text)
    assert visitor.post(form.action, {**form.fields, "reason": " "}).status_code == 422
    assert visitor.post(form.action, {**form.fields, "reason": "a demonstration"}).status_code == 303
    unknown = visitor.post(f"{HERE}/rollouts", {"csrf": form.fields["csrf"], "version": "2", "schedule": "hourly"})
    assert unknown.status_code == 422
    assert "schedule: 'hourly' is none of standard, careful, at-once, plan" in words_in(unknown.text)
    late = visitor.post(form.action, {**form.fields, "reason": "pressed again in another tab"})
    assert late.status_code == 409
    assert "was version 2 on the page" in words_in(late.text)
    switched = {"csrf": form.fields["csrf"], "mode": "off", "schedule": "standard"}
    assert visitor.post(HERE, switched).headers["location"] == f"{HERE}/rollouts"
    page = f"{HERE}/models/1/roll-out"
    assert form_on(visitor, page) is None
    assert "devices choose their own models" in words_in(visitor.get(page).text).lower()
    refused = visitor.post(f"{HERE}/rollouts", {"csrf": form.fields["csrf"], "version": "1"})
    assert refused.status_code == 409
    assert "PATCH" not in refused.text
    assert visitor.post(HERE, {**switched, "mode": "automatic", "schedule": "hourly"}).status_code == 422
    assert visitor.post(HERE, {**switched, "mode": "automatic"}).status_code == 303
    with visitor.server.runtime.database.read() as session:
        plan = get_federation(session, WALKS).plan["rollout"]
    assert (plan["mode"], plan["waves"], plan["soak_s"]) == ("automatic", [0.1, 0.5, 1.0], 600.0)
    with visitor.server.runtime.database.read() as session:
        assert session.scalars(select(AuditRow).where(AuditRow.action == "federations.change")).first() is not None


def test_a_key_that_reads_sees_the_page_and_may_not_press_the_button(visitor: Visitor) -> None:
    reader = Visitor.logged_in(visitor.server, key_of(visitor.server, ["read"]))
    page = f"{HERE}/models/1/roll-out?schedule=standard"
    form = form_on(visitor, page)
    assert form is not None
    assert reader.get(page).status_code == 200
    assert form_on(reader, page) is None
    assert reader.post(form.action, {**form.fields, "csrf": reader.token("/")}).status_code == 403
    with visitor.server.runtime.database.read() as session:
        assert under_way(session, get_federation(session, WALKS)) is None
