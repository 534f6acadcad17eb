"""What a continuous federation has of this device, as it is kept in the store."""

from __future__ import annotations

import base64
import json

from edge_agent.machine.state import Contribution
from edge_agent.training.job import KEY_BYTES


def keys_text(keys: frozenset[int]) -> str:
    """Write windows' numbers as text."""
    return base64.b64encode(b"".join(key.to_bytes(KEY_BYTES, "big") for key in sorted(keys))).decode()


def read_keys(data: bytes) -> frozenset[int]:
    """Read windows' numbers as the training process writes them."""
    return frozenset(int.from_bytes(data[at : at + KEY_BYTES], "big") for at in range(0, len(data), KEY_BYTES))


def contribution_json(sent: Contribution | None) -> str:
    """Write a contribution as it is kept; empty: there is none."""
    if sent is None:
        return ""
    keys = keys_text(sent.keys)
    return json.dumps({"kind": sent.kind, "update_id": sent.update_id, "keys": keys, "sequence": sent.sequence})


def contribution_from_json(text: str) -> Contribution | None:
    """Read a contribution that was kept."""
    noted = json.loads(text or "null")
    if noted is None:
        return None
    keys = read_keys(base64.b64decode(noted.get("keys", "")))
    return Contribution(noted["kind"], noted.get("update_id", ""), keys, noted.get("sequence", 0))
