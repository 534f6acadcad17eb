"""A device of a continuous federation, written from 'Continuous federations' in docs/protocol.md alone.

It forms exact sums of its windows, sends them again when enough has changed, takes them out, and goes on after a kill
with what it has on disk.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import secrets
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import onnxruntime
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tests.independent.client import Client, Tensors, Update, read_tensors, write_tensors

FEATURE_STEPS = 2.0**12
SUM_STEPS = 2.0**15
LIMIT = 2.0**31 - 1


def sums_of(features: np.ndarray, y: np.ndarray, classes: int, clip: float) -> Tensors:
    """Return `gram` and `moment` of features (n, D) with classes (n), in the four steps of the document."""
    clipped = np.clip(features.astype(np.float64), -clip, clip)
    rows = np.rint(np.column_stack([clipped, np.ones(len(clipped))]) * FEATURE_STEPS) / FEATURE_STEPS
    size = rows.shape[1]
    gram, moment = np.zeros((size, size)), np.zeros((size, classes))
    for code in range(classes):
        own = rows[y == code]
        if len(own):
            weight = 1 / math.sqrt(len(own))
            gram += own.T @ own * weight
            moment[:, code] = own.sum(0) * weight
    return {"gram": fixed(gram[np.triu_indices(size)]), "moment": fixed(moment)}


def fixed(values: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(values * SUM_STEPS), -LIMIT, LIMIT).astype(np.int32)


class ContinuousClient(Client):
    """One device and its windows; what must outlive a kill is in a file before anything is sent."""

    def __init__(self, url: str, federation: str, device: str, state: Path) -> None:
        super().__init__(url, federation, device)
        self._state = state
        self.sequence = 0
        self.sent: set[tuple[float, int]] = set()
        self.outbox: Update | None = None

    # ---- sums

    def features(self, x: np.ndarray) -> np.ndarray:
        """Return the embeddings (n, D) of windows (n, 128, 6) by the network that the announcement points to."""
        session = onnxruntime.InferenceSession(self._blob(self.announcement["feature_model"]))
        (found,) = session.run(["embedding"], {"x": x})
        return np.asarray(found)

    def is_due(self, x: np.ndarray, y: np.ndarray) -> bool:
        """Whether sums of these windows are to be sent: the first ones, or enough came, went or have another label."""
        after: int = self.announcement["plan"]["publication"]["send_after_windows"]
        return not self.sent or len(self.sent ^ keys_of(x, y)) >= after

    def contribute(self, x: np.ndarray, y: np.ndarray) -> Update:
        """Put the whole sums of windows in the outbox."""
        plan = self.announcement["plan"]
        classes = len(plan["labels"])
        tensors = sums_of(self.features(x), y, classes, plan["method"].get("clip", 4))
        counts = np.bincount(y, minlength=classes).tolist()
        return self._keep(write_tensors(tensors), tensors, keys_of(x, y), examples=len(y), class_counts=counts)

    def withdraw(self) -> Update:
        """Put what takes this device's sums out in the outbox."""
        return self._keep(b"", {}, set(), examples=0, withdraw=True)

    def published(self) -> Tensors:
        """Return the newest version: `params/…` and `sums/…` of all devices."""
        return read_tensors(self._blob(self.announcement["model"]))

    def _keep(self, data: bytes, tensors: Tensors, sent: set[tuple[float, int]], **about: Any) -> Update:
        self.sequence = max(self.sequence + 1, int(1000 * time.time()))
        digest, now = hashlib.sha256(data).hexdigest(), self.announcement
        suffix = "out" if "withdraw" in about else digest[:8]
        manifest = {
            "update_id": f"s{self.sequence}-{self.device}-{suffix}",
            "federation": self.federation,
            "instance": now["instance"],
            "client": self.device,
            "round": now["round"],
            "method": now["plan"]["method"]["name"],
            "base_version": now["model"]["sha256"],
            "sequence": self.sequence,
            "steps": 0,
            "size": len(data),
            "sha256": digest,
            "chunk_bytes": now["chunk_bytes"],
            "nonce": secrets.token_hex(8),
            "created": time.time(),
            **about,
        }
        self.outbox, self.sent = Update(manifest, data, tensors), sent
        self._save()
        return self.outbox

    def _blob(self, pointer: dict[str, Any]) -> bytes:
        status, data = self._ask("GET", urlsplit(pointer["url"]).path)
        assert (status, len(data), hashlib.sha256(data).hexdigest()) == (200, pointer["size"], pointer["sha256"])
        return data

    # ---- what a kill leaves

    def _save(self) -> None:
        assert self.outbox is not None
        kept = {
            "key": self._pair.private_bytes_raw().hex(),
            "server_key": self._server_key.public_bytes_raw().hex(),
            "headers": self._headers,
            "sequence": self.sequence,
            "sent": sorted(self.sent),
            "manifest": self.outbox.manifest,
            "data": base64.b64encode(self.outbox.data).decode(),
        }
        self._state.write_text(json.dumps(kept))

    def resume(self) -> Update:
        """Go on with what an earlier run of this device has left; returns the update that waits."""
        kept = json.loads(self._state.read_text())
        self._pair = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(kept["key"]))
        self._server_key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(kept["server_key"]))
        self._headers, self.sequence = kept["headers"], kept["sequence"]
        self.sent = {(first, label) for first, label in kept["sent"]}
        self.outbox = Update(kept["manifest"], base64.b64decode(kept["data"]), {})
        return self.outbox


def keys_of(x: np.ndarray, y: np.ndarray) -> set[tuple[float, int]]:
    """Return what tells windows apart: their sums of numbers, and their labels."""
    return {(float(window.sum(dtype=np.float64)), int(label)) for window, label in zip(x, y, strict=True)}
