"""The pages' files: styles, scripts and two vendored libraries, served under names that change with their bytes."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse

from aggregator_api.auth.scopes import anybody, requires
from aggregator_api.errors import NotFoundError

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
