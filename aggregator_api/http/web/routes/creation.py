"""The form that creates a federation: filled in by presets, checked while it is typed, and by the same code as REST."""

from __future__ import annotations

import tomllib
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, RedirectResponse
from pydantic import ValidationError
from sqlalchemy import select

from aggregator_api.auth.scopes import requires
from aggregator_api.core.errors import RequestError, UnprocessableError
from aggregator_api.federations import service
from aggregator_api.federations.initial_state import feature_dim_of, network_names
from aggregator_api.federations.service import NewFederation
from aggregator_api.http.dependencies import CheckpointServiceDep, DatabaseDep, FederationServiceDep
from aggregator_api.http.web.forms import (
    EMPTY,
    FIRST,
    NORMALIZATIONS,
    PRESETS,
    RELEASES,
    Form,
    FormDep,
    checkpoint_fields,
    derived_fields,
    filled,
    whole_number,
    words_of,
)
from aggregator_api.http.web.pages import byte_text, page, part
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.models import FederationRow
from federation.method import SumMethod
from federation.methods import METHODS
from federation.plan import ModelSpec
from gaitway.errors import first_problem

router = APIRouter()

MAX_FURTHER = 20_000
StartName = Annotated[str, Query(max_length=64)]
StartCheckpoint = Annotated[str, Query(pattern=r"^([0-9a-f]{64})?$")]
StartVersion = Annotated[int | None, Query(ge=0, le=2**31 - 1)]
OFFERED = 200
"""Federations that are offered as a start, the newest; any other can be typed."""
_NUMBERS = {
    "rounds": ("rounds", int),
    "clients_per_round": ("rounds", int),
    "minimum_clients": ("rounds", int),
    "deadline_s": ("rounds", float),
    "epochs": ("training", int),
    "batch_size": ("training", int),
    "lr": ("training", float),
}
"""Fields that are numbers: the part of the plan that they are in, and how they are read."""


class StartChoice(NamedTuple):
    """What a new federation starts from: a federation's version, a checkpoint, or nothing."""

    federation: str
    version: int | None
    checkpoint: str


async def origin(start: StartName = "", version: StartVersion = None, checkpoint: StartCheckpoint = "") -> StartChoice:
    """Read it from the page's address."""
    return StartChoice(start, version, checkpoint)


@router.get("/new-federation")
@requires("operator")
def show(
    request: Request,
    database: DatabaseDep,
    checkpoints: CheckpointServiceDep,
    start: Annotated[StartChoice, Depends(origin)],
    preset: str = FIRST,
) -> Response:
    """Show the form: filled in by a preset, or with all that a model needs, to continue from it."""
    if start.checkpoint:
        return _form(request, database, checkpoint_fields(checkpoints.get(start.checkpoint)), preset="")
    if not start.federation:
        return _form(request, database, filled(preset), preset=preset)
    with database.read() as session:
        row = service.get_federation(session, start.federation)
        found = (
            repositories.current_version(session, row)
            if start.version is None
            else repositories.version_of(session, row, start.version)
        )
        fields = derived_fields(row.parsed_plan, row.name, found.version)
    return _form(request, database, fields, preset="")


@router.post("/checkpoints", status_code=201)
@requires("operator")
async def upload(checkpoints: CheckpointServiceDep, request: Request) -> Response:
    """Take a checkpoint's bytes, and tell the page's script where the form that continues from it is."""
    body = await request.body()
    found = await run_in_threadpool(checkpoints.put, body)
    return JSONResponse({"sha256": found.sha256}, 201)


@router.post("/new-federation/check")
@requires("operator")
def check(request: Request, federations: FederationServiceDep, form: FormDep) -> Response:
    """Say what would come of the form as it is."""
    try:
        size = federations.check(_read(form))
    except RequestError as error:
        return part(request, "parts/check.html", problem=str(error), words="")
    words = f"This can be created: each device is sent a model of {byte_text(size)} at the most for each round."
    return part(request, "parts/check.html", problem="", words=words)


@router.post("/new-federation")
@requires("operator")
def create(request: Request, database: DatabaseDep, federations: FederationServiceDep, form: FormDep) -> Response:
    """Create the federation, or say what is wrong with the form."""
    try:
        new = _read(form)
        federations.create(new)
    except RequestError as error:
        fields = {name: form.get(name, "") for name in EMPTY}
        return _form(request, database, fields, preset="", problem=str(error), status=error.status)
    return RedirectResponse(f"/federations/{new.name}", 303)


