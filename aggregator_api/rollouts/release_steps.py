"""What an operator must know before promoting, releasing or rolling back a version: gates, and the steps that follow.

The gates ask what the services ask that carry it out (`promotion`, `transitions`): what is shown is what they decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from aggregator_api.rollouts import promotion, transitions
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import FederationRow, ModelVersionRow, RolloutDeviceRow, RolloutRow
from federation.plan import GroupWave, RolloutSettings
from federation.rounds.promotion import Decision
from federation.rounds.rollout import AdoptionAnswer, RolloutPhase, wave_size


class ReleaseGate(NamedTuple):
    """A condition: whether it is met, the explanation, and whether an operator's reason can override it."""

    name: str
    is_met: bool
    message: str
    can_force: bool = False


class ReleaseStep(NamedTuple):
    """A future step: `after_s` from now at the earliest, None if unknown."""

    after_s: float | None
    message: str


class Withdrawal(NamedTuple):
    """The rollout that releases a version to devices, and what they use without it."""

    rollout: int
    devices: int
    before: int | None
    """The version of the last completed rollout before; None: each device goes back to what it used itself."""


def blocked(gates: Sequence[ReleaseGate]) -> bool:
    """Whether a gate is closed that no reason opens."""
    return any(not gate.is_met and not gate.can_force for gate in gates)


def needs_reason(gates: Sequence[ReleaseGate]) -> bool:
    """Whether a gate is closed that an operator's reason opens."""
    return any(not gate.is_met and gate.can_force for gate in gates)


def present_version(session: Session, federation: FederationRow) -> ModelVersionRow | None:
    """Return the version that devices are given: of the last completed rollout, else the one named `stable`."""
    released = transitions.latest(session, federation, RolloutPhase.COMPLETED)
    return released.version if released else promotion.named_version(session, federation, "stable")


# ---- promotion: a name moves


def alias_gates(session: Session, federation: FederationRow, version: ModelVersionRow, alias: str) -> list[ReleaseGate]:
    """Return what must hold before a name moves to a version."""
    present = promotion.named_version(session, federation, alias)
    gates = []
    if present is not None and present.id == version.id:
        return [ReleaseGate("It has another name now", False, f"{alias} names version {version.version} already")]
    if present is not None:
        found = promotion.verdict_of(session, federation, version, present)
        gates.append(_measure(found.decision is Decision.BETTER, found.reason))
    if alias == "latest":
        is_open = repositories.open_round(session, federation) is not None
        words = "a round is open, and its result will be latest; wait until it has ended" if is_open else "none is"
        gates.append(ReleaseGate("No round is open", not is_open, words))
    return gates


# ---- rolling out: devices get it, wave after wave


def rollout_gates(session: Session, federation: FederationRow, version: ModelVersionRow) -> list[ReleaseGate]:
    """Return what must hold before a version is given to devices in waves."""
    used, other = transitions.settings_of(federation).used, transitions.under_way(session, federation)
    devices = transitions.able_devices(session, federation)
    worse = transitions.known_worse(session, federation, version)
    return [
        ReleaseGate(
            "Models are released in waves",
            used,
            "they are" if used else "devices choose their own models; switch waves on below Rollouts",
        ),
        ReleaseGate(
            "No other rollout is under way",
            other is None,
            "none is" if other is None else f"rollout {other.number} is {other.phase}; wait for its end, or halt it",
        ),
        ReleaseGate("There are devices", devices > 0, _devices(devices) if devices else "none may take part yet"),
        _measure(
            worse is None, worse or "it is not measured to be worse; the last wave waits until enough have said so"
        ),
    ]


def rollout_steps(session: Session, federation: FederationRow, settings: RolloutSettings) -> list[ReleaseStep]:
    """Return when which devices get the version, if every wave goes well."""
    devices, steps = transitions.able_devices(session, federation), []
    for wave, what in enumerate(settings.waves):
        if isinstance(what, GroupWave):
            who = f"the devices of {' or '.join(what.tags)}"
        else:
            size = wave_size(what, devices) if devices else 0
            who = (
                f"{100 * what:g} % of the devices, {size:,} of {devices:,}" if what < 1 else f"all {_devices(devices)}"
            )
        steps.append(ReleaseStep(wave * settings.soak_s, f"wave {wave + 1}: {who}"))
    enough, halt = f"{100 * settings.success_threshold:g} %", f"{100 * settings.halt_share:g} %"
    steps.append(
        ReleaseStep(len(settings.waves) * settings.soak_s, "it is completed, and later devices get it at once")
    )
    steps.append(
        ReleaseStep(
            None,
            f"a wave waits until {enough} of it use the version or one that is as good; it is halted, and its devices "
            f"go back, when {halt} of the answers and {_devices(settings.halt_devices)} at the least are failures, or "
            "when it is measured to be worse",
        )
    )
    return steps


def halted_before(session: Session, version: ModelVersionRow) -> str:
    """Say that a rollout of a version was halted, and why; empty where none was."""
    row = RolloutRow
    halted = select(row).where(row.version_id == version.id, row.phase == RolloutPhase.HALTED)
    found = session.scalars(halted.order_by(row.number.desc()).limit(1)).unique().first()
    return "" if found is None else f"Rollout {found.number} of this version was halted: {found.reason}."


# ---- rolling back


def given_versions(session: Session, federation: FederationRow) -> set[int]:
    """Return the versions that rollouts give to devices now: the one under way, and the last completed one."""
    rows = transitions.under_way(session, federation), transitions.latest(session, federation, RolloutPhase.COMPLETED)
    return {row.version.version for row in rows if row is not None}


def withdrawal_of(session: Session, federation: FederationRow, version: ModelVersionRow) -> Withdrawal | None:
    """Return the rollout whose halt takes a version from the devices; None where no rollout gives it to them."""
    row = transitions.under_way(session, federation)
    if row is None or row.version_id != version.id:
        row = transitions.latest(session, federation, RolloutPhase.COMPLETED)
    if row is None or row.version_id != version.id:
        return None
    adopted = select(func.count()).select_from(RolloutDeviceRow).where(RolloutDeviceRow.rollout_id == row.id)
    adopted = adopted.where(RolloutDeviceRow.answer == AdoptionAnswer.ADOPTED)
    return Withdrawal(row.number, session.scalar(adopted) or 0, _before(session, federation, row))


def _before(session: Session, federation: FederationRow, row: RolloutRow) -> int | None:
    others = select(RolloutRow).where(RolloutRow.federation_id == federation.id, RolloutRow.number < row.number)
    others = others.where(RolloutRow.phase == RolloutPhase.COMPLETED).order_by(RolloutRow.number.desc())
    found = session.scalars(others.limit(1)).unique().first()
    return None if found is None else found.version.version


def _measure(is_met: bool, message: str) -> ReleaseGate:
    return ReleaseGate("Devices measured it, and it is not worse", is_met, message, can_force=True)


def _devices(count: int) -> str:
    return f"{count:,} device{'' if count == 1 else 's'}"
