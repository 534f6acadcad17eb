"""Somebody who may publish anything at the broker: an enrolled device takes none of it for its server's word."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from paho.mqtt.enums import CallbackAPIVersion

from edge_agent.config.brokers import BrokerPlace
from edge_agent.errors import TrustError
from edge_agent.machine.events import Acknowledged, Announced, Connected, Invited, MessageRejected
from edge_agent.storage.credentials import manifest_signer
from edge_agent.storage.state_store import StateStore
from edge_agent.supervisor.persistence import save_round
from edge_agent.transport.chunk_sender import UploadSender
from edge_agent.transport.link import LinkEvent, LinkOptions
from edge_agent.transport.mqtt import Broker
from edge_agent.transport.renewal import CredentialRenewal
from edge_agent.transport.trust import Trust
from federation.protocol import topics
from federation.protocol.messages import Acknowledgement, write
from federation.protocol.signing import Kind, wrap
from tests.edge_agent.factories import DEVICE, announcement, invitation, make_config, pointer
from tests.edge_agent.storage.test_state_store import make_job
from tests.live.fleet import Program, mosquitto_of
from tests.live.real_parts import wait_for_port
from tests.ports import free_port

pytestmark = [pytest.mark.ci, pytest.mark.service]

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
ANNOUNCE, ACK, INVITE = topics.announce("demo"), topics.ack("demo", DEVICE), topics.invitation("demo", DEVICE)
SAID = announcement(serial=7, expires=1 << 40)


class World:
    """A broker that lets everybody do everything, an attacker, and an enrolled device's connection."""

    def __init__(self, folder: Path) -> None:
        port, self.posted = free_port(), queue.SimpleQueue[LinkEvent]()
        self.program = Program(mosquitto_of(folder, port), folder / "broker.log")
        self.program.start()
        wait_for_port(port, self.program.process, self.program.log)
        config = make_config(folder)
        self.trust = Trust("demo", DEVICE, KEY.public_key().public_bytes_raw())
        options = LinkOptions("demo", DEVICE, 4, self.posted.put, CredentialRenewal(config), self.trust.open)
        self.device = Broker(BrokerPlace(host="127.0.0.1", port=port), options)
        self.device.start()
        self.next(Connected)
        self.attacker = paho.Client(CallbackAPIVersion.VERSION2)
        self.attacker.connect("127.0.0.1", port)
        self.attacker.loop_start()
        self.attacker.publish(ANNOUNCE, b"{}", 1, retain=True)  # it is there whenever the subscription is
        self.next(MessageRejected)

    def next(self, *kinds: type[Any]) -> Any:
        """Return the next event of these kinds."""
        while not isinstance(event := self.posted.get(timeout=20), kinds):
            pass
        return event

    def say(self, topic: str, payload: bytes) -> Any:
        """Publish something, and return what the device makes of it."""
        self.attacker.publish(topic, payload, 1)
        return self.next(Announced, Invited, Acknowledged, MessageRejected)

    def close(self) -> None:
        self.attacker.disconnect()
        self.attacker.loop_stop()
        self.device.stop()
        self.program.stop()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    found = World(tmp_path_factory.mktemp("world"))
    yield found
    found.close()


def test_an_announcement_with_another_plan_labels_or_deadline_is_not_believed(world: World) -> None:
    honest = wrap(Kind.ANNOUNCEMENT, "demo", "", write(SAID), KEY.sign)
    world.attacker.publish(ANNOUNCE, b"", 1, retain=True)  # says nothing, and is no reason for distrust
    assert isinstance(world.say(ANNOUNCE, honest), Announced)
    training = SAID.plan.training.model_copy(update={"lr": 100.0})
    for changes in (
        {"plan": SAID.plan.model_copy(update={"training": training})},
        {"plan": SAID.plan.model_copy(update={"labels": SAID.plan.labels[::-1]})},
        {"deadline": 1e12},
        {"model": pointer("e").model_copy(update={"url": "http://evil.example/model"})},
    ):
        forged = write(SAID.model_copy(update=changes))
        for payload in (forged, honest.replace(write(SAID), forged)):
            found = world.say(ANNOUNCE, payload)
            assert "the announcement is not signed" in found.reason, changes


def test_a_forged_acknowledgement_deletes_nothing(world: World, tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    kept = save_round(store, make_job(make_config(tmp_path)))
    uploads = UploadSender(store, world.device, 4, manifest_signer(tmp_path, "demo", DEVICE))
    nonce = store.manifest(kept.update_id).nonce
    accepted = Acknowledgement(update_id=kept.update_id, nonce=nonce, status="accepted")
    forged = {
        "unsigned": write(accepted),
        "another key": wrap(Kind.ACKNOWLEDGEMENT, "demo", DEVICE, write(accepted), Ed25519PrivateKey.generate().sign),
        "another device's": wrap(Kind.ACKNOWLEDGEMENT, "demo", "other", write(accepted), KEY.sign),
    }
    for name, payload in forged.items():
        assert isinstance(world.say(ACK, payload), MessageRejected), name
    # the server's own word of the past, about an update of the same name and bytes
    old = accepted.model_copy(update={"nonce": "of the past"})
    heard = world.say(ACK, wrap(Kind.ACKNOWLEDGEMENT, "demo", DEVICE, write(old), KEY.sign))
    assert not uploads.is_about(heard.ack)
    heard = world.say(ACK, wrap(Kind.ACKNOWLEDGEMENT, "demo", DEVICE, write(accepted), KEY.sign))
    assert uploads.is_about(heard.ack)
    store.close()


def test_a_forged_invitation_and_an_old_announcement_change_nothing(world: World, tmp_path: Path) -> None:
    assert isinstance(world.say(INVITE, write(invitation())), MessageRejected)
    store = StateStore(tmp_path)
    newer = SAID.model_copy(update={"serial": 9})
    for said, is_newest in ((SAID, True), (newer, True), (SAID, False)):
        heard = world.say(ANNOUNCE, wrap(Kind.ANNOUNCEMENT, "demo", "", write(said), KEY.sign))
        if is_newest:
            world.trust.check(heard.announcement, store)
            continue
        with pytest.raises(TrustError, match="somebody repeats an old one"):
            world.trust.check(heard.announcement, store)
    store.close()
