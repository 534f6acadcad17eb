"""A rollout to seven thin devices through three waves: a server and a broker as processes, the devices on the network.

`GAITWAY_KEEP_S=60` keeps the server for a look at its pages.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest

from edge_agent.machine.releases import offered_to
from federation.protocol import topics
from federation.protocol.messages import Announcement, DeviceStatus, ReleaseReport, read, write
from federation.protocol.signing import unwrap
from tests.aggregator_api.generated_devices import tiny_plan
from tests.live.fleet import Fleet, fleet

HERE = "/v1/federations/live"
NAMES = tuple(f"phone-{n}" for n in range(7))
SOAK_S = 2.0


class ThinDevice:
    """Says that it is here, and adopts at once whatever is released to it."""

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self._client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=name)
        self._client.on_connect = self._connected
        self._client.on_message = self._heard
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _connected(self, client: mqtt.Client, *_: Any) -> None:
        client.subscribe(topics.announce("live"), qos=1)
        self._say(DeviceStatus(state="ready", examples=10))

    def _heard(self, _client: mqtt.Client, _data: Any, message: mqtt.MQTTMessage) -> None:
        said = read(Announcement, unwrap(message.payload).body)
        if said.release is None or said.release.candidate is None:
            return
        release = offered_to(self.name, said.release, None)
        if release == said.release.candidate:
            report = {"instance": said.instance, "epoch": said.epoch, "rollout": release.rollout, "answer": "adopted"}
            found = ReleaseReport.model_validate({**report, "score": 0.9})
            self._say(DeviceStatus(state="ready", examples=10, release=found))

    def _say(self, status: DeviceStatus) -> None:
        self._client.publish(topics.status("live", self.name), write(status), qos=1)


@contextmanager
def thin_devices(programs: Fleet) -> Iterator[None]:
    """Seven devices that the server knows."""
    devices = [ThinDevice(name, programs.mqtt) for name in NAMES]
    try:
        programs.wait_for(lambda: programs.get(HERE)["devices"] == len(NAMES), "not all have come")
        yield
    finally:
        for device in devices:
            device.close()


@pytest.mark.ci  # ten seconds
@pytest.mark.service
def test_seven_devices_get_a_version_in_three_waves_that_last_their_time(tmp_path: Path) -> None:
    plan = tiny_plan(clients=20, minimum_clients=20).model_dump(mode="json")
    plan["rollout"] = {"mode": "manual", "waves": [0.05, 0.25, 1.0], "soak_s": SOAK_S, "success_threshold": 1.0}
    with fleet(tmp_path) as programs:
        programs.get("/v1/federations", {"name": "live", "plan": plan})
        with thin_devices(programs):
            programs.get(f"{HERE}/rollouts", {"version": 0})
            waves = {1: programs.get(f"{HERE}/rollouts/1")["started_at"]}
            found: dict[str, Any] = {}

            def is_completed() -> bool:
                found.update(programs.get(f"{HERE}/rollouts/1"))
                if found["phase"] == "rolling":
                    waves[found["wave"]] = found["wave_started_at"]
                return bool(found["phase"] == "completed")

            programs.wait_for(is_completed, "the rollout is not completed")
            assert [wave["devices"] for wave in found["progress"]] == [1, 1, 5]
            assert [wave["adopted"] for wave in found["progress"]] == [1, 1, 5]
            began = [waves[number] for number in (1, 2, 3)]
            ends = [*began[1:], found["ended_at"]]
            lasted = [end - begin for begin, end in zip(began, ends, strict=True)]
            print("the waves lasted", [round(each, 2) for each in lasted], "s")
            assert min(lasted) >= SOAK_S
            if keep_s := float(os.environ.get("GAITWAY_KEEP_S", "0")):
                print(programs.url, flush=True)
                time.sleep(keep_s)
