"""Whether the sums of a continuous federation's newest version are those that its rows tell of.

In the clear they are added up again from devices' blobs and compared bit for bit. Of a secure sum single devices' sums
are nowhere: it is held against what so many devices can add up to, and against whose sums the version has.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from aggregator_api.storage.blobs import BlobStore
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import ContributionRow, FederationRow, MaskedContributionRow
from aggregator_api.storage.findings import FROM_BACKUP, FsckResult, Severity, guarded
from federation import wire
from federation.aggregation.present_sums import combined, settings_of
from federation.method import SumMethod
from federation.methods import METHODS, method_from_json
from federation.plan import Plan, SecureSettings
from federation.records import Tree, Update
from federation.records.tree import flatten
from federation.secure_sums.plausibility import OpenedSum, implausibility
from federation.secure_sums.summation import layout_from_json


def check(session: Session, blobs: BlobStore) -> Iterator[FsckResult]:
    """Add up again what every continuous federation's devices have sent, and compare."""
    for number, name in session.execute(select(FederationRow.id, FederationRow.name).order_by(FederationRow.id)).all():
        yield from guarded(f"federation {name}: its plan", _check_one(session, blobs, number), session)


def _check_one(session: Session, blobs: BlobStore, number: int) -> Iterator[FsckResult]:
    federation = session.get_one(FederationRow, number)
    description = federation.plan["method"]
    method = method_from_json(description) if description["name"] in METHODS else None
    if not isinstance(method, SumMethod):
        return
    secure = Plan.model_validate(federation.plan).secure
    try:
        if secure.is_on:
            yield _plausible(session, blobs, federation, method, secure)
        else:
            yield _compared(session, blobs, federation, method)
    except Exception as error:  # what was damaged may break the sum anywhere
        words = " ".join(str(error).split())[:300] or type(error).__name__
        message = f"federation {federation.name}: its sums cannot be added up: {words}"
        yield FsckResult(Severity.PROBLEM, message, FROM_BACKUP)


def rebuilt(session: Session, blobs: BlobStore, federation: FederationRow, method: SumMethod) -> Tree:
    """Return the newest version's state as its method makes it of all contributions at once.

    Raises:
        BlobError: if a blob is missing or damaged.
    """
    plan = Plan.model_validate(federation.plan)
    query = select(ContributionRow).where(
        ContributionRow.federation_id == federation.id, ContributionRow.published_sha256.is_not(None)
    )
    rows = {row.device.name if row.device else f"/{row.id}": row for row in session.scalars(query)}
    newest = _newest(session, blobs, federation)

    def read(client: str) -> Update:
        return Update(client, rows[client].examples, 0, _tree(blobs, str(rows[client].published_sha256)))

    return combined(method, settings_of(newest, plan.rounds), plan.training.seed, newest, list(rows), read).state


def _compared(session: Session, blobs: BlobStore, federation: FederationRow, method: SumMethod) -> FsckResult:
    if _has_nameless(session, federation) and method.aggregation != "mean":
        message = f"federation {federation.name}: a device was deleted, and its sums go with the next version"
        return FsckResult(Severity.OK, f"{message}; a robust rule goes by names, so that one is compared again")
    kept, again = flatten(_newest(session, blobs, federation)), flatten(rebuilt(session, blobs, federation, method))
    number, clients = repositories.newest_version(session, federation).version, int(again["sums/clients"])
    words = f"federation {federation.name}: the sums of version {number}"
    differing = [name for name, value in again.items() if not torch.equal(value, kept[name])]
    # the head that nobody's sums give is zero, and the first version's is drawn
    if not clients:
        differing = [name for name in differing if name.startswith("sums/")]
    if differing:
        message = f"{words} are not those of its {clients} devices: {', '.join(differing)} differ"
        return FsckResult(Severity.PROBLEM, message, FROM_BACKUP)
    return FsckResult(Severity.OK, f"{words} are those of its {clients} devices, bit for bit")


def _plausible(
    session: Session, blobs: BlobStore, federation: FederationRow, method: SumMethod, secure: SecureSettings
) -> FsckResult:
    newest, sums = repositories.newest_version(session, federation), _newest(session, blobs, federation)["sums"]
    words, clients = f"federation {federation.name}: the sums of version {newest.version}", int(sums["clients"])
    if not clients:
        return FsckResult(Severity.OK, f"{words} are of no device yet")
    row = MaskedContributionRow
    count = select(func.count()).where(row.federation_id == federation.id, row.version == newest.version)
    noted = session.scalars(count).one()  # a device that was deleted since has no row
    layout = layout_from_json(federation.sum_layout or ())
    numbers = np.concatenate([np.asarray(sums[part.name], np.int64).reshape(-1) for part in layout.segments])
    reason = implausibility(method, secure, OpenedSum(layout, numbers, clients))
    if noted > clients:
        reason = f"{noted} devices are noted to be in them"
    if reason:
        return FsckResult(Severity.PROBLEM, f"{words} are not of {clients} devices: {reason}", FROM_BACKUP)
    return FsckResult(Severity.OK, f"{words} can be those of {clients} devices")


def _has_nameless(session: Session, federation: FederationRow) -> bool:
    row = ContributionRow
    gone = (row.federation_id == federation.id, row.device_id.is_(None), row.published_sha256.is_not(None))
    return session.scalar(select(row.id).where(*gone).limit(1)) is not None


def _newest(session: Session, blobs: BlobStore, federation: FederationRow) -> Tree:
    return _tree(blobs, repositories.newest_version(session, federation).state_sha256)


def _tree(blobs: BlobStore, sha256: str) -> Tree:
    data = blobs.read(sha256)
    return wire.decode(data, limit_bytes=len(data))
