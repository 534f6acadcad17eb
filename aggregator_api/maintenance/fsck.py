"""Checks the integrity of the server's data: the database, every blob that it needs, open rounds, partial uploads.

It reads, and changes nothing unless it is told to repair; and then only what costs nobody anything: uploads that
cannot be resumed (their devices send them again), and rights of others on private files.
"""

from __future__ import annotations

import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import func, or_, select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from aggregator_api.auth.signing import Identity
from aggregator_api.core.errors import BlobError, ConfigError, LedgerError
from aggregator_api.core.settings import Settings
from aggregator_api.maintenance import revocations
from aggregator_api.storage import garbage_collection
from aggregator_api.storage.blobs import BlobStore
from aggregator_api.storage.db import epochs, repositories
from aggregator_api.storage.db import ledger as ledgers
from aggregator_api.storage.db.database import MADE_BEFORE_0_4_0, MIGRATIONS, Database, is_too_old
from aggregator_api.storage.db.ledger import Ledger
from aggregator_api.storage.db.models import (
    ContributionRow,
    FederationRow,
    ModelAliasRow,
    ModelVersionRow,
    ParticipationRow,
    RoundRow,
    UpdateRow,
)
from aggregator_api.storage.findings import FROM_BACKUP, FsckResult, Severity, check_sums, damaged_rows, guarded
from federation.errors import WireError
from federation.protocol.messages import UpdateManifest, read

_PARTS = (".json", ".have", ".part")
"""Files of a half-received update."""


def check(settings: Settings, *, repair: bool = False) -> Iterator[FsckResult]:
    """Look at everything, each finding as soon as it is known; a server may be running meanwhile.

    Raises:
        ConfigError: if there is no database.
    """
    path = settings.database_file
    if path is not None and not path.is_file():
        raise ConfigError(f"there is no database {path}; is this the server's data_dir?")
    database = Database(settings.database)
    blobs = BlobStore(settings.blobs)
    try:
        findings = list(guarded("the database", _database(database)))
        yield from findings
        if any(finding.level is Severity.PROBLEM for finding in findings):
            return  # rows of another schema, or broken ones, would be read wrongly
        with database.read() as session:
            yield from _contents(session, settings, blobs)
            folder = settings.data_dir.resolve() / "spool"
            yield from guarded(f"the folder {folder}", _uploads(session, folder, repair=repair))
    except SQLAlchemyError as error:
        yield FsckResult(Severity.PROBLEM, f"the database cannot be read: {error}", FROM_BACKUP)
        return
    finally:
        database.close()
    yield from guarded(f"the server's key {settings.identity}", _identity(settings.identity, repair=repair))


def _contents(session: Session, settings: Settings, blobs: BlobStore) -> Iterator[FsckResult]:
    """Look at what the database holds, and at the blobs that it names; damage to one thing hides no other."""
    parts = {
        "the rows": damaged_rows(session),
        "the epoch": _epoch(session),
        f"the ledger {settings.ledger}": _ledger(session, Ledger(settings.ledger)),
        "the rounds": _rounds(session),
        "the blobs": _blobs(session, blobs),
        "the sums": check_sums(session, blobs),
    }
    for what, findings in parts.items():
        yield from guarded(what, findings, session)


def _database(database: Database) -> Iterator[FsckResult]:
    head = ScriptDirectory.from_config(_alembic()).get_current_head()
    with database.read() as session:
        if not database.shared:
            damage = [str(row[0]) for row in session.execute(text("PRAGMA integrity_check"))]
            if damage != ["ok"]:
                yield FsckResult(Severity.PROBLEM, f"the database is damaged: {'; '.join(damage[:5])}", FROM_BACKUP)
                return
            astray = [
                f"{row[0]} row {row[1]} names no {row[2]}" for row in session.execute(text("PRAGMA foreign_key_check"))
            ]
            if astray:
                yield FsckResult(
                    Severity.PROBLEM, f"rows name others that are not there: {'; '.join(astray[:5])}", FROM_BACKUP
                )
                return
        try:
            present = session.scalar(text("SELECT version_num FROM alembic_version"))
        except SQLAlchemyError:
            yield FsckResult(Severity.PROBLEM, "the database holds no server's tables", "is this the right database?")
            return
    if is_too_old(present):
        yield FsckResult(Severity.PROBLEM, f"the database {MADE_BEFORE_0_4_0}")
    elif present != head:
        todo = "run `migrate`, or the program that the database is of, if that is newer"
        yield FsckResult(Severity.PROBLEM, f"the database's schema is {present}, this program's is {head}", todo)
    else:
        yield FsckResult(Severity.OK, f"the database is whole, and of schema {head}")


