"""Model versions with their names and files, and the pages that move a name, roll a version out or take it back.

Before a version is promoted, rolled out or taken back: its difference to the present one, gates, what will happen.
These pages change nothing. Their forms go where REST's requests of the same name go: a name, a rollout or its halt.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import TypeAdapter, ValidationError
from sqlalchemy.orm import Session

from aggregator_api.auth.scopes import requires
from aggregator_api.core.errors import ConflictError, UnprocessableError
from aggregator_api.federations import exports, service
from aggregator_api.federations.changes import AliasTarget, moved_by_server
from aggregator_api.http.dependencies import (
    AliasName,
    AliasServiceDep,
    BlobStoreDep,
    DatabaseDep,
    FederationName,
    PageDep,
    PlaceDep,
    VersionNumber,
)
from aggregator_api.http.queries import listings, rounds
from aggregator_api.http.queries.comparisons import difference
from aggregator_api.http.queries.rounds import class_metric_of, metric_of
from aggregator_api.http.web import views
from aggregator_api.http.web.forms import Form, FormDep, validated, whole_number
from aggregator_api.http.web.pages import page
from aggregator_api.rollouts import promotion, release_steps, transitions
from aggregator_api.rollouts.release_steps import ReleaseGate, ReleaseStep, given_versions
from aggregator_api.rollouts.service import SCHEDULES, schedule_of
from aggregator_api.storage.blobs import BlobStore
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.models import FederationRow, ModelVersionRow

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
def promote(request: Request, place: PlaceDep, version: VersionNumber) -> Response:
    """Show what promoting a version means: the name `stable` moves to it."""
    with place.read() as (session, federation):
        row = repositories.version_of(session, federation, version)
        return _page(request, session, federation, row, _promotion(session, federation, row))


@router.get("/federations/{name}/models/{version}/roll-out")
@requires("operator", "read")
def roll_out(request: Request, place: PlaceDep, version: VersionNumber, schedule: ScheduleName = "") -> Response:
    """Show what rolling a version out means: devices get it, wave after wave."""
    with place.read() as (session, federation):
        row = repositories.version_of(session, federation, version)
        chosen = schedule if schedule in (*SCHEDULES, OWN) else schedule_of(transitions.settings_of(federation)) or OWN
        shown = _rollout(session, federation, row, chosen)
        used = transitions.settings_of(federation).used
        return _page(request, session, federation, row, shown, schedules=_schedules(chosen), used=used)


@router.get("/federations/{name}/models/{version}/roll-back")
@requires("operator", "read")
def roll_back(request: Request, place: PlaceDep, version: VersionNumber) -> Response:
    """Show what rolling back means: devices leave the version, or rounds go on from an earlier one."""
    with place.read() as (session, federation):
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
    plan = federation.parsed_plan
    found = difference(session, federation, row, shown.present)
    values: dict[str, Any] = {"shown": shown, "difference": found, "version": row.version}
    values |= {"metric": metric_of(plan)[1], "class_metric": class_metric_of(plan), "score_text": views.score_text}
    values |= {"blocked": release_steps.blocked(shown.gates), "needs_reason": release_steps.needs_reason(shown.gates)}
    values |= {"detail": listings.federation(session, federation), "schedules": [], "used": True, **more}
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


models_router = APIRouter()

_ALIAS: TypeAdapter[str] = TypeAdapter(AliasName)


@models_router.get("/federations/{name}/models")
@requires("operator", "read")
def listing(request: Request, place: PlaceDep, cursor: PageDep) -> Response:
    """List the versions and names."""
    with place.read() as (session, row):
        page_params = cursor._replace(newest_first=True)
        found = listings.model_versions(session, row, page_params)
        aliases = listings.aliases(session, row)
        bases = rounds.bases(session, row, [version.round_number for version in found.items])
        metric = metric_of(row.parsed_plan)[1]
        fixed, note, regression = moved_by_server(row), row.stable_note, row.regression
        given, newest = given_versions(session, row), repositories.current_version(session, row).version
    shown: dict[str, Any] = {"found": found, "aliases": aliases, "bases": bases, "cursor": cursor.cursor}
    shown |= {"metric": metric, "score_text": views.score_text, "can_make_onnx": exports.can_make_onnx()}
    shown |= {"fixed": fixed}
    shown |= {"given": given, "newest": newest}
    return page(request, "models.html", federation=place.name, stable_note=note, regression=regression, **shown)


@models_router.get("/federations/{name}/models/{version}/checkpoint")
@requires("operator", "read")
def checkpoint(database: DatabaseDep, blobs: BlobStoreDep, name: FederationName, version: VersionNumber) -> Response:
    """Send a version as a checkpoint."""
    return _file(_checkpoint(database, blobs, name, version), f"{name}-{version}.safetensors")


@models_router.get("/federations/{name}/models/{version}/onnx")
@requires("operator", "read")
def onnx(database: DatabaseDep, blobs: BlobStoreDep, name: FederationName, version: VersionNumber) -> Response:
    """Send a version as ONNX, which takes some seconds to make."""
    return _file(exports.onnx(_checkpoint(database, blobs, name, version)), f"{name}-{version}.onnx")


@models_router.post("/federations/{name}/aliases")
@requires("operator")
def move(names: AliasServiceDep, place: PlaceDep, form: FormDep) -> Response:
    """Let a name stand for a version; a new one is made. What was compared must still be what the name stands for."""
    alias = _alias(form.get("alias", "").strip())
    fields = {"force": bool(form.get("force")), "reason": form.get("reason", "")}
    target = validated(AliasTarget, {"version": whole_number(form, "version"), **fields})
    with place.read() as (session, row):
        present = promotion.named_version(session, row, alias)
        refuse_changed(form, alias, present)
    names.move(place.name, alias, target.version, target.forced)
    return RedirectResponse(f"/federations/{place.name}/models", 303)


@models_router.post("/federations/{name}/aliases/{alias}/delete")
@requires("operator")
def remove(names: AliasServiceDep, name: str, alias: str, form: FormDep) -> Response:
    """Forget a name; its version stays."""
    names.remove(name, _alias(alias))
    return RedirectResponse(f"/federations/{name}/models", 303)


def _alias(text: str) -> str:
    try:
        return _ALIAS.validate_python(text)
    except ValidationError as error:
        raise UnprocessableError(
            "alias: expected a small letter, then at most 15 small letters, digits and “-”"
        ) from error


def _checkpoint(database: Database, blobs: BlobStore, name: str, version: int) -> bytes:
    with database.read() as session:
        federation = service.get_federation(session, name)
        row = repositories.version_of(session, federation, version)
        score = listings.model_version(session, federation, version).score
        plan, sha256, number = federation.parsed_plan, row.broadcast_sha256, row.round_number
    scores = {score.metric: score.value, "trivial": score.trivial} if score else {}
    return exports.checkpoint(plan, name, number, blobs.read(sha256), scores)


def _file(data: bytes, name: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(data, media_type="application/octet-stream", headers=headers)
