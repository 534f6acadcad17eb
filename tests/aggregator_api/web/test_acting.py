"""What the forms do: the same as REST, by the same services."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
import torch
from sqlalchemy import select

from aggregator_api.auth import api_keys
from aggregator_api.core.settings import Settings
from aggregator_api.federations.service import NewFederation, get_federation
from aggregator_api.http.app import create_app
from aggregator_api.http.web.forms import PRESETS, filled
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import AuditRow, EventRow
from export.runtime import Session
from federation import wire
from federation.protocol.enrolment_uri import read_enrolment_uri
from models.checkpoint import load_checkpoint
from tests.aggregator_api.generated_devices import Wires
from tests.aggregator_api.http_client import TestClient
from tests.aggregator_api.web.seeded import Seeder, plan, seed
from tests.aggregator_api.web.visitors import FROM_HERE, Visitor


@pytest.fixture(scope="module")
def visitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitor]:
    """An operator at a server of this module's own, which its tests change."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("acting"), aggregation_process=False)
    with TestClient(create_app(settings, Wires)) as client:
        seed(client.runtime, devices=4, rounds=3)
        yield Visitor.logged_in(client, (settings.data_dir / api_keys.OPERATOR_FILE).read_text().strip())


def words_in(text: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", text))


EXPORTS = ("exact", "phones")
"""Presets whose federation begins with the export of its model, which takes seconds."""
QUICK = ("first", "private")


@pytest.mark.parametrize(
    "preset", [pytest.param(name, marks=() if name in QUICK else pytest.mark.ci) for name in PRESETS]
)
def test_every_preset_makes_a_federation_once_it_has_a_name(visitor: Visitor, preset: str) -> None:
    fields = {**filled(preset), "name": f"from-{preset}", "csrf": visitor.token("/")}
    checked = visitor.post("/new-federation/check", fields)
    assert "This can be created" in checked.text
    answer = visitor.post("/new-federation", fields)
    assert answer.headers["location"] == f"/federations/from-{preset}"
    fields = {"device": "phone-1", "hours": "1"}
    text = words_in(visitor.submit(f"/federations/from-{preset}/enrolment-tokens", fields).text)
    assert ("Phones' browsers can't take part" not in text) == (preset in EXPORTS)
    text = words_in(visitor.submit(f"/federations/from-{preset}/enrolment-tokens", {"hours": "1"}).text)
    assert ("its link needs the phone's name" in text) == (preset in EXPORTS)
    shown = visitor.get(answer.headers["location"]).text
    assert "running" in shown
    assert ("Secure sums are on" in shown) == (preset == "private")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("name", "", "name"),
        ("name", "../up", "name"),
        ("name", "walks", "a federation 'walks' already exists"),
        ("labels", "only", "labels"),
        ("rounds", "many", "rounds: expected a whole number, got 'many'"),
        ("lr", "-1", "lr"),
        ("secure", "clear", "hides nothing"),
        ("model", "nothing", "'nothing'"),
        ("method", "fedavgg", "fedavg"),
        ("further", "[rounds", "further settings are not TOML"),
        ("further", "[rounds]\nunheard = 1", "unheard"),
        ("further", "task = {name = 'segmentation'}", "segmentation"),
        ("further", "model = 7", "model"),
        ("further", "training = 7", "training"),
    ],
)
def test_the_form_is_told_what_is_wrong_and_keeps_what_was_typed(
    visitor: Visitor, field: str, value: str, words: str
) -> None:
    fields = {**filled("first"), "name": "tried", field: value, "csrf": visitor.token("/")}
    assert words in words_in(visitor.post("/new-federation/check", fields).text)
    answer = visitor.post("/new-federation", fields)
    assert answer.status_code in (409, 422)
    assert words in words_in(answer.text)
    assert value in html.unescape(answer.text)
    assert visitor.get("/federations/tried").status_code == 404


def test_a_federation_is_paused_resumed_and_stopped(visitor: Visitor) -> None:
    here = "/federations/walks"
    for step, state in (("pause", "paused"), ("resume", "running")):
        assert visitor.submit(f"{here}/{step}").headers["location"] == here
        assert f'<span class="state {state}">' in visitor.get(here).text
    name = "short-lived"
    visitor.post("/new-federation", {**filled("first"), "name": name, "csrf": visitor.token("/")})
    assert visitor.submit(f"/federations/{name}/stop").status_code == 303
    assert 'class="state stopped"' in visitor.get(f"/federations/{name}").text