def _alembic() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config


def _epoch(session: Session) -> Iterator[FsckResult]:
    row = epochs.current(session)
    never = "epoch 1: the server was never restored"
    yield FsckResult(Severity.OK, never if row.restored_at is None else epochs.restored_words(row))


def _ledger(session: Session, ledger: Ledger) -> Iterator[FsckResult]:
    try:
        revocations.contents(session, ledger)
        entries = ledger.read().entries
    except LedgerError as error:
        if ledgers.position(session).ledger is None:
            yield FsckResult(Severity.OK, "no ledger yet: the first start of the server begins it")
            return
        todo = "set ledger_dir to where it lies; if it is lost: `new-ledger`, if this database is the newest"
        yield FsckResult(Severity.PROBLEM, str(error), todo)
        return
    yield FsckResult(Severity.OK, f"the ledger {ledger.path} is whole, with {len(entries)} ends of accesses")


def _rounds(session: Session) -> Iterator[FsckResult]:
    for number, name in session.execute(select(FederationRow.id, FederationRow.name).order_by(FederationRow.id)).all():
        yield from guarded(f"federation {name}", _rounds_of(session, number), session)


def _rounds_of(session: Session, number: int) -> Iterator[FsckResult]:
    federation = session.get_one(FederationRow, number)
    of_it = (RoundRow.federation_id == federation.id, RoundRow.phase.not_in(repositories.ENDED))
    found = list(session.scalars(select(RoundRow).where(*of_it)))
    if len(found) > 1:
        numbers = ", ".join(str(row.number) for row in found)
        yield FsckResult(Severity.PROBLEM, f"federation {federation.name}: rounds {numbers} are all open", FROM_BACKUP)
    if any(session.get(ModelAliasRow, (federation.id, alias)) is None for alias in ("latest", "stable")):
        yield FsckResult(Severity.PROBLEM, f"federation {federation.name} has no present model", FROM_BACKUP)
    for row in found:
        yield _counted(session, federation, row)
    if not found:
        last = repositories.last_number(session, federation)
        yield FsckResult(Severity.OK, f"federation {federation.name} is {federation.status}, after round {last}")


def _counted(session: Session, federation: FederationRow, row: RoundRow) -> FsckResult:
    """Hold an open round's counters against its devices."""
    query = select(ParticipationRow.outcome, func.count()).where(ParticipationRow.round_id == row.id)
    outcomes = {row[0]: row[1] for row in session.execute(query.group_by(ParticipationRow.outcome))}
    counted = (outcomes.get("waiting", 0), outcomes.get("received", 0))
    words = f"federation {federation.name}: round {row.number} is {row.phase}"
    if counted != (row.pending, row.received):
        wrong = f"it counts {row.pending} awaited and {row.received} received devices, its rows are {counted}"
        return FsckResult(Severity.PROBLEM, f"{words}, but {wrong}", FROM_BACKUP)
    return FsckResult(Severity.OK, f"{words}: {row.received} devices have reported, {row.pending} are awaited")


def _blobs(session: Session, blobs: BlobStore) -> Iterator[FsckResult]:
    """Read every blob that a row needs, and compare its bytes with its name and its size with the row."""
    needed, sizes, wrong = garbage_collection.referenced(session), _sizes(session), 0
    for sha256 in sorted(needed):
        try:
            size = sum(len(piece) for piece in blobs.pieces(sha256))
            fault = "" if sizes.get(sha256, size) == size else f"has {size:,} bytes, its row says {sizes[sha256]:,}"
        except (BlobError, OSError) as error:
            fault = str(error).removeprefix(f"blob {sha256} ")
        if fault:
            wrong += 1
            what, todo = _named(session, sha256)
            yield FsckResult(Severity.PROBLEM, f"{what}: its blob {sha256[:12]}… {fault}", todo)
    if not wrong:
        yield FsckResult(Severity.OK, f"all {len(needed)} blobs that rows need are here, with their sha256 and size")


