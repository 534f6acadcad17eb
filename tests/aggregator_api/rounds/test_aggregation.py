"""In what order a round's updates reach the method."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch

from aggregator_api.rounds.aggregation import StoredUpdate, aggregate
from aggregator_api.rounds.updates.contract import Contract
from aggregator_api.storage.blobs import BlobStore
from federation import wire
from federation.methods.fedavg import FedAvg
from federation.protocol.messages import UpdateManifest
from federation.records import Tree, Update
from federation.wire.schema import schema_of
from tests.aggregator_api.generated_devices import tiny_plan


class Witness(FedAvg):
    """Remembers what it was given."""

    seen: list[tuple[str, float]]

    def aggregate(self, state: Tree, updates: Iterable[Update]) -> Tree:
        """Note clients and discounts."""
        object.__setattr__(self, "seen", [(update.client_id, update.discount) for update in updates])
        return state


def test_updates_come_sorted_by_client_and_late_ones_discounted(tmp_path: Path) -> None:
    tree = {"params": {"w": torch.ones(2)}}
    blobs, method = BlobStore(tmp_path.as_uri()), Witness()
    blob = blobs.put(wire.encode(tree))
    stored = [
        StoredUpdate(manifest(name, blob.sha256, blob.size), late) for name, late in (("b", 0), ("c", 3), ("a", 1))
    ]
    contract = Contract(tiny_plan(), method, schema_of(tree))
    result = aggregate(contract, blobs, blob.sha256, stored, is_newest=True)
    assert method.seen == [("a", 2**-0.5), ("b", 1.0), ("c", 0.5)]
    assert result.state == blob


def manifest(client: str, sha256: str, size: int) -> UpdateManifest:
    """Describe an update in a blob."""
    said = {
        "update_id": client, "instance": "0" * 32, "federation": "walk", "client": client, "round": 1,
        "method": "fedavg", "base_version": sha256, "examples": 1, "steps": 1, "size": size, "sha256": sha256,
        "chunk_bytes": 1024, "nonce": "01234567", "created": 0.0,
    }  # fmt: skip
    return UpdateManifest.model_validate(said)
