"""Whether an update that is well formed is also plausible: its counts, and how far it moves the model.

What is usual in a round is learned from the updates that it has accepted, so the first few are not judged, and
a majority of hostile devices would set the measure themselves.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import torch
from sqlalchemy import select

from aggregator_api.broadcasts import Broadcasts
from aggregator_api.contract import Contract
from aggregator_api.database import Database
from aggregator_api.errors import BlobError, UpdateRefusedError
from aggregator_api.situation import Situation
from aggregator_api.tables import UpdateRow
from federation.norms import SAMPLE, RunningMedian, change_norms
from federation.protocol.messages import UpdateManifest
from federation.records import Tree

log = logging.getLogger("aggregator_api")

Norms = dict[str, float]


class Sample(NamedTuple):
    """What is usual in one round of one federation."""

    round_id: int | None
    medians: dict[str, RunningMedian]


class Judge:
    """Holds updates against what their devices said and against the other updates of the round."""

    def __init__(self, database: Database, broadcasts: Broadcasts) -> None:
        self._database = database
        self._broadcasts = broadcasts
        self._samples: dict[str, Sample] = {}

    def check(self, contract: Contract, found: Situation, manifest: UpdateManifest, tree: Tree) -> Norms:
        """Return the norms of an update that is plausible.

        Raises:
            UpdateRefusedError: saying what came and what is plausible; for quarantine.
        """
        check_counts(contract, found.device.examples if found.device else 0, manifest, tree)
        try:
            norms = change_norms(tree, self._broadcasts.read(manifest.base_version))
        except BlobError as error:
            log.error("norms not judged federation=%s device=%s: %s", manifest.federation, manifest.client, error)
            return {}  # a damaged disk here is not the device's fault
        rounds = contract.plan.rounds
        if rounds.norm_factor is not None:
            medians = self._sample(found, manifest.federation).medians
            for group, norm in norms.items():
                usual = medians.get(group)
                if usual is not None and usual.count >= rounds.norm_after:
                    _check_norm(group, norm, usual, rounds.norm_factor)
        return norms

    def learn(self, found: Situation, federation: str, norms: Norms) -> None:
        """Count an accepted update among what is usual."""
        medians = self._sample(found, federation).medians
        for group, norm in norms.items():
            medians.setdefault(group, RunningMedian()).add(norm)

    def _sample(self, found: Situation, federation: str) -> Sample:
        round_id = found.open.id if found.open else None
        sample = self._samples.get(federation)
        if sample is None or sample.round_id != round_id:
            sample = self._samples[federation] = Sample(round_id, self._accepted_before(round_id))
        return sample

    def _accepted_before(self, round_id: int | None) -> dict[str, RunningMedian]:
        """Read what an earlier process has accepted into the round, or another one beside this."""
        medians: dict[str, RunningMedian] = {}
        query = select(UpdateRow.norms).where(UpdateRow.round_id == round_id).order_by(UpdateRow.id.desc())
        with self._database.read() as session:
            for norms in session.scalars(query.limit(SAMPLE)) if round_id is not None else ():
                for group, norm in (norms or {}).items():
                    medians.setdefault(group, RunningMedian()).add(norm)
        return medians


def check_counts(contract: Contract, announced: int, manifest: UpdateManifest, tree: Tree) -> None:
    """Hold the numbers of examples against one another; `announced` is what the device's status said, 0 if nothing.

    Raises:
        UpdateRefusedError: saying which of them disagree.
    """
    most = contract.most_examples(announced)
    if announced and manifest.examples > most:
        raise _implausible(
            f"{manifest.examples} examples are claimed, the device announced {announced}: at most {most} are plausible"
        )
    if manifest.class_counts is not None and sum(manifest.class_counts) != manifest.examples:
        raise _implausible(f"class_counts sum to {sum(manifest.class_counts)}, not to {manifest.examples} examples")
    counts = tree.get("counts")
    if isinstance(counts, torch.Tensor):
        _check_uploaded_counts(counts.double(), manifest.examples)


def _check_uploaded_counts(counts: torch.Tensor, examples: int) -> None:
    if bool((counts < 0).any()) or not torch.equal(counts, counts.round()):
        raise _implausible("tensor 'counts' must hold whole numbers of at least 0")
    if (total := float(counts.sum())) != examples:
        raise _implausible(f"tensor 'counts' sums to {total:.0f}, not to {examples} examples")


def _check_norm(group: str, norm: float, usual: RunningMedian, factor: float) -> None:
    if usual.median > 0 and norm > factor * usual.median:
        what = "the change of params" if group == "params" else group
        raise _implausible(
            f"{what} has the L2 norm {norm:.4g}, over {factor:g} times the median {usual.median:.4g} "
            f"of the {usual.count} updates accepted before (rounds.norm_factor)"
        )


def _implausible(reason: str) -> UpdateRefusedError:
    return UpdateRefusedError(reason, quarantine=True)
