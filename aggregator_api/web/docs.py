"""Swagger UI at /docs, from files of this package: no other server is asked, and their hashes are pinned."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse

from aggregator_api.auth.scopes import anybody

FILES = Path(__file__).parent / "swagger"
ASSETS = ("swagger-ui-bundle.js", "swagger-ui.css", "start.js", "favicon-32x32.png")
"""What index.html loads; each has a route of its own below /docs."""
PATHS = ("/docs", *(f"/docs/{name}" for name in ASSETS))

router = APIRouter(include_in_schema=False)


def _add(path: str, name: str) -> None:
    @router.get(path)
    @anybody(below=("/docs/",))
    async def show() -> FileResponse:
        return FileResponse(FILES / name, headers={"Cache-Control": "no-cache"})


_add("/docs", "index.html")
for _name in ASSETS:
    _add(f"/docs/{_name}", _name)