def _sizes(session: Session) -> dict[str, int]:
    versions = session.execute(select(ModelVersionRow.broadcast_sha256, ModelVersionRow.broadcast_size))
    sums = session.execute(select(ContributionRow.sha256, ContributionRow.size))
    networks = session.execute(select(FederationRow.feature_model_sha256, FederationRow.feature_model_size))
    programs = session.execute(select(FederationRow.program_sha256, FederationRow.program_size))
    updates = session.execute(select(UpdateRow.sha256, UpdateRow.size).where(UpdateRow.status != "quarantined"))
    return {
        sha256: size
        for rows in (versions, networks, programs, updates, sums)
        for sha256, size in rows
        if sha256 and size
    }


def _named(session: Session, sha256: str) -> tuple[str, str]:
    """Say what a blob is, and what its loss means."""
    state = ModelVersionRow.state_sha256 == sha256
    version = session.scalars(
        select(ModelVersionRow).where(state | (ModelVersionRow.broadcast_sha256 == sha256)).limit(1)
    ).first()
    if version is not None:
        name = session.scalars(select(FederationRow.name).where(FederationRow.id == version.federation_id)).one()
        alias = select(ModelAliasRow.alias).where(ModelAliasRow.version_id == version.id)
        used = ", ".join(session.scalars(alias.order_by(ModelAliasRow.alias)))
        todo = FROM_BACKUP if used else "nothing uses this version now; a backup may still have the blob"
        return f"version {version.version} of {name}" + (f" ({used})" if used else ""), todo
    network_of = session.scalars(
        select(FederationRow.name).where(FederationRow.feature_model_sha256 == sha256).limit(1)
    ).first()
    if network_of is not None:
        return f"the network below the head of {network_of}", FROM_BACKUP
    program_of = session.scalars(
        select(FederationRow.name).where(FederationRow.program_sha256 == sha256).limit(1)
    ).first()
    if program_of is not None:
        return f"the program of {program_of}", FROM_BACKUP
    named = [column == sha256 for column in garbage_collection.CONTRIBUTED]
    sums = session.scalars(select(ContributionRow).where(or_(*named)).limit(1)).first()
    if sums is not None:
        return f"the sums of {sums.device.name if sums.device else 'a deleted device'}", FROM_BACKUP
    update = session.scalars(select(UpdateRow).where(UpdateRow.sha256 == sha256).limit(1)).first()
    if update is not None:
        todo = "its round will fail with this reason, and the next one begins; a backup may still have the blob"
        return f"update {update.update_id} of round {update.base_round}", todo
    return "what a device of the open round starts from", FROM_BACKUP


def _uploads(session: Session, folder: Path, *, repair: bool) -> Iterator[FsckResult]:
    """Check partial uploads; one that can't be resumed is harmless, and may be deleted."""
    going, useless, federations = 0, [], set(session.scalars(select(FederationRow.name)))
    for described in sorted({path.with_suffix(".json") for kind in _PARTS for path in folder.glob(f"*/*/*{kind}")}):
        try:
            read(UpdateManifest, described.read_bytes())
        except (OSError, WireError):
            useless.append(described)
            continue
        if described.parent.parent.name in federations and described.with_suffix(".part").exists():
            going += 1
        else:
            useless.append(described)
    if useless and repair:
        for described in useless:
            for suffix in _PARTS:
                _remove(described.with_suffix(suffix))
    if useless:
        words = f"{len(useless)} half-received updates cannot be resumed, such as {useless[0].stem}"
        yield (
            FsckResult(Severity.REPAIRED, f"{words}: deleted")
            if repair
            else FsckResult(Severity.PROBLEM, words, "--repair deletes them; their devices send them again")
        )
    yield FsckResult(Severity.OK, f"{going} updates are under way")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _identity(path: Path, *, repair: bool) -> Iterator[FsckResult]:
    if not path.is_file():
        todo = "restore it from a backup: with a new one, every enrolled device must enrol again"
        yield FsckResult(Severity.PROBLEM, f"the server's key {path} is not there", todo)
        return
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        if repair:
            path.chmod(0o600)
            yield FsckResult(Severity.REPAIRED, f"others could read the server's key {path}: they cannot any more")
        else:
            yield FsckResult(
                Severity.PROBLEM, f"others can read the server's key {path}", "--repair takes the right away"
            )
        return
    try:
        Identity(path).load()
    except ConfigError as error:
        yield FsckResult(Severity.PROBLEM, str(error), "with a new one, every enrolled device must enrol again")
        return
    yield FsckResult(Severity.OK, f"the server's key {path.name} is here, and its owner's alone")
