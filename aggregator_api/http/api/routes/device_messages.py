"""MQTT's messages over HTTP, for devices that reach no broker: docs/protocol.md, 'Over HTTP'."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Request, Response
from fastapi.responses import StreamingResponse

from aggregator_api.auth.scopes import requires
from aggregator_api.core.errors import TooLargeError, UnprocessableError
from aggregator_api.http.api.middleware.problems import responses
from aggregator_api.http.dependencies import CallerDep, DeviceMessagesDep
from aggregator_api.transport.device_http.messages import DeviceMessages
from federation.errors import WireError
from federation.plan import Name
from federation.protocol import over_http, topics
from federation.protocol.messages import MESSAGE_BYTES, DeviceStatus, UpdateId, read
from federation.protocol.over_http import BINARY, STREAM

DEVICE = "/v1/federations/{name}/devices/{device}"

router = APIRouter(prefix=DEVICE, tags=["device messages"])
only_that_device = requires(
    "device", of_device=True, below=tuple(f"{DEVICE}/{spoken}" for spoken in (STREAM, "status", "update"))
)

ChunkNumber = Annotated[int, Path(ge=0, le=9_999_999)]
MAX_CHUNK = 1 << 20

_BINARY = {"schema": {"type": "string", "format": "binary"}}
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "each message: its kind as `event`, its signed bytes as `data`",
        "content": {over_http.MEDIA_TYPE: {"schema": {"type": "string"}}},
    }
}
_ACCEPTED_RESPONSES: dict[int | str, dict[str, Any]] = {
    204: {"description": "taken; nothing is to be said about it"},
    **responses(404, 413, 422, 503),
}
_ANSWERED: dict[int | str, dict[str, Any]] = {
    200: {"description": "the signed acknowledgement", "content": {BINARY: _BINARY}},
    **_ACCEPTED_RESPONSES,
}


def _body(media_type: str) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {media_type: _BINARY}}}


@router.get(
    f"/{STREAM}",
    summary="Follow what the server says to a device",
    response_class=StreamingResponse,
    responses={**_STREAM, **responses(404, 422, 429, 503)},
)
@only_that_device
async def follow(
    messages: DeviceMessagesDep,
    caller: CallerDep,
    name: Name,
    device: Name,
    last_event_id: Annotated[str, Header(max_length=64, description="continue after this event")] = "",
) -> StreamingResponse:
    """Send the device's retained messages, then new ones; a device's second stream ends the first."""
    stream = messages.follow(name, device, caller.id, last_event_id)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(stream, headers=headers, media_type=over_http.MEDIA_TYPE)


@router.post(
    "/status",
    summary="Say what a device does",
    status_code=204,
    response_class=Response,
    responses=_ACCEPTED_RESPONSES,
    openapi_extra=_body("application/json"),
)
@only_that_device
async def status(messages: DeviceMessagesDep, request: Request, name: Name, device: Name) -> Response:
    """Take a DeviceStatus, as the topic `status` does; what is none is refused in words."""
    body = await request.body()
    if len(body) <= MESSAGE_BYTES:
        try:
            read(DeviceStatus, body)
        except WireError as error:
            raise UnprocessableError(f"this is not a DeviceStatus: {error}") from error
    return await _hand_over(messages, request, topics.status(name, device), MESSAGE_BYTES)


@router.post(
    "/update/{update_id}/begin",
    summary="Begin an update",
    response_class=Response,
    responses=_ANSWERED,
    openapi_extra=_body(BINARY),
)
@only_that_device
async def begin(
    messages: DeviceMessagesDep, request: Request, name: Name, device: Name, update_id: UpdateId
) -> Response:
    """Take a signed UpdateManifest; the answer says from which chunk on to send, or that none is needed."""
    return await _hand_over(messages, request, topics.update(name, device, update_id, "begin"), MESSAGE_BYTES + 256)


@router.put(
    "/update/{update_id}/chunk/{n}",
    summary="Send a chunk of an update",
    response_class=Response,
    responses=_ANSWERED,
    openapi_extra=_body(BINARY),
)
@only_that_device
async def chunk(
    messages: DeviceMessagesDep, request: Request, name: Name, device: Name, update_id: UpdateId, n: ChunkNumber
) -> Response:
    """Write a chunk, in any order and as often as it comes; answered where the update is refused for it."""
    return await _hand_over(messages, request, topics.update(name, device, update_id, "chunk", n), MAX_CHUNK)


@router.post(
    "/update/{update_id}/end",
    summary="End an update",
    response_class=Response,
    responses=_ANSWERED,
)
@only_that_device
async def end(messages: DeviceMessagesDep, request: Request, name: Name, device: Name, update_id: UpdateId) -> Response:
    """Check the update; `accepted` is answered once it is on disk and in the database. 204: begin again."""
    return await _hand_over(messages, request, topics.update(name, device, update_id, "end"), 0)


async def _hand_over(messages: DeviceMessages, request: Request, topic: str, limit: int) -> Response:
    body = await request.body()
    if len(body) > limit:
        raise TooLargeError(f"the body has {len(body):,} bytes; at most {limit:,} are accepted here")
    answer = await messages.receive(topic, body)
    return Response(status_code=204) if answer is None else Response(answer, media_type=BINARY)