def test_a_token_is_shown_once_with_a_link_that_a_device_reads(visitor: Visitor) -> None:
    fields = {"device": "phone-77", "tags": "pilot, east", "hours": "24", "server": "https://gaitway.example/"}
    answer = visitor.submit("/federations/walks/enrolment-tokens", fields)
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    found = re.search(r'href="(gaitway-enrol:[^"]+)"', answer.text)
    assert found is not None
    uri = read_enrolment_uri(html.unescape(found[1]))
    assert (uri.server, uri.federation, uri.device) == ("https://gaitway.example", "walks", "phone-77")
    assert "<svg" in answer.text
    later = visitor.get("/federations/walks/enrolment").text
    assert "phone-77" in later
    assert uri.token not in later
    number = re.findall(r"/enrolment-tokens/(\d+)/revoke", later)[-1]
    visitor.submit(f"/federations/walks/enrolment-tokens/{number}/revoke", {})
    assert "revoked" in visitor.get("/federations/walks/enrolment").text


@pytest.mark.parametrize(
    ("server", "works"),
    [
        ("https://gaitway.example", True),
        ("http://localhost:8080", True),
        ("http://[::1]:8080", True),
        ("http://192.0.2.7:8080", False),
        ("http://127.0.0.1.evil.example", False),
    ],
)
def test_a_phones_link_opens_its_page_with_the_same_token_and_says_where_that_cannot_work(
    visitor: Visitor, server: str, works: bool
) -> None:
    fields = {"device": "phone-79", "hours": "1", "server": server}
    text = visitor.submit("/federations/walks/enrolment-tokens", fields).text
    native, phone = (html.unescape(each) for each in re.findall(r'class="long" href="([^"]+)"', text))
    page, _, fragment = phone.partition("#")
    assert page == f"{server}/phone/"
    assert unquote(fragment) == native  # what decodeURIComponent makes of it
    assert read_enrolment_uri(unquote(fragment)).server == server
    assert ("isn't one" not in words_in(text)) == works
    assert "Phones' browsers can't take part" in words_in(text)
    assert text.count("<svg") >= 2


def test_a_token_for_any_device_has_no_link_for_a_phone(visitor: Visitor) -> None:
    text = visitor.submit("/federations/walks/enrolment-tokens", {"hours": "1"}).text
    assert "/phone/" not in text
    assert "for any device" in words_in(text)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"device": "no name"}, "device"),
        ({"hours": "x"}, "hours"),
        ({"server": "nowhere"}, "server"),
        ({"tags": "a b"}, "tags"),
    ],
)
def test_a_token_that_cannot_be_made_is_refused_in_words(visitor: Visitor, fields: dict[str, str], words: str) -> None:
    answer = visitor.submit("/federations/walks/enrolment-tokens", {"device": "phone-78", **fields})
    assert answer.status_code == 422
    assert words in answer.text


def test_a_device_is_approved_put_into_groups_and_revoked(visitor: Visitor) -> None:
    here = "/federations/walks/devices/phone-new"
    assert "waits for an operator" in visitor.get(here).text
    assert visitor.submit(f"{here}/approve", {"back": "enrolment"}).headers["location"].endswith("/enrolment")
    visitor.submit(f"{here}/tags", {"tags": "pilot; west"})
    assert 'value="pilot, west"' in visitor.get(here).text
    assert visitor.submit(f"{here}/tags", {"tags": "<b>"}).status_code == 422
    visitor.submit(f"{here}/revoke")
    assert "It was revoked" in visitor.get(here).text


