"""A small continuous federation: its plan, sums of generated examples, and the manifests that carry them."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from federation import wire
from federation.aggregation import ridge
from federation.plan import Plan
from federation.protocol.messages import NO_BYTES_SHA256, Announcement
from federation.records import Tree
from federation.tasks.task import LabelledFeatures
from tests.aggregator_api.bench import Bench
from tests.aggregator_api.generated_devices import Parcel, parcel

CLASSES, FEATURES = 2, 8


def continuous_plan(**publication: Any) -> Plan:
    """The CNN of a few kilobytes, frozen, under a head of exact sums."""
    return Plan.model_validate(
        {
            "labels": ["still", "walking"],
            "model": {"name": "har_cnn", "options": {"channels": [8, 8], "feature_dim": 8, "hidden": 4}},
            "method": {"name": "analytic"},
            "training": {"classes": CLASSES, "feature_dim": FEATURES},
            "publication": {"interval_s": 0, **publication},
        }
    )


def sums_of(seed: int, examples: int = 10) -> Tree:
    """What a device with so many examples sends; another seed, other examples."""
    draw = torch.Generator().manual_seed(seed)
    features = torch.randn(examples, FEATURES, generator=draw)
    classes = torch.arange(examples) % CLASSES
    rows = LabelledFeatures(features, classes, torch.ones(examples))
    return ridge.travelling(ridge.added(ridge.empty_ridge_sums(CLASSES, FEATURES, torch.zeros(())), rows, 4.0))


def sums_parcel(
    announced: Announcement, device: str, sequence: int | None, *, seed: int = 0, examples: int = 10, **changes: Any
) -> Parcel:
    """A device's sums as its update of that number; by default of examples that no other device and number has."""
    tree = changes.pop("tree", None) or sums_of(seed or sum(device.encode()) + 1000 * (sequence or 0), examples)
    return parcel(announced, device, tree, examples=examples, **{"steps": 0, "sequence": sequence, **changes})


def withdrawal_parcel(announced: Announcement, device: str, sequence: int, **changes: Any) -> Parcel:
    """What takes a device's sums out."""
    said = {"steps": 0, "size": 0, "sha256": NO_BYTES_SHA256, "withdraw": True, "sequence": sequence}
    nonce = hashlib.sha256(f"{device} {sequence}".encode()).hexdigest()[:16]
    said["update_id"], said["nonce"] = f"w-{device}-{sequence}", nonce
    made = parcel(announced, device, {"none": torch.zeros(())}, examples=0, **{**said, **changes})
    return Parcel(made.manifest, b"", {})


def sends(bench: Bench, device: str, sequence: int, **changes: Any) -> Parcel:
    """Let a device send sums that are accepted."""
    sent = sums_parcel(bench.now(), device, sequence, **changes)
    answer = bench.upload(sent)
    assert answer.status == "accepted", answer
    return sent


def state_of(bench: Bench) -> Tree:
    """The newest version's state."""
    data = bench.state()
    return wire.decode(data, limit_bytes=len(data))
