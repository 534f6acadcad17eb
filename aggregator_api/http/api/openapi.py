"""The OpenAPI document: the routes, and what authentication, the body limit and Idempotency-Key add to all of them."""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from aggregator_api.auth.scopes import Access, declared_routes
from aggregator_api.http.api.middleware.problems import responses
from aggregator_api.http.queries.resources import Problem

_METHODS_WITH_BODIES = ("post", "put", "patch")
_KEY = {
    "type": "http",
    "scheme": "bearer",
    "bearerFormat": "gw_<id>_<secret>",
    "description": "An API key; the first one lies in operator.key in the server's data folder.",
}
_IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "The request is worked on once; sent again within a day, it gets the stored answer.",
    "schema": {"type": "string", "pattern": r"^[\x21-\x7e]{1,128}$"},
}


def describe(app: FastAPI) -> dict[str, Any]:
    """Return the application's document, made once."""
    if app.openapi_schema is None:
        described = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        described["components"]["schemas"]["Problem"] = Problem.model_json_schema()
        described["components"]["securitySchemes"] = {"key": _KEY}
        for path, operations in described["paths"].items():
            for method, operation in operations.items():
                _complete(method, operation, declared_routes(app).access(method.upper(), path))
        app.openapi_schema = described
    return app.openapi_schema


def text(app: FastAPI) -> str:
    """Return the document as it is checked in."""
    return json.dumps(describe(app), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _complete(method: str, operation: dict[str, Any], access: Access | None) -> None:
    statuses = [422, 429]
    is_open = access is not None and not access.scopes
    if not is_open:
        operation["security"] = [{"key": []}]
        operation["x-scopes"] = list(access.scopes if access else ())
        statuses += [401, 403]
    if method == "post" and not is_open and not (access and access.of_device):
        operation.setdefault("parameters", []).append(_IDEMPOTENCY_KEY)
        statuses.append(409)
    if method in _METHODS_WITH_BODIES:
        statuses += [400, 413]  # 400: the body is not even text
    for status, described in responses(*statuses).items():
        operation["responses"].setdefault(str(status), described)