def test_a_version_is_released_and_the_rollout_steered(visitor: Visitor) -> None:
    visitor.post(
        "/new-federation",
        {**filled("first"), "name": "releasing", "further": '[rollout]\nmode = "manual"', "csrf": visitor.token("/")},
    )
    here = "/federations/releasing/rollouts"
    assert visitor.submit(here, {"version": "zero"}).status_code == 422
    assert visitor.submit(here, {"version": "9"}).status_code == 404
    assert visitor.submit(here, {"version": "0"}).headers["location"] == f"{here}/1"
    for step, phase in (("pause", "paused"), ("resume", "rolling"), ("halt", "halted")):
        assert visitor.submit(f"{here}/1/{step}").status_code == 303
        assert f'class="state {phase}"' in visitor.get(f"{here}/1").text
    assert visitor.submit(f"{here}/1/pause").status_code == 409


def test_a_name_is_moved_to_another_version(visitor: Visitor) -> None:
    here = "/federations/walks/aliases"
    forced = {"force": "yes", "reason": "a trial"}
    for version, more in (("1", {}), ("0", forced)):
        assert visitor.submit(here, {"alias": "checked", "version": version, **more}).status_code == 303
        assert f"<strong>checked</strong> is version {version}" in visitor.get("/federations/walks/models").text
    for wrong in ({"alias": "checked", "version": "x"}, {"alias": "Checked!", "version": "1"}, {"version": "1"}):
        assert visitor.submit(here, wrong).status_code == 422
    assert visitor.submit(here, {"alias": "checked", "version": "99"}).status_code == 404
    assert visitor.submit(here, {"alias": "checked", "version": "1"}).status_code == 303  # measured to be better
    assert visitor.submit(here, {"alias": "checked", "version": "0"}).status_code == 409
    with visitor.server.runtime.database.read() as session:
        entries = session.scalars(select(AuditRow).where(AuditRow.action == "aliases.set")).all()
    assert [(one.federation, one.detail) for one in entries][:1] == [("walks", '{"alias": "checked", "version": "1"}')]


def test_a_name_is_removed_and_its_version_stays(visitor: Visitor) -> None:
    here, models = "/federations/walks/aliases", "/federations/walks/models"
    visitor.submit(here, {"alias": "kept-for-now", "version": "1"})
    listed = visitor.get(models).text
    assert f'action="{here}/kept-for-now/delete"' in listed
    assert f'action="{here}/stable/delete"' not in listed  # rounds move it
    assert visitor.submit(f"{here}/kept-for-now/delete").headers["location"] == models
    listed = visitor.get(models).text
    assert "kept-for-now" not in listed
    assert '<th scope="row">v1</th>' in listed
    for name, status in (("kept-for-now", 404), ("stable", 409), ("released", 409), ("No", 422)):
        assert visitor.submit(f"{here}/{name}/delete").status_code == status, name
    with visitor.server.runtime.database.read() as session:
        done = select(AuditRow).where(AuditRow.action == "aliases.delete").order_by(AuditRow.id)
        assert [each.federation for each in session.scalars(done)][:1] == ["walks"]
        said = session.scalars(select(EventRow.detail).where(EventRow.kind == "model.alias")).all()
        assert "kept-for-now removed" in said


def test_a_federation_starts_from_another_ones_version(visitor: Visitor) -> None:
    fields = {**filled("first"), "name": "second", "csrf": visitor.token("/")}
    fields |= {"start_federation": "gestures", "start_version": "0", "model": "har_cnn"}
    fields["further"] = "[model]\noptions = {channels = [8, 8], feature_dim = 8, hidden = 8}"
    assert "This can be created" in visitor.post("/new-federation/check", fields).text
    assert visitor.post("/new-federation", fields).status_code == 303
    runtime = visitor.server.runtime
    with runtime.database.read() as session:
        sums = [repositories.current_version(session, get_federation(session, one)) for one in ("second", "gestures")]
        made, base = (wire.decode(runtime.blobs.read(one.broadcast_sha256), limit_bytes=1 << 20) for one in sums)
    bodies = [name for name in made["params"] if not name.startswith("head.")]
    assert bodies
    assert all(torch.equal(made["params"][name], base["params"][name]) for name in bodies)
    shown = visitor.get("/new-federation").text
    assert "<option>gestures</option>" in shown


