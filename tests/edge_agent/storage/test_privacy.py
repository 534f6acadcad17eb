"""What a device was promised outlives its federation, and only a person at the device requires less."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edge_agent.__main__ import app
from edge_agent.config.settings import Config, load
from edge_agent.errors import ConfigError, StoreError
from edge_agent.page.access import password_hash
from edge_agent.storage.consent import PIN, keep_pin, note_refused_plan, pinned_promises
from edge_agent.storage.credentials import KEY_FILE, device_key, status_signer
from edge_agent.storage.data_folder import write_file
from edge_agent.storage.state_store import StateStore
from edge_agent.supervisor.persistence import load_agent, reset_agent, save_round
from edge_agent.supervisor.status import describe_device
from federation.privacy.promises import PrivacyPromises, describe_promises
from federation.protocol.messages import DeviceStatus
from federation.protocol.signing import Kind, to_sign, unwrap
from tests.edge_agent.factories import make_config
from tests.edge_agent.page.page_devices import PageDevice
from tests.edge_agent.storage.test_state_store import make_job

PROMISED = PrivacyPromises(mode="masked", min_devices=50, min_colluding_share=0.3, min_noise=1.1)
LESS = PROMISED.model_copy(update={"min_devices": 3})
PASSWORD = "correct horse"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    with closing(StateStore(tmp_path)) as found:
        keep_pin(found, PROMISED)
        yield found


def refuse(store: StateStore) -> None:
    note_refused_plan(store, "secure.min_devices is 3, and this device requires 50 or more", LESS)


def test_a_pin_outlives_a_restart_and_a_federation_made_anew(store: StateStore) -> None:
    reset_agent(store, "another instance/har_cnn", 7)
    agent = load_agent(store, PrivacyPromises(min_devices=60))
    assert agent.pinned == PROMISED
    assert agent.required == PROMISED.model_copy(update={"min_devices": 60})


def test_a_damaged_pin_is_no_missing_one(store: StateStore) -> None:
    store.put(**{PIN: "{}x"})
    with pytest.raises(StoreError, match="what was promised to this device of privacy can't be read"):
        pinned_promises(store)


def test_what_was_to_be_sent_in_clear_is_deleted_once_secure_sums_are_required(tmp_path: Path) -> None:
    with closing(StateStore(tmp_path)) as store:
        store.put(identity=f"{'0' * 32}/har_cnn")
        save_round(store, make_job(make_config(tmp_path)))
        assert load_agent(store).outbox
        assert load_agent(store, PrivacyPromises(mode="masked")).outbox == ()
        assert not store.outbox()


def test_a_refusal_is_signed_by_the_devices_key_and_nothing_else_of_a_status_is(tmp_path: Path) -> None:
    refusing, content = DeviceStatus(state="collecting", refusal='{"reason":"…"}'), DeviceStatus(state="ready")
    assert status_signer(tmp_path, "demo", "d1")(refusing) == refusing, "a device without a key"
    key = device_key(tmp_path)
    assert (tmp_path / KEY_FILE).is_file()
    sign = status_signer(tmp_path, "demo", "d1")
    assert sign(content) == content
    envelope = unwrap(sign(refusing).refusal.encode())
    assert envelope.body.decode() == refusing.refusal
    key.public_key().verify(envelope.signature or b"", to_sign(Kind.REFUSAL, "demo", "d1", envelope.body))
    envelope = unwrap(sign(DeviceStatus(state="ready", unusable="{}")).unusable.encode())
    key.public_key().verify(envelope.signature or b"", to_sign(Kind.MODEL_REFUSAL, "demo", "d1", b"{}"))


def person(folder: Path, *command: str, settings: str = "") -> str:
    path = folder.parent / "agent.toml"
    lines = f'[agent]\ndevice = "d1"\nfederation = "demo"\ndata_dir = "{folder.name}"\n'
    path.write_text(f'{lines}[server]\nurl = "http://127.0.0.1:9"\n{settings}\n')
    found = CliRunner().invoke(app, ["privacy", "--config", str(path), *command])
    return re.sub(r"\s+", " ", found.output)


def test_a_person_sees_and_accepts_what_a_refused_plan_promises(store: StateStore, tmp_path: Path) -> None:
    shown = person(tmp_path)
    assert "only sums over at least 50 devices, even if 30% of them work for it, with noise 1.1 on each sum" in shown
    assert "doesn't refuse a plan, so there is nothing to accept" in person(tmp_path, "--accept")
    refuse(store)
    assert "It refuses the server's plan: secure.min_devices is 3" in person(tmp_path)
    store.put(doing='{"words": "collecting", "left": false, "at": 0}')
    assert any("It refuses the server's plan" in line for line in describe_device(store, "d1", running=True))
    strict = "[privacy]\nrequire = { min_devices = 40 }"
    assert "by [privacy] require in its settings file" in person(tmp_path, "--accept", settings=strict)
    assert pinned_promises(store) == PROMISED
    assert "Accepted: The server learns only sums over at least 3 devices" in person(tmp_path, "--accept")
    assert pinned_promises(store) == LESS


def test_the_page_shows_it_and_accepts_it_by_password_alone(tmp_path: Path) -> None:
    for name, hashed in (("open", None), ("guarded", password_hash(PASSWORD))):
        (tmp_path / name).mkdir()
        device = PageDevice(tmp_path / name, hashed)
        with closing(StateStore(device.data)) as store:
            keep_pin(store, PROMISED)
            refuse(store)
            asked = {"promises": describe_promises(LESS)}
            if hashed is None:
                assert device.send("GET", "/api/privacy")[1]["promises"] == ""
                status, answer, _ = device.send("POST", "/api/accept-plan", asked)
                assert (status, "this page has no password" in answer["error"]) == (409, True)
                assert pinned_promises(store) == PROMISED
            else:
                assert device.send("POST", "/api/accept-plan", asked)[0] == 401
                cookie = device.send("POST", "/api/login", {"password": PASSWORD})[2]["Set-Cookie"].partition(";")[0]
                shown = device.send("GET", "/api/privacy", None, {"Cookie": cookie})[1]
                assert shown["promises"] == describe_promises(LESS)
                stale = {"promises": describe_promises(PROMISED)}
                answer = device.send("POST", "/api/accept-plan", stale, {"Cookie": cookie})[1]
                assert "since changed its plan" in answer["error"]
                assert device.send("POST", "/api/accept-plan", asked, {"Cookie": cookie})[0] == 200
                assert pinned_promises(store) == LESS
        device.close()


def test_settings_are_read_from_the_file_and_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    head = '[agent]\ndevice = "d1"\nfederation = "demo"\ndata_dir = "d"\n[server]\nurl = "http://127.0.0.1:9"\n'
    text = '[privacy]\nrequire = { mode = "masked", min_devices = 50, min_colluding_share = 0.3, min_noise = 1.1 }\n'
    path.write_text(head + text)

    def required(**environment: str) -> Config:
        return load(path, environment)

    assert required().privacy.require == PROMISED
    assert required(GAITWAY_EDGE_PRIVACY_REQUIRE='{"mode": "masked"}').privacy.require.model_fields_set == {"mode"}
    write_file(path, (head + '[privacy]\nrequire = { mode = "off", min_device = 3 }\n').encode())
    with pytest.raises(ConfigError, match=r"privacy\.require\.min_device"):
        load(path, {})
    assert make_config(tmp_path).privacy.require == PrivacyPromises()
