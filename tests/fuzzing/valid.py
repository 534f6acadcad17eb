"""One valid tree and one valid message of each kind, which the fuzzers change."""

from __future__ import annotations

from typing import Any

import torch

from federation import wire
from federation.protocol.messages import Acknowledgement, Announcement, DeviceStatus, Invitation, UpdateManifest
from federation.wire import uploads
from federation.wire.schema import schema_of

LIMIT = 4096
TREE = {"params": {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(3)}, "mask": torch.tensor([True, False])}
SCHEMA = schema_of(TREE)
ENCODED = tuple((wire.encode(TREE, compression=how), how) for how in ("none", "zstd"))
NARROW = tuple((wire.encode(TREE, compression=how, precision="float16"), how) for how in ("none", "zstd"))

ORIGIN = {"params": {"w": torch.linspace(-1, 1, 600).reshape(20, 30)}}
UPLOAD = {"params": {"w": ORIGIN["params"]["w"] + 0.01}, "counts": torch.tensor([3, 4])}
UPLOAD_SCHEMA = schema_of(UPLOAD)
PACKED = tuple(
    (uploads.encode(UPLOAD, ORIGIN, {}, precision="int8", compression=how).data, how) for how in ("none", "zstd")
)

HASH, INSTANCE = "ab" * 32, "cd" * 16
POINTER = {"sha256": HASH, "size": 10, "url": "/v1/blobs/x"}
PLAN = {
    "labels": ["still", "walking"],
    "model": {"name": "har_cnn"},
    "method": {"name": "fedavg"},
    "training": {"classes": 2, "feature_dim": 8},
    "rounds": {"rounds": 3},
}
MESSAGES: tuple[tuple[Any, dict[str, Any]], ...] = (
    (
        Announcement,
        {
            "federation": "walk", "instance": INSTANCE, "state": "collecting", "round": 1, "plan": PLAN,
            "model": POINTER, "created": 1.0, "continuous": True, "feature_model": POINTER,
            "program": POINTER,
        },
    ),
    (Invitation, {"instance": INSTANCE, "round": 1, "model": POINTER}),
    (DeviceStatus, {"state": "ready", "examples": 3, "metrics": {"loss": 0.5}}),
    (
        UpdateManifest,
        {
            "update_id": "r1-a", "federation": "walk", "instance": INSTANCE, "client": "a", "round": 1,
            "method": "fedavg", "base_version": HASH, "examples": 3, "steps": 1, "class_counts": [1, 2], "size": 10,
            "sha256": HASH, "chunk_bytes": 1024, "nonce": "0123456789", "created": 1.0, "sequence": 1_795_000_000_250,
            "runtime": "onnx",
        },
    ),
    (Acknowledgement, {"update_id": "r1-a", "nonce": "0123456789", "status": "accepted"}),
)  # fmt: skip
