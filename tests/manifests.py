"""What devices that do not train say of their updates; without torch, so that a thousand of them start at once."""

from __future__ import annotations

import time
from typing import Any

from federation.protocol.messages import Announcement, UpdateManifest


def manifest_of(
    announced: Announcement, device: str, examples: int, *, size: int, sha256: str, **changes: Any
) -> UpdateManifest:
    """Describe a device's update of the announced round, with one step for each batch of its examples.

    `changes` win over what follows from the announcement.
    """
    said = {
        "update_id": f"r{announced.round}-{device}-{sha256[:16]}",
        "federation": announced.federation,
        "instance": announced.instance,
        "client": device,
        "round": announced.round,
        "method": announced.plan.method["name"],
        "examples": examples,
        "steps": -(-examples // announced.plan.training.batch_size),
        "size": size,
        "sha256": sha256,
        "chunk_bytes": announced.chunk_bytes,
        "nonce": sha256[:16],
        "created": time.time(),
    }
    return UpdateManifest.model_validate({**said, **changes})
