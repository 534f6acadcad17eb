"""Whether an update that is well formed is also plausible: its counts, and how far it moves the model."""

from __future__ import annotations

import logging

import torch

from aggregator_api.core.errors import BlobError, UpdateRefusedError
from aggregator_api.rounds.updates.context import FederationInfo, OpenRound, UpdateContext
from aggregator_api.rounds.updates.contract import Contract
from aggregator_api.rounds.updates.screening import norm_history
from aggregator_api.storage.broadcasts import Broadcasts
from aggregator_api.storage.db.database import Database
from federation.aggregation.screening import NormHistory, change_norms, class_count_groups, refusal
from federation.protocol.messages import UpdateManifest
from federation.records import Tree
from federation.tasks import Task
from gaitway.logs import about

log = logging.getLogger(__name__)

Norms = dict[str, float]


class AnomalyDetector:
    """Holds updates against what their devices said and, as they arrive, against those of earlier rounds.

    At its end a round judges all of its updates once more, together (`aggregator_api.rounds.updates.screening`).
    """

    def __init__(self, database: Database, broadcasts: Broadcasts) -> None:
        self._database = database
        self._broadcasts = broadcasts
        self._histories: dict[int, tuple[int, NormHistory]] = {}

    def check(self, contract: Contract, context: UpdateContext, manifest: UpdateManifest, tree: Tree) -> Norms:
        """Return the norms of an update that is plausible.

        Raises:
            UpdateRefusedError: saying what came and what is plausible; for quarantine.
        """
        check_counts(contract, context.device.examples if context.device else 0, manifest, tree)
        if method := contract.sum_method:  # sums grow with what a device has: their bounds are all there is to check
            if reason := method.implausibility(tree, manifest.examples, contract.plan.training):
                raise _implausible(reason)
            return change_norms(tree, {}, method.upload_groups)
        try:
            norms = change_norms(tree, self._broadcasts.read(manifest.base_version), contract.method.upload_groups)
        except BlobError as error:
            extra = about(federation=manifest.federation, device=manifest.client)
            log.error("norms not judged: %s", error, extra=extra)
            return {}  # a damaged disk here is not the device's fault
        if context.federation is not None and (
            reason := refusal(contract.plan.rounds, norms, self._history(context.federation, context.open))
        ):
            raise _implausible(reason)
        return norms

    def _history(self, federation: FederationInfo, now: OpenRound | None) -> NormHistory:
        """Return what earlier rounds say; it is read once a round."""
        number = now.round.number if now else federation.last_round + 1
        known, history = self._histories.get(federation.id, (0, NormHistory()))
        if known != number:
            with self._database.read() as session:
                history = norm_history(session, federation.id, number)
            self._histories[federation.id] = number, history
        return history


def check_counts(contract: Contract, announced: int, manifest: UpdateManifest, tree: Tree) -> None:
    """Hold the numbers of examples against one another; `announced` is what the device's status said, 0 if nothing.

    Raises:
        UpdateRefusedError: saying which of them disagree.
    """
    most = contract.max_examples(announced)
    if announced and manifest.examples > most:
        raise _implausible(
            f"{manifest.examples} examples are claimed, the device announced {announced}: at most {most} are plausible"
        )
    if manifest.class_counts is not None and (
        problem := contract.task.count_mismatch(sum(manifest.class_counts), manifest.examples)
    ):
        raise _implausible(f"class_counts {problem}")
    for name in class_count_groups(contract.method.upload_groups):
        _check_uploaded_counts(contract.task, name, tree[name].double(), manifest.examples)


def _check_uploaded_counts(task: Task, name: str, counts: torch.Tensor, examples: int) -> None:
    if bool((counts < 0).any()) or not torch.equal(counts, counts.round()):
        raise _implausible(f"tensor {name!r} must hold whole numbers of at least 0")
    if problem := task.count_mismatch(int(counts.sum()), examples):
        raise _implausible(f"tensor {name!r} {problem}")


def _implausible(reason: str) -> UpdateRefusedError:
    return UpdateRefusedError(reason, quarantine=True)
