"""What Home Assistant reads of a device: retained configs of its entities, and their states; no raw data.

MQTT discovery of Home Assistant, https://www.home-assistant.io/integrations/mqtt/#mqtt-discovery, one config for each
entity, all of one device: `<prefix>/<component>/<node>/<entity>/config`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gaitway.plain_text import label_text

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
        "problems": [each[:MAX_STATE_CHARS] for each in state.problems[:5]],
    }
    return json.dumps(payload, ensure_ascii=False).encode()


def topics(node: Node, labels: Sequence[str]) -> list[str]:
    """Name every retained topic of a device: what an empty message to each removes."""
    return [*configs(node, labels, ""), node.state_topic, node.availability_topic]
