"""The clients' way to the server: uploads are encoded and decoded as live ones are, where that costs digits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from federation.protocol.messages import Precision
from federation.records import Tree, UploadGroup
from federation.records.tree import leaves, map_tree
from federation.training.local_round import LocalRound
from federation.wire import uploads
from federation.wire.schema import schema_of
from sim.engines import ClientJob, Engine
from sim.engines.client_store.lazy import LazySequence
from sim.experiment.options import UplinkPrecision


@dataclass(frozen=True)
class Uplink:
    """Puts the wire between the clients, which keep their residuals as devices do, and the server."""

    precision: UplinkPrecision = "lossless"

    def run(self, engine: Engine, jobs: Sequence[ClientJob], round_number: int) -> Iterator[tuple[str, LocalRound]]:
        """Yield what `engine` makes of the jobs, with the uploads as they arrive; lossless ones arrive as they are.

        Raises:
            UpdateError: if an upload is not finite.
        """
        if self.precision == "lossless":
            yield from engine.run(jobs, round_number)
            return
        waiting: dict[str, tuple[ClientJob, Tree]] = {}

        def begun(job: ClientJob) -> ClientJob:
            """Return the job with the client as its method knows it, and remember the rest."""
            client, residual = uploads.split_residual(job.client)
            waiting[job.client_id] = job._replace(client=client), residual
            return waiting[job.client_id][0]

        for name, result in engine.run(LazySequence(jobs, begun), round_number):
            yield name, self._arrived(result, *waiting.pop(name))

    def mean_bytes(self, sent: Iterable[Tree]) -> int:
        """Return mean bytes of uploads' tensors as they travel; 0 of none."""
        sizes = [uploads.payload_bytes(schema_of(upload), self._wire) for upload in sent]
        return int(np.mean(sizes)) if sizes else 0

    def _arrived(self, result: LocalRound, job: ClientJob, residual: Tree) -> LocalRound:
        upload, delta_reference = (
            _moved(result.upload, "cpu"),
            _moved(job.setup.method.delta_reference(job.broadcast), "cpu"),
        )
        sent = uploads.encode(upload, delta_reference, _moved(residual, "cpu"), precision=self._wire)
        received = uploads.decode(sent.data, schema_of(upload), lambda: delta_reference, precision=self._wire)
        home = next((str(value.device) for value in leaves(result.upload)), "cpu")
        kept = _moved(sent.residual, home) if self.precision == "int8" else {}
        return result._replace(client=uploads.with_residual(result.client, kept), upload=_moved(received, home))

    @property
    def _wire(self) -> Precision:
        return "int8" if self.precision == "int8_without_feedback" else self.precision


def count_numbers(upload: Tree, groups: Mapping[str, UploadGroup]) -> int:
    """Count an upload's numbers as Tan et al. 2022 do (table 1): parameters, and prototypes of classes that it has.

    Rows of classes that the client lacks travel as zeros, but count for nothing; neither do the examples of each class.
    """
    counts = [upload[name] for name, group in groups.items() if group is UploadGroup.CLASS_COUNTS]
    return sum(
        _own_rows(value, counts).numel()
        if groups.get(name) in (UploadGroup.VALUE, UploadGroup.OTHER)
        else value.numel()
        for name, part in upload.items()
        if groups.get(name) is not UploadGroup.CLASS_COUNTS
        for value in leaves(part)
    )


def _own_rows(value: Tensor, counts: Sequence[Tensor]) -> Tensor:
    """Leave out the rows of classes without examples, where there is a row for each class."""
    by_class = [each for each in counts if value.shape[:1] == each.shape]
    return value[by_class[0] > 0] if by_class else value


def _moved(tree: Tree, device: str) -> Tree:
    moved: Tree = map_tree(lambda value: value.to(device), tree)
    return moved
