"""Devices without training: generated updates, and the messages that carry them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from aggregator_api.core.settings import Settings
from aggregator_api.transport.mqtt.inbox import Message
from federation import wire
from federation.plan import Plan
from federation.protocol import topics
from federation.protocol.chunks import chunk_count, chunk_range
from federation.protocol.messages import (
    Acknowledgement,
    Announcement,
    DeviceStatus,
    Invitation,
    UpdateManifest,
    read,
    write,
)
from federation.protocol.signing import unwrap
from federation.records import Tree, Update
from federation.records.tree import map_tree
from tests.manifests import manifest_of

FEDERATION = "walk"
CHUNK_BYTES = 1024


SMALL = {"channels": [8, 8], "feature_dim": 8, "hidden": 8}


def tiny_plan(
    *,
    rounds: int = 2,
    clients: int | None = 2,
    method: str = "fedavg",
    optimizer: str = "adam",
    **round_settings: Any,
) -> Plan:
    """A CNN of a few kilobytes, with FedAvg if no method is named."""
    return Plan.model_validate(
        {
            "labels": ["still", "walking"],
            "model": {"name": "har_cnn", "options": SMALL},
            "method": {"name": method},
            "training": {"classes": 2, "feature_dim": 8, "optimizer": optimizer},
            "rounds": {"rounds": rounds, "clients_per_round": clients, "minimum_clients": 2, **round_settings},
        }
    )


class Wires:
    """A broker that only remembers what the server published."""

    def __init__(
        self, _settings: Settings, _receive: Callable[[Message], None], _connected: Callable[[], None]
    ) -> None:
        self.sent: list[tuple[str, bytes, bool]] = []
        self.is_up = True
        self.listening: frozenset[str] | None = None

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        self.sent.append((topic, payload, retain))

    def certificate_expiry(self) -> float | None:
        """There is no certificate."""
        return None

    def start(self) -> None:
        """There is nothing to connect to."""

    def remove_retained(self) -> None:
        """Nothing is retained."""

    def listen(self, federations: frozenset[str]) -> None:
        self.listening = federations

    def stop(self) -> None:
        """There is nothing to disconnect from."""

    def acknowledgements(self, device: str) -> list[Acknowledgement]:
        """Return every answer to one device."""
        return [
            read(Acknowledgement, unwrap(body).body)
            for topic, body, _ in self.sent
            if topic == topics.ack(FEDERATION, device)
        ]

    def invitations(self, device: str) -> list[Invitation]:
        """Return every invitation to one device."""
        wanted = topics.invitation(FEDERATION, device)
        return [read(Invitation, unwrap(body).body) for topic, body, _ in self.sent if topic == wanted and body]

    def guests(self) -> list[str]:
        """Return every device that was ever invited."""
        return sorted({topic.split("/")[4] for topic, _, _ in self.sent if topic.endswith("/invitation")})

    def announcements(self) -> list[Announcement]:
        """Return every announcement."""
        return [
            read(Announcement, unwrap(body).body)
            for topic, body, _ in self.sent
            if topic == topics.announce(FEDERATION)
        ]


@dataclass
class Parcel:
    """An update on its way: what it says and what it holds."""

    manifest: UpdateManifest
    data: bytes
    tree: Tree

    def chunks(self) -> list[bytes]:
        """Cut the bytes as the manifest says."""
        size, step = self.manifest.size, self.manifest.chunk_bytes
        return [self.data[chunk_range(size, step, n)] for n in range(chunk_count(size, step))]

    def topic(self, *step: str | int) -> str:
        """Return the topic of one step."""
        return topics.update(self.manifest.federation, self.manifest.client, self.manifest.update_id, *step)

    @property
    def update(self) -> Update:
        """Return what the method should see."""
        return Update(self.manifest.client, self.manifest.examples, self.manifest.steps, self.tree)


def generated(announced: Announcement, broadcast: bytes, device: str, *, examples: int = 10, **changes: Any) -> Parcel:
    """Make random tensors of the broadcast's shapes; the same device and round give the same bytes."""
    generator = torch.Generator().manual_seed(announced.round * 1000 + sum(device.encode()))
    like = wire.decode(broadcast, limit_bytes=len(broadcast))
    tree = map_tree(lambda value: torch.randn(value.shape, generator=generator), like)
    return parcel(announced, device, tree, examples=examples, **changes)


def parcel(announced: Announcement, device: str, tree: Tree, *, examples: int = 10, **changes: Any) -> Parcel:
    """Wrap a tree as the device's update of the announced round; `changes` go into the manifest."""
    data = changes.pop("data", None) or wire.encode(tree)
    assert announced.model is not None
    said: dict[str, Any] = {
        "base_version": announced.model.sha256,
        "chunk_bytes": CHUNK_BYTES,
        "metrics": {"loss": 0.5},
    }
    said |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), **changes}
    return Parcel(manifest_of(announced, device, examples, **said), data, tree)


def status(state: str, *, examples: int = 10) -> bytes:
    """Return a status message."""
    return write(DeviceStatus.model_validate({"state": state, "examples": examples}))
