"""The caller of a request, and the client's address.

A request's key or session is looked up in the database, and its `Caller` is cached for a second. A key in use is looked
up again in the background before that second ends, so only the first request waits for a busy database.

The client's address is the peer's, or the one that a trusted proxy reports. A proxy adds the address that it sees at
the right end of `X-Forwarded-For` (RFC 7239, 5.2 and 7.4). Everything to the left may be forged, so the list is read
from the right, past the trusted proxies, up to the first other address.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from threading import Lock

from anyio import CapacityLimiter, to_thread
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from aggregator_api.auth import api_keys
from aggregator_api.auth.api_keys import Caller
from aggregator_api.storage.db.database import Database

LookUp = Callable[[Session, str, float], Caller | None]
"""Maps a secret and the time to its caller."""

log = logging.getLogger(__name__)

REFRESH_AFTER_S = 0.5
"""Age after which a cached key is looked up again; it stays valid until that is done or it expires."""
CACHE_TTL_S = 1.0
"""Maximum time for which this process accepts a key that another process revoked."""
MAX_CACHED_KEYS = 10_000
"""Keys in memory; the least recently looked-up one is dropped."""
LOOKUPS_AT_ONCE = 4
"""Threads for look-ups; wrong keys, however many, can't occupy the other threads."""


class CallerCache:
    """Cache of keys' callers. Wrong keys aren't cached, so they can't displace valid ones.

    `find` and `is_well_formed` handle secrets that aren't API keys.
    """

    def __init__(
        self,
        *,
        find: LookUp | None = None,
        is_well_formed: Callable[[str], bool] = api_keys.is_well_formed,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find_in = find
        self._is_well_formed = is_well_formed
        self._clock = clock
        self._lock = Lock()
        self._known: OrderedDict[bytes, tuple[Caller, float]] = OrderedDict()  # sha256 of the key -> caller, time
        self._forgotten = 0
        self._noted: dict[str, float] = {}
        self._refreshing: dict[bytes, asyncio.Task[Caller | None]] = {}
        self._limiter: CapacityLimiter | None = None

    async def find(self, database: Database, key: str) -> Caller | None:
        """Return the key's caller; None if the key is unknown, expired or revoked."""
        if not self._is_well_formed(key):
            return None
        digest = hashlib.sha256(key.encode()).digest()
        with self._lock:
            caller, since = self._known.get(digest, (None, -math.inf))
        age = self._clock() - since
        if caller is None or age >= CACHE_TTL_S:
            return await self._find(database, key, digest)
        if age >= REFRESH_AFTER_S and digest not in self._refreshing:
            self._refreshing[digest] = task = asyncio.get_running_loop().create_task(self._find(database, key, digest))
            task.add_done_callback(partial(self._refreshed, digest))
        return caller

    def forget(self) -> None:
        """Forget all keys, because some may have been revoked."""
        with self._lock:
            self._forgotten += 1
            self._known.clear()

    @property
    def is_idle(self) -> bool:
        """Whether no background look-up is running."""
        return not self._refreshing

    def __len__(self) -> int:
        return len(self._known)

    async def _find(self, database: Database, key: str, digest: bytes) -> Caller | None:
        if self._limiter is None:
            self._limiter = CapacityLimiter(LOOKUPS_AT_ONCE)  # it belongs to the running event loop
        look_up = partial(self._look_up, database, key, digest)
        return await to_thread.run_sync(look_up, limiter=self._limiter)

    def _refreshed(self, digest: bytes, task: asyncio.Task[Caller | None]) -> None:
        del self._refreshing[digest]
        if not task.cancelled() and task.exception() is None and task.result() is None:
            with self._lock:
                self._known.pop(digest, None)  # it was revoked: don't use it until its second ends
        # the first request that must wait for an unavailable database reports it

    def _look_up(self, database: Database, key: str, digest: bytes) -> Caller | None:
        now, moment, forgotten = time.time(), self._clock(), self._forgotten
        with database.read() as session:
            caller = (self._find_in or api_keys.find)(session, key, now)
        if caller is None:
            return None
        with self._lock:
            if forgotten == self._forgotten:  # otherwise it may have been revoked since it was read
                self._known[digest] = caller, moment
                self._known.move_to_end(digest)
            while len(self._known) > MAX_CACHED_KEYS:
                self._known.popitem(last=False)
            due = moment - self._noted.get(caller.id, -math.inf) >= api_keys.USED_EVERY_S
            if due:
                self._noted = {id_: when for id_, when in self._noted.items() if moment - when < api_keys.USED_EVERY_S}
                self._noted[caller.id] = moment
        if due:
            _note(database, caller, now)
        return caller


def _note(database: Database, caller: Caller, now: float) -> None:
    try:
        with database.write() as session:
            api_keys.note_use(session, caller, now)
    except SQLAlchemyError as error:
        log.warning("key use not recorded key=%s: %s", caller.id, error)


Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

UNKNOWN = "unknown"


class ClientAddress:
    """Puts the client's address into `scope["state"]["client_address"]`, and its scheme into the scope."""

    def __init__(self, app: ASGIApp, trusted: Sequence[Network]) -> None:
        self._app = app
        self._trusted = tuple(trusted)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Find the address, then pass the request on."""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            peer = peer_of(scope)
            forwarded = headers.getlist("x-forwarded-for")
            scope.setdefault("state", {})["client_address"] = client_address(peer, forwarded, self._trusted)
            scheme = headers.get("x-forwarded-proto", "").strip().lower()
            if scheme in ("http", "https") and is_trusted(peer, self._trusted):
                scope["scheme"] = scheme
        await self._app(scope, receive, send)


def client_address(peer: str, forwarded: Iterable[str], trusted: Sequence[Network]) -> str:
    """Return the client's address: `peer`, unless it is a trusted proxy that names another in `X-Forwarded-For`."""
    entries = [entry.strip() for line in forwarded for entry in line.split(",")]
    found = peer
    while entries and is_trusted(found, trusted):
        entry = parse(entries.pop())
        if entry is None:
            break  # "unknown", or nonsense: the last trustworthy address is the proxy's
        found = str(entry)
    return found


def peer_of(scope: Scope) -> str:
    """Return the address of the connection's peer."""
    return str(scope["client"][0]) if scope.get("client") else UNKNOWN


def is_trusted(address: str, trusted: Sequence[Network]) -> bool:
    """Whether that address is a trusted proxy's."""
    found = parse(address)
    return found is not None and any(found in network for network in trusted)


def parse(entry: str) -> Address | None:
    """Parse an address, with or without a port; an IPv4-mapped IPv6 address becomes the IPv4 address."""
    text = entry.strip().strip('"')
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


def network(host: str) -> str:
    """Return the address's network, because an IPv6 customer can use a whole /64."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 6 and not address.ipv4_mapped:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(getattr(address, "ipv4_mapped", None) or address)
