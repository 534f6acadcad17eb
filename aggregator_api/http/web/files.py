"""The pages' files: styles, scripts and two vendored libraries, served under names that change with their bytes.

Swagger UI at /docs comes from files of this package: no other server is asked, and their hashes are pinned.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse

from aggregator_api.auth.scopes import anybody, requires
from aggregator_api.core.errors import NotFoundError

FILES = Path(__file__).parent / "static"
MEDIA_TYPES = {
    "app.css": "text/css",
    "charts.js": "text/javascript",
    "htmx.min.js": "text/javascript",
    "icon.svg": "image/svg+xml",
    "live.js": "text/javascript",
    "upload.js": "text/javascript",
    "uPlot.iife.min.js": "text/javascript",
    "uPlot.min.css": "text/css",
}
SWAGGER = Path(__file__).parent / "swagger"
SWAGGER_ASSETS = ("swagger-ui-bundle.js", "swagger-ui.css", "start.js", "favicon-32x32.png")
"""What index.html of /docs loads; each has a route of its own below /docs."""
DOCS_PATHS = ("/docs", *(f"/docs/{name}" for name in SWAGGER_ASSETS))
IMMUTABLE_CACHE = "public, max-age=31536000, immutable"

router = APIRouter(include_in_schema=False)


@cache
def url_of(name: str) -> str:
    """Return the address of a file, which changes with its bytes, so that browsers may keep it for ever."""
    return f"/static/{hashlib.sha256((FILES / name).read_bytes()).hexdigest()[:12]}/{name}"


@router.get("/static/{version}/{name}")
@anybody(below=("/static/",))
async def file(version: str, name: str) -> FileResponse:
    """Send a file; one of another version of the program is not kept by the browser."""
    if name not in MEDIA_TYPES:
        raise NotFoundError(f"there is no file {name[:80]!r}")
    keep = IMMUTABLE_CACHE if url_of(name).split("/")[2] == version else "no-cache"
    return FileResponse(FILES / name, media_type=MEDIA_TYPES[name], headers={"Cache-Control": keep})


@router.get("/favicon.ico")
@requires("operator", "read")
async def icon() -> FileResponse:
    """Send the icon that browsers look for by themselves."""
    return FileResponse(FILES / "icon.svg", media_type="image/svg+xml", headers={"Cache-Control": "max-age=86400"})


def _add_docs(path: str, name: str) -> None:
    @router.get(path)
    @anybody(below=("/docs/",))
    async def show() -> FileResponse:
        return FileResponse(SWAGGER / name, headers={"Cache-Control": "no-cache"})


_add_docs("/docs", "index.html")
for _name in SWAGGER_ASSETS:
    _add_docs(f"/docs/{_name}", _name)