def _form(
    request: Request, database: Database, fields: Form, *, preset: str, problem: str = "", status: int = 200
) -> Response:
    with database.read() as session:
        newest = select(FederationRow.name).order_by(FederationRow.id.desc()).limit(OFFERED)
        others = session.scalars(newest).all()
    methods = [name for name, method in METHODS.items() if not method.traits.pools_data]
    others = list(dict.fromkeys([*filter(None, [fields["start_federation"]]), *others]))
    continuous = [name for name in methods if issubclass(METHODS[name], SumMethod)]
    choices = {"methods": methods, "continuous": continuous, "releases": RELEASES, "normalizations": NORMALIZATIONS}
    shown = {"others": others, **choices, "fields": fields, "preset": preset, "presets": PRESETS, "problem": problem}
    return page(request, "new_federation.html", status=status, models=network_names(), **shown)


def _read(form: Form) -> NewFederation:
    """Make a federation of the form's fields.

    Raises:
        UnprocessableError: naming the field that does not fit.
    """
    plan = _merge_settings(_plan(form), _further(form.get("further", "")))
    spec, training, labels = plan["model"], plan["training"], plan["labels"]
    try:
        if isinstance(spec, dict) and isinstance(training, dict) and "feature_dim" not in training:
            classes = max(2, len(labels)) if isinstance(labels, list) else 2
            training["feature_dim"] = feature_dim_of(ModelSpec.model_validate(spec), classes)
        return NewFederation.model_validate(
            {"name": form.get("name", "").strip(), "plan": plan, "start_from": _start(form)}
        )
    except ValidationError as error:
        raise UnprocessableError(first_problem(error, input_shown=True, model=NewFederation)) from error


def _start(form: Form) -> dict[str, Any] | None:
    """Return the version whose weights the federation starts from; None: they are drawn."""
    name, version, checkpoint = (
        form.get(f"start_{field}", "").strip() for field in ("federation", "version", "checkpoint")
    )
    if checkpoint:
        if name or version:
            raise UnprocessableError(
                "start_checkpoint: weights come from a federation or a checkpoint; leave one empty"
            )
        return {"checkpoint": checkpoint}
    if not name:
        if version:
            raise UnprocessableError("start_version: of which federation? Name it, or leave both empty")
        return None
    return {"federation": name, "version": whole_number(form, "start_version")}


def _plan(form: Form) -> dict[str, Any]:
    labels = words_of(form.get("labels", ""))
    plan: dict[str, Any] = {
        "labels": labels,
        "model": {"name": form.get("model", "")},
        "method": {"name": form.get("method", "")},
        "training": {"classes": max(2, len(labels))},
        "rounds": {},
        "data": {},
        "rollout": {},
    }
    if normalization := form.get("normalization", ""):
        plan["data"]["normalization"] = normalization
    if release := form.get("release", ""):
        if release not in RELEASES:
            raise UnprocessableError(f"release: expected one of {', '.join(RELEASES)}, got {release[:40]!r}")
        plan["rollout"] = RELEASES[release][1]
    if (mode := form.get("secure", "").strip() or "off") != "off":
        plan["secure"] = {"mode": mode}
    for name, (where, kind) in _NUMBERS.items():
        text = form.get(name, "").strip()
        if not text:
            continue
        try:
            plan[where][name] = kind(text)
        except ValueError as error:
            wanted = "a whole number" if kind is int else "a number"
            raise UnprocessableError(f"{name}: expected {wanted}, got {text[:40]!r}") from error
    return plan


def _further(text: str) -> dict[str, Any]:
    if len(text) > MAX_FURTHER:
        raise UnprocessableError(f"further settings: {len(text):,} characters, at most {MAX_FURTHER:,} are read")
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UnprocessableError(f"further settings are not TOML: {error}") from error


def _merge_settings(plan: dict[str, Any], further: dict[str, Any]) -> dict[str, Any]:
    """Lay further settings over the form's; a table replaces only what it names."""
    both = dict(plan)
    for name, value in further.items():
        before = both.get(name)
        both[name] = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value
    return both
