"""Reports recognized activities to Home Assistant's broker; failures there don't affect the rest of the device.

paho's own thread connects, and connects again by itself; `tick` is called in the supervisor's loop and never waits.
What is published is no raw data: retained configs of the device's entities, and their states. MQTT discovery of Home
Assistant, https://www.home-assistant.io/integrations/mqtt/#mqtt-discovery, has one config for each entity, all of one
device: `<prefix>/<component>/<node>/<entity>/config`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.reasoncodes import ReasonCode

from edge_agent.config.brokers import HomeAssistantSection
from edge_agent.errors import ConfigError
from edge_agent.storage.consent import HOME_ASSISTANT_PROBLEM, home_assistant_is_off, note_topics, noted_topics
from edge_agent.storage.credentials import first_line
from edge_agent.storage.state_store import StateStore
from edge_agent.transport.server_connection import tls_context
from gaitway.plain_text import label_text
from gaitway.secret_fields import revealed
from gaitway.threads import guarded, run_in_thread

log = logging.getLogger(__name__)

MIN_WAIT_S, MAX_WAIT_S = 1, 60
KEEPALIVE_S = 30
PROBABILITY_EVERY_S = 30.0
"""A probability alone is told no more often: Home Assistant keeps every state in its database."""
MAX_QUEUED = 64


class HomeAssistant:
    """One device's entities. `tick`, `remove` and `stop` are called on one thread."""

    def __init__(self, section: HomeAssistantSection, device: str, federation: str) -> None:
        """Stand ready to connect.

        Raises:
            ConfigError: if the authorities' or the password's file cannot be read, or no host is set.
        """
        place = section.place
        if place is None:
            raise ConfigError("[home_assistant] host is not set; name the broker that Home Assistant uses")
        self.node = node_of(device, federation, section.discovery_prefix)
        self.problem = ""
        """Why nothing is told now, as far as it is known; empty while the broker is connected."""
        self._place = place
        self._version = _installed_version()
        self._labels: tuple[str, ...] = ()
        self._state: HomeState | None = None
        self._told: HomeState | None = None
        self._told_at = 0.0
        self._is_started = False
        self._removals: list[paho.MQTTMessageInfo] = []
        self._connected = threading.Event()
        self._has_changed = threading.Event()  # since the configs were told
        self._client = self._new_client(section)

    def _new_client(self, section: HomeAssistantSection) -> paho.Client:
        client = paho.Client(CallbackAPIVersion.VERSION2, client_id=f"{self.node.id}-home"[-128:])
        client.max_queued_messages_set(MAX_QUEUED)
        client.reconnect_delay_set(MIN_WAIT_S, MAX_WAIT_S)
        client.will_set(self.node.availability_topic, OFFLINE, qos=1, retain=True)
        if section.username is not None:
            password = revealed(section.password) or first_line(section.password_file, "home_assistant")
            client.username_pw_set(section.username, password)
        if section.tls:
            client.tls_set_context(tls_context(section.ca_file, "home_assistant"))
        client.on_connect = guarded("home assistant", self._on_connect)
        client.on_connect_fail = guarded("home assistant", self._on_connect_fail)
        client.on_disconnect = guarded("home assistant", self._on_disconnect)
        return client

    # ---- in the supervisor's loop

    def tick(self, store: StateStore, state: HomeState, labels: Sequence[str]) -> None:
        """Tell what is new; `labels` are what the federation's models recognize, none where they give a number."""
        if home_assistant_is_off(store):
            if noted_topics(store) and self.remove(noted_topics(store)):
                note_topics(store, ())
                self._disconnect()
            return
        if state.activity and labels and state.activity not in (*labels, *self._labels):
            labels = (*labels, state.activity)  # the person's own
        if missing := {*labels} - {*self._labels}:
            self._labels = (*self._labels, *(label for label in labels if label in missing))
            self._has_changed.set()
        topics = entity_topics(self.node, self._labels)
        if not {*topics} <= {*noted_topics(store)}:  # before they are told: what was told must be removed once
            note_topics(store, (*noted_topics(store), *topics))
        self._state = state
        self._start()
        self._tell()
        if self.problem != store.get(HOME_ASSISTANT_PROBLEM):
            store.put(**{HOME_ASSISTANT_PROBLEM: self.problem})
            if self.problem:
                log.warning("home assistant: %s", self.problem)

    def remove(self, topics: Iterable[str]) -> bool:
        """Remove what is retained of the device; call it until it returns true: the broker has taken all of it."""
        self._start()
        if not self._connected.is_set():
            return False
        if not self._removals:
            self._state = self._told = None
            self._removals = [self._client.publish(topic, b"", qos=1, retain=True) for topic in topics]
        return all(removal.rc == paho.MQTT_ERR_SUCCESS and removal.is_published() for removal in self._removals)

    def stop(self, timeout_s: float) -> None:
        """Say that the device is gone, and leave; waits no longer than that for a broker that does not answer."""
        if not self._is_started:
            return
        if self._connected.is_set() and self._state is not None:
            last = self._publish(self.node.availability_topic, OFFLINE.encode())
            if last.rc == paho.MQTT_ERR_SUCCESS:
                last.wait_for_publish(timeout_s)
        self._client.disconnect()
        self._end_loop().join(timeout_s)

    def _start(self) -> None:
        if self._is_started:
            return
        self._client.connect_async(self._place.host, self._place.port, KEEPALIVE_S)
        # refused while the thread of before ends; the next tick tries again
        self._is_started = self._client.loop_start() == paho.MQTT_ERR_SUCCESS

    def _disconnect(self) -> None:
        """Leave, so that the next tick after `on` begins anew; the last will is not sent by a leave that is said."""
        self._client.disconnect()
        self._end_loop()
        self._connected.clear()
        self._is_started, self._labels, self._state, self._told, self._removals = False, (), None, None, []

    def _end_loop(self) -> threading.Thread:
        """End paho's thread from another one: it may be connecting, which takes seconds."""

        def stop() -> None:
            self._client.loop_stop()

        return run_in_thread("home assistant", stop)

    def _tell(self) -> None:
        state = self._state
        if state is None or not self._connected.is_set():
            return
        if self._has_changed.is_set():
            self._has_changed.clear()
            self._tell_configs()
        elif state == self._told or not self._is_news(state):
            return
        self._publish(self.node.state_topic, state_payload(state))
        self._told, self._told_at = state, time.monotonic()

    def _is_news(self, state: HomeState) -> bool:
        """Whether more than the probability is another one, or it is time for that too."""
        before = self._told
        if before is None or state._replace(probability=before.probability) != before:
            return True
        return time.monotonic() - self._told_at >= PROBABILITY_EVERY_S

    def _tell_configs(self) -> None:
        for topic, described in configs(self.node, self._labels, self._version).items():
            self._publish(topic, json.dumps(described).encode())
        self._publish(self.node.availability_topic, ONLINE.encode())

    def _publish(self, topic: str, payload: bytes) -> paho.MQTTMessageInfo:
        return self._client.publish(topic, payload, qos=1, retain=True)

    # ---- on paho's thread

    def _on_connect(self, _client: paho.Client, _data: Any, _flags: Any, code: ReasonCode, _more: Any) -> None:
        if code.is_failure:
            self.problem = f"the broker at {self._where} refuses the login: {code}"
            return
        self.problem = ""
        self._removals = []
        self._has_changed.set()  # a broker that was set up anew has nothing retained
        self._connected.set()

    def _on_connect_fail(self, _client: paho.Client, _data: Any) -> None:
        self.problem = f"no broker at {self._where}"

    def _on_disconnect(self, _client: paho.Client, _data: Any, _flags: Any, code: ReasonCode, _more: Any) -> None:
        self._connected.clear()
        if not self.problem.startswith("the broker"):  # a refusal says more
            self.problem = f"the broker at {self._where} is gone: {code}"

    @property
    def _where(self) -> str:
        return f"{self._place.host}:{self._place.port}"


