"""One device of four that would own the model, through a real server and a real broker."""

from __future__ import annotations

import queue
from pathlib import Path

import numpy as np
import pytest
import torch
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

from federation import wire
from federation.protocol import topics
from federation.protocol.messages import Acknowledgement, Announcement, read
from federation.protocol.signing import unwrap
from federation.records import Tree
from tests.aggregator_api.generated_devices import Parcel, parcel, status, tiny_plan
from tests.live.fleet import Fleet, embedded, fleet

pytestmark = [pytest.mark.ci, pytest.mark.daily]

HONEST = ("ada", "bob", "cyd")
HOSTILE = "zed"
CLAIMED = 10**9
ANSWER_S = 120.0


class Wire:
    """A connection to the broker that plays all four devices; it waits for what the server says."""

    def __init__(self, port: int) -> None:
        self._heard: queue.SimpleQueue[MQTTMessage] = queue.SimpleQueue()
        self._client = Client(CallbackAPIVersion.VERSION2, "four-devices")
        self._client.on_message = lambda _client, _data, message: self._heard.put(message)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        for device in (*HONEST, HOSTILE):
            self._client.subscribe(topics.ack("live", device), 1)
        self._client.subscribe(topics.announce("live"), 1)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def say(self, device: str, examples: int) -> None:
        self._publish(topics.status("live", device), status("ready", examples=examples))

    def announced(self) -> Announcement:
        """Wait for the open round."""
        while True:
            message = self._heard.get(timeout=ANSWER_S)
            if message.topic == topics.announce("live"):
                found = read(Announcement, unwrap(message.payload).body)
                if found.state == "collecting":
                    return found

    def upload(self, sent: Parcel) -> None:
        """Send an update, and wait until it is accepted."""
        self._publish(sent.topic("begin"), sent.manifest.model_dump_json().encode())
        self._answered(sent, "send")
        for n, chunk in enumerate(sent.chunks()):
            self._publish(sent.topic("chunk", n), chunk)
        self._publish(sent.topic("end"), b"")
        self._answered(sent, "accepted")

    def _answered(self, sent: Parcel, wanted: str) -> None:
        while True:
            message = self._heard.get(timeout=ANSWER_S)
            if message.topic == topics.ack("live", sent.manifest.client):
                answer = read(Acknowledgement, unwrap(message.payload).body)
                assert answer.status == wanted, answer
                return

    def _publish(self, topic: str, payload: bytes) -> None:
        self._client.publish(topic, payload, 1).wait_for_publish(ANSWER_S)


def trained(start: Tree, device: str, size: float) -> Tree:
    """Return parameters that are `size` honest steps away."""
    generator = torch.Generator().manual_seed(sum(device.encode()))
    return {name: value + size * 0.01 * torch.randn(value.shape, generator=generator) for name, value in start.items()}


def play(here: Fleet, sizes: dict[str, float], examples: dict[str, int]) -> tuple[dict[str, Tree], Tree]:
    """Play one round, the hostile device first; return what was sent, and the model that came of it."""
    plan = tiny_plan(rounds=1, clients=4)
    here.get("/v1/federations", {"name": "live", "plan": plan.model_dump(mode="json")})
    devices = Wire(here.mqtt)
    for device in (*HONEST, HOSTILE):
        devices.say(device, examples[device])
    now = devices.announced()
    assert now.model is not None
    start = wire.decode(here.blob(now.model.sha256), limit_bytes=1 << 20)["params"]
    sent = {device: trained(start, device, sizes[device]) for device in (HOSTILE, *HONEST)}
    for device, params in sent.items():
        devices.upload(parcel(now, device, {"params": params}, examples=examples[device]))
    here.wait_for(lambda: here.get("/v1/federations/live")["status"] == "finished", "the round does not end")
    devices.close()
    return sent, here.last_broadcast()["params"]


@pytest.mark.service
def test_noise_with_a_thousand_million_examples_does_not_move_the_model(tmp_path: Path) -> None:
    with fleet(tmp_path, broker=embedded) as here:
        sizes = {**dict.fromkeys(HONEST, 1.0), HOSTILE: 1000.0}
        sent, model = play(here, sizes, {**dict.fromkeys(HONEST, 40), HOSTILE: CLAIMED})
        left = here.listing("/v1/federations/live/updates")[0]
        detail = here.get("/v1/federations/live/rounds/1")
    for name, value in model.items():
        expected = np.mean([sent[device][name].double().numpy() for device in HONEST], axis=0)
        np.testing.assert_allclose(value.numpy(), expected, rtol=1e-5, atol=1e-7)
    assert (left["device"], left["status"]) == (HOSTILE, "excluded")
    assert detail["excluded"] == 1
