"""The errors of this package.

AggregatorError
├── ConfigError             the settings, the port or the broker cannot be used
├── BlobError               a blob is missing or is not what its name says
├── UpdateRefusedError      an update will not be used
└── RequestError            answered over HTTP as a problem
    ├── NotFoundError       404
    ├── ConflictError       409
    └── UnprocessableError  422
"""

from __future__ import annotations

from typing import ClassVar


class AggregatorError(Exception):
    """Base of every error that this package raises on purpose."""


class ConfigError(AggregatorError):
    """The program cannot start as it was told to; the message says what to change."""


class BlobError(AggregatorError):
    """A blob is missing, or its bytes do not have the sha256 that is its name."""


class UpdateRefusedError(AggregatorError):
    """An update will not be used.

    `quarantine`: the update itself is bad, and the reason is kept; else it only came at the wrong time.
    """

    def __init__(self, reason: str, *, quarantine: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.quarantine = quarantine


class RequestError(AggregatorError):
    """A request that is answered with an RFC 9457 problem."""

    status: ClassVar[int] = 400
    title: ClassVar[str] = "Bad request"


class NotFoundError(RequestError):
    """What the path names does not exist."""

    status = 404
    title = "Not found"


class ConflictError(RequestError):
    """What is asked for does not fit the present state."""

    status = 409
    title = "Conflict"


class UnprocessableError(RequestError):
    """The request is well formed, but what it describes cannot work."""

    status = 422
    title = "Unprocessable content"