def _installed_version() -> str:
    try:
        return version("gaitway")
    except PackageNotFoundError:
        return "0"


ROOT = "gaitway-home"
"""First level of the states' topics; those of federations begin with another one."""
ONLINE, OFFLINE = "online", "offline"
STATES = ("collecting", "ready", "training", "uploading", "idle", "finished")
"""What a device does, in the protocol's words."""
MAX_STATE_CHARS = 255
"""Of a state in Home Assistant; a longer one is refused there."""


class HomeState(NamedTuple):
    """What is told: the answer of the newest window (None: nothing lately), the model in use, and how the device is."""

    activity: str | None
    probability: float | None
    model: str
    doing: str
    problems: tuple[str, ...]


class Node(NamedTuple):
    """One device in Home Assistant: its identifier there, and its name for people."""

    id: str
    name: str
    prefix: str

    @property
    def state_topic(self) -> str:
        """Where the states are, retained."""
        return f"{ROOT}/{self.id}/state"

    @property
    def availability_topic(self) -> str:
        """Where the device says that it is there, and the broker that it is not."""
        return f"{ROOT}/{self.id}/availability"


def node_of(device: str, federation: str, prefix: str) -> Node:
    """Name a device in topics of discovery, which take letters, digits, _ and - alone."""
    name = f"gaitway_{federation}_{device}"
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    if plain != name:  # another name may become the same one
        plain += "_" + hashlib.sha256(name.encode()).hexdigest()[:8]
    return Node(plain, device, prefix)


