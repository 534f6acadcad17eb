"""Models: every version with what made it, its scores and names, and the files that can be taken away."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import TypeAdapter, ValidationError

from aggregator_api.auth.scopes import requires
from aggregator_api.core.errors import UnprocessableError
from aggregator_api.federations import exports, service
from aggregator_api.federations.changes import moved_by_server
from aggregator_api.http.api import queries, round_history
from aggregator_api.http.api.dependencies import AliasServiceDep, BlobStoreDep, DatabaseDep, FederationName, PageDep
from aggregator_api.http.api.routes.models import AliasName, Version
from aggregator_api.http.api.schemas.resources import AliasTarget
from aggregator_api.http.api.scores import metric_of
from aggregator_api.http.web import views
from aggregator_api.http.web.forms import FormDep
from aggregator_api.http.web.pages import page
from aggregator_api.http.web.routes.releases import refuse_changed
from aggregator_api.rollouts import promotion
from aggregator_api.rollouts.release_steps import given_versions
from aggregator_api.storage.blobs import BlobStore
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.database import Database
from federation.plan import Plan
from gaitway.errors import first_problem

router = APIRouter()

_ALIAS: TypeAdapter[str] = TypeAdapter(AliasName)


@router.get("/federations/{name}/models")
@requires("operator", "read")
def listing(request: Request, database: DatabaseDep, name: FederationName, cursor: PageDep) -> Response:
    """List the versions and names."""
    with database.read() as session:
        row = service.get_federation(session, name)
        page_params = cursor._replace(newest_first=True)
        found = queries.model_versions(session, row, page_params)
        aliases = queries.aliases(session, row)
        bases = round_history.bases(session, row, [version.round_number for version in found.items])
        metric = metric_of(Plan.model_validate(row.plan))[1]
        fixed, note, regression = moved_by_server(row), row.stable_note, row.regression
        given, newest = given_versions(session, row), repositories.current_version(session, row).version
    shown: dict[str, Any] = {"found": found, "aliases": aliases, "bases": bases, "cursor": cursor.cursor}
    shown |= {"metric": metric, "score_text": views.score_text, "can_make_onnx": exports.can_make_onnx()}
    shown |= {"fixed": fixed}
    shown |= {"given": given, "newest": newest}
    return page(request, "models.html", federation=name, stable_note=note, regression=regression, **shown)


@router.get("/federations/{name}/models/{version}/checkpoint")
@requires("operator", "read")
def checkpoint(database: DatabaseDep, blobs: BlobStoreDep, name: FederationName, version: Version) -> Response:
    """Send a version as a checkpoint."""
    return _file(_checkpoint(database, blobs, name, version), f"{name}-{version}.safetensors")


@router.get("/federations/{name}/models/{version}/onnx")
@requires("operator", "read")
def onnx(database: DatabaseDep, blobs: BlobStoreDep, name: FederationName, version: Version) -> Response:
    """Send a version as ONNX, which takes some seconds to make."""
    return _file(exports.onnx(_checkpoint(database, blobs, name, version)), f"{name}-{version}.onnx")


@router.post("/federations/{name}/aliases")
@requires("operator")
def move(names: AliasServiceDep, database: DatabaseDep, name: FederationName, form: FormDep) -> Response:
    """Let a name stand for a version; a new one is made. What was compared must still be what the name stands for."""
    alias = _alias(form.get("alias", "").strip())
    try:
        fields = {"force": bool(form.get("force")), "reason": form.get("reason", "")}
        target = AliasTarget.model_validate({"version": int(form.get("version", "")), **fields})
    except ValidationError as error:
        raise UnprocessableError(first_problem(error, input_shown=True, model=AliasTarget)) from error
    except ValueError as error:
        raise UnprocessableError("version: expected a whole number") from error
    with database.read() as session:
        present = promotion.named_version(session, service.get_federation(session, name), alias)
        refuse_changed(form, alias, present)
    names.move(name, alias, target.version, target.forced)
    return RedirectResponse(f"/federations/{name}/models", 303)


@router.post("/federations/{name}/aliases/{alias}/delete")
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
        score = queries.model_version(session, federation, version).score
        plan, sha256, number = Plan.model_validate(federation.plan), row.broadcast_sha256, row.round_number
    scores = {score.metric: score.value, "trivial": score.trivial} if score else {}
    return exports.checkpoint(plan, name, number, sha256, blobs.read(sha256), scores)


def _file(data: bytes, name: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(data, media_type="application/octet-stream", headers=headers)
