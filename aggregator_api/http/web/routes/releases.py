"""Before a version is promoted, rolled out or taken back: its difference to the present one, gates, what will happen.

These pages change nothing. Their forms go where REST's requests of the same name go: a name, a rollout or its halt.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy.orm import Session

from aggregator_api.auth.scopes import requires
from aggregator_api.core.errors import ConflictError
from aggregator_api.federations import service
from aggregator_api.http.api import queries
from aggregator_api.http.api.dependencies import DatabaseDep, FederationName
from aggregator_api.http.api.routes.models import Version
from aggregator_api.http.api.scores import class_metric_of, metric_of
from aggregator_api.http.api.version_differences import difference
from aggregator_api.http.web import views
from aggregator_api.http.web.forms import Form
from aggregator_api.http.web.pages import page
from aggregator_api.rollouts import promotion, release_steps, transitions
from aggregator_api.rollouts.release_steps import ReleaseGate, ReleaseStep
from aggregator_api.rollouts.schedules import SCHEDULES, schedule_of
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import FederationRow, ModelVersionRow
from federation.plan import Plan

router = APIRouter()

OWN = "plan"
"""The schedule that the federation's plan says, where it is none of the table's."""
ScheduleName = Annotated[str, Query(max_length=32)]
MovedName = Literal["stable", "latest"]


class ReleaseForm(NamedTuple):
    """What the button does: where its form goes, with which fields; `seen` is the version that it was compared with."""

    action: str
    button: str
    fields: dict[str, str]


class ReleasePage(NamedTuple):
    """What a page says of an action on a version."""

    title: str
    lead: str
    present: ModelVersionRow | None
    gates: list[ReleaseGate]
    steps: list[ReleaseStep]
    form: ReleaseForm
    warning: str = ""


@router.get("/federations/{name}/models/{version}/promote")
@requires("operator", "read")
def promote(request: Request, database: DatabaseDep, name: FederationName, version: Version) -> Response:
    """Show what promoting a version means: the name `stable` moves to it."""
    with database.read() as session:
        federation = service.get_federation(session, name)
        row = repositories.version_of(session, federation, version)
        return _page(request, session, federation, row, _promotion(session, federation, row))


@router.get("/federations/{name}/models/{version}/roll-out")
@requires("operator", "read")
def roll_out(
    request: Request, database: DatabaseDep, name: FederationName, version: Version, schedule: ScheduleName = ""
) -> Response:
    """Show what rolling a version out means: devices get it, wave after wave."""
    with database.read() as session:
        federation = service.get_federation(session, name)
        row = repositories.version_of(session, federation, version)
        chosen = schedule if schedule in (*SCHEDULES, OWN) else schedule_of(transitions.settings_of(federation)) or OWN
        shown = _rollout(session, federation, row, chosen)
        used = transitions.settings_of(federation).used
        return _page(request, session, federation, row, shown, schedules=_schedules(chosen), used=used)


@router.get("/federations/{name}/models/{version}/roll-back")
@requires("operator", "read")
def roll_back(request: Request, database: DatabaseDep, name: FederationName, version: Version) -> Response:
    """Show what rolling back means: devices leave the version, or rounds go on from an earlier one."""
    with database.read() as session:
        federation = service.get_federation(session, name)
        row = repositories.version_of(session, federation, version)
        shown = _withdrawal(session, federation, row) or _earlier(session, federation, row)
        return _page(request, session, federation, row, shown)


def refuse_changed(form: Form, what: str, present: ModelVersionRow | None) -> None:
    """Refuse a form whose page compared with another version than the present one.

    Raises:
        ConflictError: if that is so, with both.
    """
    seen, now = form.get("seen"), _seen(present)
    if seen is not None and seen != now:
        raise ConflictError(
            f"{what} was version {seen or 'none'} on the page that you pressed the button on, and is "
            f"version {now or 'none'} now; load the page again and compare once more"
        )


def _page(
    request: Request,
    session: Session,
    federation: FederationRow,
    row: ModelVersionRow,
    shown: ReleasePage,
    **more: Any,
) -> Response:
    plan = Plan.model_validate(federation.plan)
    found = difference(session, federation, row, shown.present)
    values: dict[str, Any] = {"shown": shown, "difference": found, "version": row.version}
    values |= {"metric": metric_of(plan)[1], "class_metric": class_metric_of(plan), "score_text": views.score_text}
    values |= {"blocked": release_steps.blocked(shown.gates), "needs_reason": release_steps.needs_reason(shown.gates)}
    values |= {"detail": queries.federation(session, federation), "schedules": [], "used": True, **more}
    return page(request, "release.html", federation=federation.name, **values)


def _promotion(session: Session, federation: FederationRow, row: ModelVersionRow) -> ReleasePage:
    present = promotion.named_version(session, federation, "stable")
    gates = release_steps.alias_gates(session, federation, row, "stable")
    was = f", and previous names version {present.version}" if present else ""
    steps = [
        ReleaseStep(0.0, f"stable names version {row.version}{was}; no device changes its model by that"),
        ReleaseStep(None, "the server moves stable on by itself, to versions that are made later and measured as good"),
    ]
    lead = "The name stable moves to it: the version that you call good, and that new federations start from."
    return ReleasePage("Promote", lead, present, gates, steps, _alias_form(row, present, "stable", "Promote it"))


def _rollout(session: Session, federation: FederationRow, row: ModelVersionRow, chosen: str) -> ReleasePage:
    settings, fields = transitions.settings_of(federation), {"version": str(row.version), "schedule": chosen}
    if (schedule := SCHEDULES.get(chosen)) is not None:
        settings = settings.model_copy(update={"waves": schedule.waves, "soak_s": schedule.soak_s})
    present = release_steps.present_version(session, federation)
    gates = release_steps.rollout_gates(session, federation, row)
    form = ReleaseForm("rollouts", "Roll it out", {**fields, "seen": _seen(present)})
    lead = "Devices get it wave after wave, and each one judges it on its own holdout before it uses it."
    steps = release_steps.rollout_steps(session, federation, settings)
    return ReleasePage("Roll out", lead, present, gates, steps, form, release_steps.halted_before(session, row))


def _withdrawal(session: Session, federation: FederationRow, row: ModelVersionRow) -> ReleasePage | None:
    """Return the page of a version that a rollout gives to devices; None of any other."""
    found = release_steps.withdrawal_of(session, federation, row)
    if found is None:
        return None
    present = None if found.before is None else repositories.version_of(session, federation, found.before)
    back = "the model that it used itself before" if present is None else f"version {present.version}"
    using = f"{found.devices:,} device{'' if found.devices == 1 else 's'}"
    steps = [
        ReleaseStep(0.0, f"rollout {found.rollout} is halted, and every device that hears of it goes back to {back}"),
        ReleaseStep(None, f"{using} use version {row.version} now; who is offline goes back when it is heard again"),
        ReleaseStep(None, "nothing is released by itself until you roll a version out"),
    ]
    gates = [ReleaseGate("A rollout gives it to devices", True, f"rollout {found.rollout} does")]
    form = ReleaseForm(f"rollouts/{found.rollout}/halt", "Roll it back", {})
    lead = f"Devices leave version {row.version} for {back}. Rounds and names are not touched."
    return ReleasePage("Roll back", lead, present, gates, steps, form)


def _earlier(session: Session, federation: FederationRow, row: ModelVersionRow) -> ReleasePage:
    """Return the page of a version that rounds are to go on from."""
    present = repositories.current_version(session, federation)
    gates = release_steps.alias_gates(session, federation, row, "latest")
    steps = [
        ReleaseStep(0.0, f"latest names version {row.version}; versions that were made since stay where they are"),
        ReleaseStep(None, f"the next round starts from version {row.version}, and its result is latest again"),
    ]
    lead = f"The next round starts from version {row.version} instead of version {present.version}."
    return ReleasePage(
        "Roll back to", lead, present, gates, steps, _alias_form(row, present, "latest", "Roll back to it")
    )


def _alias_form(row: ModelVersionRow, present: ModelVersionRow | None, alias: MovedName, button: str) -> ReleaseForm:
    return ReleaseForm("aliases", button, {"alias": alias, "version": str(row.version), "seen": _seen(present)})


def _seen(present: ModelVersionRow | None) -> str:
    return "" if present is None else str(present.version)


def _schedules(chosen: str) -> list[tuple[str, str, str, bool]]:
    """Return the schedules to choose from: name, label, purpose, whether it is chosen."""
    own = [(OWN, "as the federation's settings say", "", chosen == OWN)]
    return own + [(name, schedule.label, schedule.purpose, chosen == name) for name, schedule in SCHEDULES.items()]