def configs(node: Node, labels: Sequence[str], version: str) -> dict[str, dict[str, Any]]:
    """Describe the entities, by the topic of each one's retained config.

    `labels` are what can be recognized; none where the model answers with a number or a text.
    """
    options = sorted({text_of(label) for label in labels})
    activity: dict[str, Any] = {"name": "Activity", "icon": "mdi:walk"}
    if options:
        activity |= {"device_class": "enum", "options": options}
    entities: dict[str, tuple[str, dict[str, Any]]] = {
        "activity": ("sensor", activity),
        "probability": (
            "sensor",
            {
                "name": "Probability",
                "icon": "mdi:percent",
                "state_class": "measurement",
                "unit_of_measurement": "%",
                "entity_category": "diagnostic",
            },
        ),
        "model": ("sensor", {"name": "Model", "icon": "mdi:brain", "entity_category": "diagnostic"}),
        "doing": (
            "sensor",
            {"name": "Doing", "device_class": "enum", "options": list(STATES), "entity_category": "diagnostic"},
        ),
        "problem": (
            "binary_sensor",
            {
                "name": "Problem",
                "device_class": "problem",
                "entity_category": "diagnostic",
                "json_attributes_topic": node.state_topic,
                "json_attributes_template": "{{ {'reasons': value_json.problems} | tojson }}",
            },
        ),
    }
    return {
        f"{node.prefix}/{component}/{node.id}/{key}/config": {**_shared(node, key, version), **described}
        for key, (component, described) in entities.items()
    }


def _shared(node: Node, key: str, version: str) -> dict[str, Any]:
    template = "{{ 'ON' if value_json.problems else 'OFF' }}" if key == "problem" else f"{{{{ value_json.{key} }}}}"
    return {
        "unique_id": f"{node.id}_{key}",
        "state_topic": node.state_topic,
        "value_template": template,
        "availability_topic": node.availability_topic,
        "device": {
            "identifiers": [node.id],
            "name": node.name,
            "manufacturer": "Gaitway",
            "model": "edge agent",
            "sw_version": version,
        },
        "origin": {"name": "Gaitway", "sw_version": version},
    }


def text_of(label: str) -> str:
    """Write a label for people, within the bounds of a state."""
    return label_text(label)[:MAX_STATE_CHARS]


def state_payload(state: HomeState) -> bytes:
    """Write the states of all entities; Home Assistant reads null as unknown."""
    payload: Mapping[str, Any] = {
        "activity": None if state.activity is None else text_of(state.activity),
        "probability": None if state.probability is None else round(100 * state.probability),
        "model": (state.model or "none")[:MAX_STATE_CHARS],
        "doing": state.doing,
        "problems": [problem[:MAX_STATE_CHARS] for problem in state.problems[:5]],
    }
    return json.dumps(payload, ensure_ascii=False).encode()


def entity_topics(node: Node, labels: Sequence[str]) -> list[str]:
    """Name every retained topic of a device: what an empty message to each removes."""
    return [*configs(node, labels, ""), node.state_topic, node.availability_topic]
