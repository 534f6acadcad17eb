"""Devices: a paged list, and each one's page: what it does, why it does not train, and what it has done."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy.orm import Session

from aggregator_api.auth.scopes import requires
from aggregator_api.devices import contributions
from aggregator_api.devices.service import DeviceTags, find
from aggregator_api.http.dependencies import DatabaseDep, DeviceServiceDep, FederationName, PageDep, PlaceDep
from aggregator_api.http.queries import listings
from aggregator_api.http.queries.devices import activity, history
from aggregator_api.http.queries.listings import DeviceFilter, EventFilter, PageParams, latest_events
from aggregator_api.http.queries.resources import Device, EnrolmentState
from aggregator_api.http.queries.rounds import class_metric_of, metric_of
from aggregator_api.http.web import views
from aggregator_api.http.web.forms import FormDep, pressed, validated, words_of
from aggregator_api.http.web.pages import page, part
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import DeviceRow, FederationRow
from federation.protocol.messages import class_score_names

router = APIRouter()

HISTORY_ROUNDS = 30
Text = Annotated[str, Query(max_length=64)]
FindName = Annotated[str, Query(alias="name", max_length=64)]


def _wanted(
    find_name: FindName = "", enrolment: EnrolmentState | None = None, tag: Text = "", suspended: bool = False
) -> DeviceFilter:
    return DeviceFilter(enrolment, tag, suspended, find_name)


WantedDep = Annotated[DeviceFilter, Depends(_wanted)]


@router.get("/federations/{name}/devices")
@requires("operator", "read")
def listing(request: Request, place: PlaceDep, cursor: PageDep, wanted: WantedDep) -> Response:
    """List the devices, of one enrolment state or group; a whole name leads to its device, a beginning lists them."""
    with place.read() as (session, row):
        if wanted.find_name and repositories.find_device(session, row, wanted.find_name) is not None:
            return RedirectResponse(f"/federations/{place.name}/devices/{wanted.find_name}", 303)
        shown = _listed(session, row, cursor, wanted)
    return page(request, "devices.html", federation=place.name, **shown)


@router.get("/live/federations/{name}/devices")
@requires("operator", "read")
def live_listing(request: Request, place: PlaceDep, cursor: PageDep, wanted: WantedDep) -> Response:
    """List them anew."""
    with place.read() as (session, row):
        shown = _listed(session, row, cursor, wanted)
    return part(request, "parts/devices.html", federation=place.name, **shown)


@router.get("/federations/{name}/devices/{device}")
@requires("operator", "read")
def detail(request: Request, database: DatabaseDep, name: FederationName, device: str) -> Response:
    """Show a device."""
    with database.read() as session:
        found = _device(session, *find(session, name, device))
    return page(request, "device.html", federation=name, **found)


@router.get("/live/federations/{name}/devices/{device}")
@requires("operator", "read")
def live(request: Request, database: DatabaseDep, name: FederationName, device: str) -> Response:
    """Show what changes of it anew."""
    with database.read() as session:
        found = _device(session, *find(session, name, device))
    return part(request, "parts/device.html", federation=name, **found)


@router.post("/federations/{name}/devices/{device}/approve")
@router.post("/federations/{name}/devices/{device}/revoke")
@router.post("/federations/{name}/devices/{device}/reinstate")
@router.post("/federations/{name}/devices/{device}/withdraw")
@requires("operator")
def act(request: Request, devices: DeviceServiceDep, name: str, device: str, form: FormDep) -> Response:
    """Do what the path ends in: let a device in, put it out, lift its suspension, or take its sums out."""
    getattr(devices, pressed(request))(name, device)
    return _back(name, device, form)


@router.post("/federations/{name}/devices/{device}/tags")
@requires("operator")
def set_tags(devices: DeviceServiceDep, name: str, device: str, form: FormDep) -> Response:
    """Put a device into these groups and no others."""
    devices.set_tags(name, device, validated(DeviceTags, {"tags": words_of(form.get("tags", ""))}).tags)
    return _back(name, device, form)


def _back(name: str, device: str, form: dict[str, str]) -> Response:
    place = "enrolment" if form.get("back") == "enrolment" else f"devices/{device}"
    return RedirectResponse(f"/federations/{name}/{place}", 303)


def _listed(session: Session, row: FederationRow, cursor: PageParams, wanted: DeviceFilter) -> dict[str, Any]:
    found = listings.devices(session, row, wanted._replace(tag=wanted.tag or None), cursor)
    return {"found": found, "cursor": cursor.cursor, **wanted._asdict()}


def _device(session: Session, federation: FederationRow, row: DeviceRow) -> dict[str, Any]:
    plan = federation.parsed_plan
    last = repositories.last_number(session, federation)
    begun = PageParams(max(0, last - HISTORY_ROUNDS + 1), HISTORY_ROUNDS + 1)
    name, metric = metric_of(plan)
    past = history(session, row, begun).items[::-1]
    named = zip(plan.labels, class_score_names(len(plan.labels)), strict=False)
    return {
        "device": Device.model_validate(row),
        "activity": activity(session, federation, row),
        "has_sums": contributions.has_sums(session, row),
        "history": past,
        "events": latest_events(session, federation, 12, EventFilter(device=row.name)),
        "metric_name": name,
        "metric": metric,
        "score_text": views.score_text,
        "classes": [(label, key) for label, key in named if any(key in entry.metrics for entry in past)],
        "class_metric": class_metric_of(plan),
    }
