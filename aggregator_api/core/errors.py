"""The errors of this package.

AggregatorError
├── ConfigError             the settings, the port or the broker can't be used ├── BlobError               a blob is
missing or doesn't match its name ├── BrokerError             the broker's accounts cannot be managed ├── LedgerError
the ledger of ended accesses is missing, damaged or another server's ├── WorkFailedError         a round's aggregate or
broadcasts can't be made │   └── WorkerDiedError     because the worker process dies making them ├── UpdateRefusedError
an update will not be used └── RequestError            answered over HTTP as a problem ├── UnauthorizedError   401 ├──
ForbiddenError      403 ├── NotFoundError       404 ├── ConflictError       409 ├── TooLargeError       413 ├──
UnprocessableError  422 ├── TooManyError        429 ├── ServerFailedError   500 ├── UnavailableError    503 │   ├──
LedgerWriteError │   └── OverloadedError └── StorageFullError    507
"""

from __future__ import annotations

import math
from typing import ClassVar

from gaitway.errors import GaitwayError


class AggregatorError(GaitwayError):
    """Base of every error that this package raises on purpose."""


class ConfigError(AggregatorError):
    """The program can't start with these settings; the message says what to change."""


class BlobError(AggregatorError):
    """A blob is missing, or its bytes don't have the sha256 in its name."""


class BrokerError(AggregatorError):
    """The broker's accounts can't be managed, because it doesn't answer or refuses."""


class LedgerError(AggregatorError):
    """The ledger of ended access is missing, damaged, or another database's."""


class WorkFailedError(AggregatorError):
    """A round's aggregate or broadcasts cannot be made."""


class WorkerDiedError(WorkFailedError):
    """The worker process died on every attempt at a job."""


class ServerStoppingError(AggregatorError):
    """A job was abandoned because the server is stopping; the next start repeats it."""


class UpdateRefusedError(AggregatorError):
    """An update will not be used.

    `quarantine`: the update itself is bad, and the reason is stored; otherwise it only arrived at the wrong time.
    `is_fault`: the device is at fault, and is suspended if this continues; by default for bad updates.
    """

    def __init__(self, reason: str, *, quarantine: bool = False, is_fault: bool | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.quarantine = quarantine
        self.is_fault = quarantine if is_fault is None else is_fault


class RequestError(AggregatorError):
    """A request that is answered with an RFC 9457 problem."""

    status: ClassVar[int] = 400
    title: ClassVar[str] = "Bad request"

    @property
    def headers(self) -> dict[str, str]:
        """Headers that the answer needs besides its body."""
        return {}


class UnauthorizedError(RequestError):
    """The request does not prove who sent it.

    `invalid`: it has a wrong key or token; otherwise it has none.
    """

    status = 401
    title = "Unauthorized"

    def __init__(self, detail: str, *, invalid: bool = True) -> None:
        super().__init__(detail)
        self._invalid = invalid

    @property
    def headers(self) -> dict[str, str]:
        """Name the scheme (RFC 6750, 3)."""
        error = ', error="invalid_token"' if self._invalid else ""
        return {"WWW-Authenticate": f'Bearer realm="gaitway"{error}'}


class ForbiddenError(RequestError):
    """The caller is known but isn't allowed to do this; `scope` is what is needed."""

    status = 403
    title = "Forbidden"

    def __init__(self, detail: str, *, scope: str = "") -> None:
        super().__init__(detail)
        self._scope = scope

    @property
    def headers(self) -> dict[str, str]:
        """Name the scope that is missing (RFC 6750, 3)."""
        scope = f', scope="{self._scope}"' if self._scope else ""
        return {"WWW-Authenticate": f'Bearer realm="gaitway", error="insufficient_scope"{scope}'}


class NotFoundError(RequestError):
    """The path's resource doesn't exist."""

    status = 404
    title = "Not found"


class ConflictError(RequestError):
    """The request conflicts with the current state."""

    status = 409
    title = "Conflict"


class TooLargeError(RequestError):
    """The body is larger than this server accepts."""

    status = 413
    title = "Content too large"


class UnprocessableError(RequestError):
    """The request is well formed, but its content can't work."""

    status = 422
    title = "Unprocessable content"


class TooManyError(RequestError):
    """The caller exceeded its request limit; `wait_s` is when the next request is accepted."""

    status = 429
    title = "Too many requests"

    def __init__(self, detail: str, *, wait_s: float) -> None:
        super().__init__(detail)
        self._wait_s = wait_s

    @property
    def headers(self) -> dict[str, str]:
        """Return when to retry, in whole seconds (RFC 9110, 10.2.3)."""
        return {"Retry-After": str(max(1, math.ceil(self._wait_s)))}


class ServerFailedError(RequestError):
    """An unexpected error; the log has the details."""

    status = 500
    title = "Internal server error"


class UnavailableError(RequestError):
    """A dependency of this server doesn't answer; the same request may work later."""

    status = 503
    title = "Service unavailable"
    retry_after_s: ClassVar[int] = 5

    @property
    def headers(self) -> dict[str, str]:
        """Return when to retry, in seconds (RFC 9110, 10.2.3)."""
        return {"Retry-After": str(self.retry_after_s)}


class LedgerWriteError(UnavailableError):
    """The end of an access can't be written to the ledger, so it hasn't taken effect."""


class OverloadedError(UnavailableError):
    """More requests are waiting than this server can answer in time."""

    retry_after_s = 1


class StorageFullError(RequestError):
    """There is no space for what the request would store (RFC 4918, 11.5)."""

    status = 507
    title = "Insufficient storage"
