"""Screens updates for plausibility: each on arrival, and all of a round together at its end."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_api.core.errors import BlobError, UpdateRefusedError
from aggregator_api.rounds.updates.context import FederationInfo, OpenRound, UpdateContext
from aggregator_api.rounds.updates.contract import Contract
from aggregator_api.storage.broadcasts import Broadcasts
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.models import RoundRow, UpdateRow
from aggregator_api.storage.db.repositories import ENDED, Named, journal
from federation.aggregation.screening import (
    HISTORY_ROUNDS,
    NormHistory,
    RoundNorms,
    Screening,
    Typical,
    UpdateClaim,
    change_norms,
    class_count_groups,
    refusal,
)
from federation.protocol.messages import UpdateManifest
from federation.records import Tree
from federation.rounds.server_round import RoundPhase
from federation.tasks import Task
from gaitway.logs import about

log = logging.getLogger(__name__)

EXCLUDED = "excluded"
"""Status of an update that a round has accepted, and not used in the end."""

_LOOKED_AT = 10 * HISTORY_ROUNDS
_NAMED = 20


def norm_history(session: Session, federation_id: int, before: int) -> NormHistory:
    """Read what was usual in the rounds of a federation before the one of that number."""
    query = select(RoundRow.phase, RoundRow.norms).where(
        RoundRow.federation_id == federation_id, RoundRow.number < before, RoundRow.phase.in_(ENDED)
    )
    history = NormHistory()
    for phase, norms in reversed(session.execute(query.order_by(RoundRow.number.desc()).limit(_LOOKED_AT)).all()):
        history = history.failed() if phase == RoundPhase.FAILED else history.published(_read(norms))
    return history


def claim_of(row: UpdateRow) -> UpdateClaim:
    """Return what is known of an update."""
    return UpdateClaim(int(row.manifest["examples"]), row.norms or {})


def write_screening(session: Session, federation: Named, row: RoundRow, found: Screening) -> None:
    """Write what was found about the updates of a round: into their rows, the round's, and the journal."""
    judged = found.capped.keys() | found.excluded.keys()
    rows = session.scalars(select(UpdateRow).where(UpdateRow.round_id == row.id)) if judged else ()
    updates = {update.device.name: update for update in rows if update.device.name in judged}
    for name, why in sorted(found.excluded.items()):
        updates[name].status, updates[name].reason = EXCLUDED, why
        journal(session, federation, "update.excluded", round_number=row.number, device=name, detail=why)
    for name, examples in found.capped.items():
        updates[name].counted_examples = examples
    if found.capped:
        detail = _in_words({name: claim_of(updates[name]).examples for name in found.capped}, found.capped)
        journal(session, federation, "round.capped", round_number=row.number, detail=detail)
    row.capped, row.excluded = len(found.capped), len(found.excluded)
    row.norms = {group: typical._asdict() for group, typical in found.norms.items()}
    session.flush()  # the round is also written beside the session


def _in_words(claimed: Mapping[str, int], capped: Mapping[str, int]) -> str:
    names = sorted(capped)
    claims = [f"{name} claims {claimed[name]} examples and counts with {capped[name]}" for name in names[:_NAMED]]
    more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return "; ".join(claims + more) + " (rounds.max_weight_ratio)"


def _read(norms: dict[str, Any] | None) -> RoundNorms:
    return {group: Typical(norm["median"], norm["updates"]) for group, norm in (norms or {}).items()}


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
