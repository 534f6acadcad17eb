"""What a federation accepts: the method, and the schema that every update is checked against."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from aggregator_api.core.errors import BlobError, UpdateRefusedError
from aggregator_api.storage.db.models import FederationKind, FederationRow
from federation import wire
from federation.errors import UpdateError, WireError
from federation.method import Method, SumMethod
from federation.methods import method_from_json
from federation.plan import Plan
from federation.protocol.messages import UpdateManifest
from federation.records import Tree
from federation.rounds.server_round import keeps_partial_work
from federation.secure_sums.summation import SumLayout, layout_from_json
from federation.tasks import Task, task_from_json
from federation.wire import uploads
from federation.wire.schema import Schema, TensorSpec

_NOT_ALONE = (
    "an update as such came, but this federation adds updates up without seeing one alone (secure.mode); update the "
    "device's program, or leave this federation to other devices"
)
_NO_SUM = "a message of a secure sum came, but this federation takes updates as such (secure.mode is off)"


@dataclass(frozen=True)
class Contract:
    """A federation's fixed half, read from its row once."""

    plan: Plan
    method: Method
    schema: Schema
    sum_layout: SumLayout | None = None
    """What the numbers of a secure sum mean; None where updates come as such."""

    @cached_property
    def task(self) -> Task:
        """What the federation learns."""
        return task_from_json(self.plan.task)

    @property
    def sum_method(self) -> SumMethod | None:
        """The method, if devices' sums replace one another at any time, and versions are published by a schedule."""
        return self.method if isinstance(self.method, SumMethod) else None

    @cached_property
    def kind(self) -> FederationKind:
        """Whether devices upload sums, and whether the server sees them."""
        return FederationKind.of(self.plan.method, self.plan.secure.mode)

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` needs, in another process."""
        plan, layout = self.plan.model_dump(mode="json"), self.sum_layout and self.sum_layout.segments
        return {"plan": plan, "upload_schema": write_schema(self.schema), "sum_layout": layout}

    @classmethod
    def from_json(cls, columns: Mapping[str, Any]) -> Contract:
        """Read a contract from the columns of a federation's row."""
        plan = Plan.model_validate(columns["plan"])
        layout = columns.get("sum_layout")
        summed = None if layout is None else layout_from_json(layout)
        return cls(plan, method_from_json(plan.method), _read_schema(columns["upload_schema"]), summed)

    def steps(self, examples: int) -> int:
        """Count the optimizer steps that the plan asks of a client with that many examples."""
        epochs = sum(phase.epochs for phase in self.method.phases(self.plan.training))
        return epochs * math.ceil(examples / self.plan.training.batch_size)

    def max_examples(self, announced: int) -> int:
        """Return how many examples are plausible of a device that announced so many: it may have collected since."""
        return 2 * announced + self.plan.training.batch_size

    def partial_work(self, manifest: UpdateManifest) -> str:
        """Say how little of its work a straggler did; empty if it did all."""
        due_steps = self.steps(manifest.examples)
        return "" if manifest.steps >= due_steps else f"partial work: {manifest.steps} of {due_steps} steps"

    def check_manifest(self, manifest: UpdateManifest) -> None:
        """Check what an update's manifest says against the plan.

        Raises:
            UpdateRefusedError: for another method, an impossible size, steps or class counts, or for partial work
                that this federation drops.
        """
        if manifest.method != self.method.name:
            raise _bad(f"the update is from method {manifest.method!r}, this federation runs {self.method.name!r}")
        if self.kind.masked != (manifest.sum is not None):
            raise UpdateRefusedError(_NOT_ALONE if manifest.sum is None else _NO_SUM, is_fault=True)
        if manifest.sum is not None:  # nothing more is told, and what the bytes hold is for the sum's state machine
            if manifest.sum == "keys":
                self._check_sequence(manifest)
            return
        if manifest.size > (limit := uploads.limit_bytes(self.schema, manifest.precision)):
            raise _bad(f"{manifest.size:,} bytes were announced, at most {limit:,} are plausible here")
        if manifest.steps > (due_steps := self.steps(manifest.examples)):
            claim = f"{manifest.steps} steps on {manifest.examples} examples are claimed"
            raise _bad(f"{claim}, the plan asks for {due_steps}")
        if due_steps and not manifest.steps:
            raise UpdateRefusedError(
                f"0 steps were done, and this federation's method ({self.method.name}) trains: nothing was learnt",
                is_fault=True,
            )
        self._check_sequence(manifest)
        if self.kind.sums and manifest.precision != "lossless":
            raise _bad(f"precision {manifest.precision!r} came; sums of a continuous federation travel lossless")
        counts = manifest.class_counts
        if counts is not None and (len(counts) != self.plan.training.classes or min(counts) < 0):
            raise _bad(f"class_counts must be {self.plan.training.classes} numbers of at least 0")
        if (partial := self.partial_work(manifest)) and not keeps_partial_work(self.plan.rounds, self.method):
            raise UpdateRefusedError(f"{partial}, which this federation drops (rounds.partial_work)")

    def _check_sequence(self, manifest: UpdateManifest) -> None:
        if self.kind.sums != (manifest.sequence is not None):
            kind, what = ("continuous", "has") if self.kind.sums else ("in rounds", "has no")
            raise _bad(f"this federation works {kind}, where an update {what} `sequence`; update the device's program")

    def decode(self, manifest: UpdateManifest, data: bytes, read_broadcast: Callable[[str], Tree]) -> Tree:
        """Read an update's bytes as exactly the tensors of the schema, all finite.

        `read_broadcast` returns the broadcast of that sha256; it is asked where the update is changes from it.

        Raises:
            UpdateRefusedError: saying what is wrong with them.
        """
        precision, compression = manifest.precision, manifest.compression

        def start() -> Tree:
            return self.method.delta_reference(read_broadcast(manifest.base_version))

        try:
            tree = uploads.decode(data, self.schema, start, precision=precision, compression=compression)
            fault = uploads.small_changes(tree, start()) if precision == "int8" else ""
        except BlobError as error:  # not the device's fault
            raise UpdateRefusedError(f"what the update started from is not here any more: {error}") from error
        except (WireError, UpdateError) as error:
            raise _bad(str(error)) from error
        except (TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
            # a name that is both a tensor and a folder of tensors breaks the tree in ways of its own
            raise _bad(f"the bytes do not make a tree of tensors: {error}") from error
        if fault:
            raise _bad(fault)
        return tree

    def decode_stored(self, data: bytes) -> Tree:
        """Read what this server has stored of a device's sums: lossless, not compressed."""
        return uploads.decode(data, self.schema, dict, precision="lossless")


def read_contract(row: FederationRow) -> Contract:
    """Read a federation's contract from its row."""
    columns = {"plan": row.plan, "upload_schema": row.upload_schema, "sum_layout": row.sum_layout}
    return Contract.from_json(columns)


def write_schema(schema: Schema) -> dict[str, Any]:
    """Return a schema as JSON."""
    return {name: {"shape": list(spec.shape), "dtype": _dtype_name(spec.dtype)} for name, spec in schema.items()}


def _read_schema(columns: Mapping[str, Any]) -> Schema:
    dtypes = {_dtype_name(dtype): dtype for dtype in wire.DTYPES}
    return {name: TensorSpec(tuple(spec["shape"]), dtypes[spec["dtype"]]) for name, spec in columns.items()}


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _bad(reason: str) -> UpdateRefusedError:
    return UpdateRefusedError(reason, quarantine=True)
