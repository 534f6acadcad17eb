"""What a device has added to the sums of a continuous federation with secure sums, batch by batch.

The server knows a sum alone, so the device itself keeps what it has added: it adds its difference to the next batch, or
the negative of all to leave. Which batch has it, the server says; until then, the device asks for nothing. A few parts
are kept, as a server that is restored from a backup goes on from an earlier one.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Literal, NamedTuple

from edge_agent.machine.state import Contribution
from edge_agent.storage.participation import CONTRIBUTION
from edge_agent.storage.state_store import StateStore
from edge_agent.training.job import KEY_BYTES
from federation.protocol.messages import Invitation

PARTS = "masked_parts"
"""Name in the store of what this device has added, in which batches."""
MAX_PARTS = 4
LOST = (
    "this device does not have any more what it has added to the federation's sums, so that it can neither replace it "
    "nor take it out: it stays in them until the sums of all others are collected anew, for which its person withdraws "
    "it here, or the operator asks"
)


class Part(NamedTuple):
    """What the device's whole sums were in one batch; `numbers` is their file below the data folder, empty: nothing."""

    epoch: int
    round: int
    kind: Literal["sums", "withdrawn"]
    keys: str = ""  # of the windows, eight bytes each, as base64
    numbers: str = ""
    bound: int = 0  # what the numbers mean, and how large they may be, as for `secure_sum.begin`
    layout: str = ""


class MaskedParts(NamedTuple):
    """The parts by batch; `included`: the batch that has this device, empty: none; `over`: the last that has ended."""

    included: str = ""
    over: tuple[int, int] = (0, 0)
    parts: Mapping[str, Part] = {}

    @property
    def pending(self) -> str:
        """The batch of which it is not known whether it has this device; empty: none."""
        return next((batch for batch, part in self.parts.items() if part[:2] > self.over), "")

    @property
    def is_lost(self) -> bool:
        """Whether a batch has numbers of this device that it does not have itself any more."""
        return bool(self.included) and self.included not in self.parts

    @property
    def base(self) -> str:
        """The file of what the device has in the sums; empty: nothing."""
        return self.parts[self.included].numbers if self.included in self.parts else ""

    def begun(self, batch: str, part: Part) -> MaskedParts:
        """Return the parts with one that is about to be added; of many, the oldest go."""
        left = {name: one for name, one in self.parts.items() if name != self.included}
        kept = {name: left[name] for name in list(left)[2 - MAX_PARTS :]}
        if self.included in self.parts:
            kept = {self.included: self.parts[self.included], **kept}
        return self._replace(parts={**kept, batch: part})

    def contribution(self) -> Contribution | None:
        """Return what the state machine asks for: what the federation has of this device, or will have if all is well.

        None: nothing of it.
        """
        if self.pending:
            return _contribution(self.parts[self.pending], is_settled=False)
        if self.is_lost:
            return Contribution("unknown")
        return _contribution(self.parts[self.included], is_settled=True) if self.included else None


def load(store: StateStore) -> MaskedParts:
    """Return what the device has added."""
    noted = json.loads(store.get(PARTS) or "null")
    if noted is None:
        return MaskedParts()
    parts = {batch: Part(*columns) for batch, columns in noted["parts"].items()}
    return MaskedParts(noted["included"], tuple(noted["over"]), parts)


def pairs_of(parts: MaskedParts) -> dict[str, str]:
    """Return what is written of the parts, in the caller's transaction."""
    fields = {"included": parts.included, "over": parts.over, "parts": parts.parts}
    return {PARTS: json.dumps(fields), CONTRIBUTION: contribution_json(parts.contribution())}


def settle(store: StateStore, invitation: Invitation) -> None:
    """Keep which batch has this device, as the server says."""
    order, parts = invitation.sum, load(store)
    if order is not None and order.settled is not None:
        over = (invitation.epoch, invitation.round - (order.kind != "settled"))
        if over >= parts.over:
            store.put(**pairs_of(parts._replace(included=order.settled, over=over)))


def known(store: StateStore) -> tuple[Contribution | None, str]:
    """Return what the federation has of this device, as far as it is known, and why it can add no more, in words."""
    parts = load(store)
    return contribution_from_json(store.get(CONTRIBUTION)), LOST if parts.is_lost and not parts.pending else ""


def begin_epoch(store: StateStore, epoch: int) -> dict[str, str]:
    """Return what is written when the server was restored: which batch has this device, it is about to say."""
    if not store.get(PARTS):
        return {}
    parts = load(store)
    if parts.over >= (epoch, -1):
        return pairs_of(parts)  # it has said so before
    unknown = contribution_json(Contribution("unknown", is_settled=False))
    return pairs_of(parts._replace(over=(epoch, -1))) | {CONTRIBUTION: unknown}


def files_of(store: StateStore) -> set[str]:
    """Return the names of the files with what the device has added."""
    return {part.numbers.rpartition("/")[2] for part in load(store).parts.values()} - {""}


def keys_text(keys: frozenset[int]) -> str:
    """Write windows' numbers as text."""
    return base64.b64encode(b"".join(key.to_bytes(KEY_BYTES, "big") for key in sorted(keys))).decode()


def keys_of(text: str) -> frozenset[int]:
    """Read windows' numbers."""
    return read_keys(base64.b64decode(text))


def read_keys(data: bytes) -> frozenset[int]:
    """Read windows' numbers as the training process writes them."""
    return frozenset(int.from_bytes(data[at : at + KEY_BYTES], "big") for at in range(0, len(data), KEY_BYTES))


def contribution_json(sent: Contribution | None) -> str:
    """Write a contribution as it is kept; empty: there is none."""
    if sent is None:
        return ""
    fields = {"kind": sent.kind, "update_id": sent.update_id, "keys": keys_text(sent.keys)}
    return json.dumps(fields if sent.is_settled else {**fields, "is_settled": False})


def contribution_from_json(text: str) -> Contribution | None:
    """Read a contribution that was kept."""
    noted = json.loads(text or "null")
    if noted is None:
        return None
    keys, is_settled = keys_of(noted.get("keys", "")), noted.get("is_settled", True)
    return Contribution(noted["kind"], noted.get("update_id", ""), keys, is_settled)


def _contribution(part: Part, *, is_settled: bool) -> Contribution:
    return Contribution(part.kind, "", keys_of(part.keys), is_settled)
