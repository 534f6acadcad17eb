"""Downloads of broadcasts by their sha256: whole, in parts (RFC 9110, 14), or not at all if the client has them.

Only broadcasts are served: what a device uploaded, and the server's own state, stay here.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import APIRouter, Header, HTTPException, Path, Request, Response
from fastapi.responses import StreamingResponse

from aggregator_api.auth.scopes import requires
from aggregator_api.core.errors import BlobError, NotFoundError, UnavailableError
from aggregator_api.http.api.dependencies import CallerDep, DatabaseDep, DownloadsDep
from aggregator_api.http.api.middleware.problems import responses
from aggregator_api.storage.broadcasts import Downloads
from aggregator_api.storage.db import repositories

router = APIRouter(prefix="/v1/blobs", tags=["blobs"])

_RANGE = re.compile(r"bytes=(\d{0,15})-(\d{0,15})")
BINARY = "application/octet-stream"
_BINARY = {"content": {BINARY: {"schema": {"type": "string", "format": "binary"}}}}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "the blob", **_BINARY},
    206: {"description": "the part asked for", **_BINARY},
    304: {"description": "the client has it"},
    **responses(404, 416, 422),
}


@router.get("/{sha256}", summary="Download a model", response_class=Response, responses=_RESPONSES)
@router.head("/{sha256}", summary="Ask for a model's size", response_class=Response, responses=_RESPONSES)
@requires("operator", "read", "device", filtered=True, below=("/v1/blobs",))
def blob(
    request: Request,
    database: DatabaseDep,
    downloads: DownloadsDep,
    caller: CallerDep,
    sha256: Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")],
    range_: Annotated[str | None, Header(alias="Range")] = None,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """Send a broadcast's bytes; the name is their sha256, so they never change."""
    with database.read() as session:
        if not repositories.is_broadcast(session, sha256, caller.federation):
            raise NotFoundError(f"there is no model {sha256}")
    headers = {
        "ETag": f'"{sha256}"',
        "Cache-Control": "private, max-age=31536000, immutable",
        "Accept-Ranges": "bytes",
    }
    if if_none_match is not None and (sha256 in if_none_match or if_none_match.strip() == "*"):
        return Response(status_code=304, headers=headers)
    try:
        return _answer(request, downloads, sha256, headers, range_)
    except BlobError as error:
        raise UnavailableError(f"the server's copy of {sha256} is damaged or missing; the operator is told") from error


def _answer(
    request: Request, downloads: Downloads, sha256: str, headers: dict[str, str], range_: str | None
) -> Response:
    size = downloads.size(sha256)
    start, stop, status = 0, size, 200
    wanted = _RANGE.fullmatch(range_.strip()) if range_ else None
    if wanted is not None and any(wanted.groups()):  # anything else may be ignored
        start, stop = _part(wanted[1], wanted[2], size)
        status = 206
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    headers["Content-Length"] = str(stop - start)
    if request.method == "HEAD":
        return Response(None, status, headers, media_type=BINARY)
    return StreamingResponse(downloads.pieces(sha256, start, stop), status, headers, media_type=BINARY)


def _part(first: str, last: str, size: int) -> tuple[int, int]:
    start = int(first) if first else max(0, size - int(last))
    stop = min(size, int(last) + 1) if first and last else size
    if start >= stop:
        detail = f"bytes {first}-{last} were asked for, the blob has {size:,}"
        raise HTTPException(416, detail, {"Content-Range": f"bytes */{size}"})
    return start, stop