class FormReader(HTMLParser):
    """Reads what a browser would send of a page's form, untouched."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fields: dict[str, str] = {}
        self._select = self._text = ""
        self._option: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        name = named.get("name", "")
        if tag == "input" and name:
            self.fields[name] = named.get("value", "")
        elif tag == "textarea":
            self._text, self.fields[name] = name, ""
        elif tag == "select":
            self._select, self.fields[name] = name, ""
        elif tag == "option" and "selected" in named:
            self._option = named.get("value")
            self.fields[self._select] = self._option or ""

    def handle_endtag(self, tag: str) -> None:
        self._text = "" if tag == "textarea" else self._text
        if tag == "option":
            self._option = None

    def handle_data(self, data: str) -> None:
        if self._text:
            self.fields[self._text] += data
        elif self._select and self.lasttag == "option" and self.get_starttag_text() == "<option selected>":
            self.fields[self._select] = data


def test_a_federation_continues_from_another_with_all_that_its_model_needs(visitor: Visitor) -> None:
    fields = FormReader(visitor.get("/new-federation?start=walks&version=0").text).fields
    answer = visitor.post("/new-federation", {**fields, "name": "continued", "csrf": visitor.token("/")})
    assert answer.status_code == 303, words_in(answer.text)
    with visitor.server.runtime.database.read() as session:
        old, new = (get_federation(session, name).plan for name in ("walks", "continued"))
        created = select(EventRow.detail).where(EventRow.kind == "federation.created").order_by(EventRow.id.desc())
        assert "started from version 0 of 'walks'" in (session.scalars(created).first() or "")
    for part in ("labels", "model", "method", "training", "data", "task"):
        assert new[part] == old[part], part
    assert new["rollout"]["mode"] == "automatic"  # how its models are released is its own


@pytest.mark.ci
def test_a_federation_continues_from_an_uploaded_checkpoint(visitor: Visitor) -> None:
    """As the page's script does it: the file's bytes, then the form that they fill in."""
    checkpoint = visitor.get("/federations/walks/models/0/checkpoint").content
    sent = {**FROM_HERE, "cookie": visitor.cookie, "content-type": "application/octet-stream"}
    assert visitor.server.post("/checkpoints", content=checkpoint, headers=sent).status_code == 403  # no token
    answer = visitor.server.post(
        "/checkpoints", content=checkpoint, headers={**sent, "x-csrf-token": visitor.token("/")}
    )
    assert answer.status_code == 201, answer.text
    fields = FormReader(visitor.get(f"/new-federation?checkpoint={answer.json()['sha256']}").text).fields
    created = visitor.post("/new-federation", {**fields, "name": "uploaded", "csrf": visitor.token("/")})
    assert created.status_code == 303, words_in(created.text)
    with visitor.server.runtime.database.read() as session:
        old, new = (get_federation(session, name).plan for name in ("walks", "uploaded"))
    for part in ("labels", "method", "data", "task"):
        assert new[part] == old[part], part
    assert new["model"]["options"].items() >= old["model"]["options"].items()  # a checkpoint names every option
    assert visitor.get(f"/new-federation?checkpoint={'0' * 64}").status_code == 404


@pytest.mark.parametrize(
    ("start", "words"),
    [
        ({"start_federation": "gestures", "start_version": "x"}, "start_version: expected a whole number"),
        ({"start_federation": "gestures", "start_version": "7"}, "has no model version 7"),
        ({"start_federation": "nobody"}, "nobody"),
        ({"start_version": "1"}, "start_version: of which federation?"),
        ({"start_federation": "gestures", "start_checkpoint": "0" * 64}, "leave one empty"),
    ],
)
def test_a_start_that_does_not_exist_is_refused_in_words(visitor: Visitor, start: dict[str, str], words: str) -> None:
    fields = {**filled("first"), "name": "third", "csrf": visitor.token("/"), **start}
    assert words in words_in(visitor.post("/new-federation/check", fields).text)
    assert words in words_in(visitor.post("/new-federation", fields).text)


def test_older_rounds_are_paged_on_the_time_line(visitor: Visitor) -> None:
    here = "/federations/paged"
    visitor.server.runtime.federations.create(NewFederation(name="paged", plan=plan()))
    with visitor.server.runtime.database.write() as session:
        Seeder(session, get_federation(session, "paged"), 2).fill(14)
    newest = visitor.get(here).text
    assert re.findall(r'<th scope="row">(\d+)</th>', newest) == [str(n) for n in range(14, 2, -1)]
    assert 'href="?before=3#rounds"' in newest
    older = visitor.get(f"{here}?before=3").text
    assert re.findall(r'<th scope="row">(\d+)</th>', older) == ["2", "1"]
    assert 'hx-get="/live/federations/paged/rounds?before=3"' in older
    assert visitor.get(f"/live{here}/rounds?before=3").text.strip() in older
    assert visitor.get(f"{here}?before=0").status_code == 422


def test_a_checkpoint_holds_the_versions_weights_and_its_origin(visitor: Visitor, tmp_path: Path) -> None:
    answer = visitor.get("/federations/gestures/models/0/checkpoint")
    assert answer.headers["content-disposition"] == 'attachment; filename="gestures-0.safetensors"'
    file = tmp_path / "model.safetensors"
    file.write_bytes(answer.content)
    module, info = load_checkpoint(file)
    assert (info.federation, info.round, info.method, info.model) == ("gestures", 0, "fedavg", "har_cnn")
    runtime = visitor.server.runtime
    broadcast = wire.decode(runtime.blobs.read(info.parent_sha256), limit_bytes=1 << 20)
    for name, value in module.named_parameters():
        assert torch.equal(value, broadcast["params"][name]), name


def test_a_method_without_a_model_for_all_has_none_to_take_away(visitor: Visitor) -> None:
    visitor.post("/new-federation", {**filled("personal"), "name": "own-heads", "csrf": visitor.token("/")})
    answer = visitor.get("/federations/own-heads/models/0/checkpoint")
    assert answer.status_code == 409
    assert "has no global model" in answer.text


@pytest.mark.ci
def test_the_onnx_file_answers_as_the_checkpoint_does(visitor: Visitor, tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(visitor.get("/federations/gestures/models/0/checkpoint").content)
    answer = visitor.get("/federations/gestures/models/0/onnx")
    assert answer.status_code == 200, answer.text
    (tmp_path / "a.onnx").write_bytes(answer.content)
    module, _ = load_checkpoint(tmp_path / "a.safetensors")
    x = np.random.default_rng(0).normal(size=(5, 128, 6)).astype(np.float32)
    with torch.no_grad():
        expected = module(torch.from_numpy(x))
    logits = expected.logits if hasattr(expected, "logits") else expected[-1]
    np.testing.assert_allclose(Session.load(tmp_path / "a.onnx").predict(x).logits, logits.numpy(), atol=1e-4)


def test_a_suspension_is_seen_and_lifted_with_one_click_or_over_rest(visitor: Visitor) -> None:
    from aggregator_api.storage.db.models import DeviceRow

    def suspend(name: str) -> None:
        with visitor.server.runtime.database.write() as session:
            here = get_federation(session, "walks").id
            row = session.scalars(select(DeviceRow).filter_by(name=name, federation_id=here)).one()
            row.suspended_at, row.suspension_reason, row.refused_updates = 1e9, "3 updates in a row were refused", 3

    suspend("phone-01")
    now = visitor.get("/federations/walks").text
    assert "1 device is suspended" in words_in(now)
    assert "/federations/walks/devices?suspended=true" in html.unescape(now)
    listed = visitor.get("/federations/walks/devices?suspended=true").text
    assert ("phone-01" in listed, "phone-02" in listed) == (True, False)
    page = "/federations/walks/devices/phone-01"
    assert "3 updates in a row were refused" in visitor.get(page).text
    assert visitor.submit(f"{page}/reinstate", on=page).status_code == 303
    assert "is suspended" not in words_in(visitor.get("/federations/walks").text)
    assert "/reinstate" not in visitor.get(page).text

    suspend("phone-02")
    device = visitor.server.post("/v1/federations/walks/devices/phone-02/reinstate", headers=operator(visitor))
    assert (device.status_code, device.json()["suspended_at"], device.json()["refused_updates"]) == (200, None, 0)


def operator(visitor: Visitor) -> dict[str, str]:
    path = visitor.server.runtime.settings.data_dir / api_keys.OPERATOR_FILE
    return {"authorization": f"Bearer {path.read_text().strip()}"}
