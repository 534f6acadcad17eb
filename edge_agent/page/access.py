"""Who may use the page: its password, its sessions, and requests that other sites make a browser send."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import secrets
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from email.message import Message
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

N, R, P = 1 << 14, 8, 5
"""scrypt with 16 MiB, which a small board has (OWASP, Password Storage Cheat Sheet)."""
MAX_N, MAX_R, MAX_P = 1 << 17, 16, 16
MIN_PASSWORD, MAX_PASSWORD = 8, 256
SESSION_S = 12 * 3600.0
MAX_SESSIONS = 32
FREE_ATTEMPTS = 3
MAX_WAIT_S = 60.0
"""Wrong passwords of one address cost nothing at first, then a wait that doubles from a second up to this."""
MAX_LOCAL_WAIT_S = 4.0
"""At this device itself, where nobody can tell the owner from other programs, a password is checked at most so late."""
MAX_SOURCES = 256
"""Addresses whose wrong passwords are counted; the one that was wrong longest ago makes room."""


def password_hash(password: str) -> str:
    """Return what a config file may hold in place of a password; raises ValueError for one that is too short."""
    if not MIN_PASSWORD <= len(password) <= MAX_PASSWORD:
        raise ValueError(f"a password has {MIN_PASSWORD} to {MAX_PASSWORD} characters; this one has {len(password)}")
    salt = secrets.token_bytes(16)
    parts = (salt, _key(password, salt, N, R, P))
    return ":".join(["scrypt", *map(str, (N, R, P)), *(base64.urlsafe_b64encode(part).decode() for part in parts)])


def is_password(password: str, hashed: str) -> bool:
    """Whether a password is the one that was hashed; False for a hash that asks for more than a device has."""
    _, n, r, p, salt, key = hashed.split(":")
    costs = int(n), int(r), int(p)
    if len(password) > MAX_PASSWORD or any(c > most for c, most in zip(costs, (MAX_N, MAX_R, MAX_P), strict=True)):
        return False
    try:
        found = _key(password, base64.urlsafe_b64decode(salt), *costs)
        return hmac.compare_digest(found, base64.urlsafe_b64decode(key))
    except ValueError:  # not base64, or no parameters of scrypt
        return False


def _key(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=n, r=r, p=p, maxmem=256 * n * r + (1 << 20), dklen=32)


class Sessions:
    """Logins by password; without a password everybody who reaches the page may use it. Safe on any thread."""

    def __init__(
        self,
        hashed: str | None,
        cookie: str,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._hashed, self._cookie, self._clock, self._sleep = hashed, cookie, clock, sleep
        self._ends: dict[str, float] = {}
        self._failed: OrderedDict[str, tuple[int, float]] = OrderedDict()  # source -> how often in a row, when last
        self._lock = threading.Lock()
        self._trial = threading.Lock()  # one scrypt at a time, which bounds guesses from everywhere together

    @property
    def needs_password(self) -> bool:
        """Whether there is a password."""
        return self._hashed is not None

    def log_in(self, password: str, address: str) -> str | None:
        """Return the Set-Cookie of a new session; None for a wrong password.

        Whoever guesses makes nobody wait but their own address. At this device itself nobody is refused: each password
        is looked at, after a wrong one ever later, up to MAX_LOCAL_WAIT_S.

        Raises:
            PermissionError: after too many wrong ones from that address; nothing was looked at.
        """
        source = _source(address)
        if delay_s := self._count(source):
            self._sleep(delay_s)
        with self._trial:
            is_right = self._hashed is not None and is_password(password, self._hashed)
        if not is_right:
            return None
        with self._lock:
            now = self._clock()
            self._failed.pop(source, None)
            token = secrets.token_urlsafe(32)
            self._ends = {session: end for session, end in self._ends.items() if end > now}
            while len(self._ends) >= MAX_SESSIONS:
                del self._ends[next(iter(self._ends))]
            self._ends[token] = now + SESSION_S
        return f"{self._cookie}={token}; HttpOnly; SameSite=Strict; Path=/; Max-Age={SESSION_S:.0f}"

    def _count(self, source: str) -> float:
        """Count a try as wrong until it is found right, so that many at once gain nothing; return by how much it waits.

        Raises:
            PermissionError: if it is not that address's turn.
        """
        with self._lock:
            now = self._clock()
            count, last = self._failed.get(source, (0, 0.0))
            wait_s = min(MAX_WAIT_S, 2.0 ** min(count - FREE_ATTEMPTS, 16)) if count >= FREE_ATTEMPTS else 0.0
            left_s = last + wait_s - now
            if source != LOOPBACK and left_s > 0:
                raise PermissionError(f"{count} wrong passwords from this address; wait {left_s:.0f} s and try again")
            self._failed[source] = count + 1, now
            self._failed.move_to_end(source)
            while len(self._failed) > MAX_SOURCES:
                self._failed.popitem(last=False)
        return min(wait_s, MAX_LOCAL_WAIT_S) if source == LOOPBACK else 0.0

    def log_out(self, cookies: str) -> None:
        """End the session of a Cookie header."""
        with self._lock:
            self._ends.pop(self._token(cookies), None)

    def may(self, cookies: str) -> bool:
        """Whether a request with this Cookie header comes from someone who has logged in, if one must."""
        if not self.needs_password:
            return True
        with self._lock:
            return self._ends.get(self._token(cookies), 0.0) > self._clock()

    def _token(self, cookies: str) -> str:
        try:
            found = SimpleCookie(cookies).get(self._cookie)
        except CookieError:
            return ""
        return found.value if found else ""


LOOPBACK = "loopback"


def _source(address: str) -> str:
    """Return what wrong passwords are counted by: an address, of IPv6 its network; or that it is this device."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped:
        found = found.ipv4_mapped
    if found.is_loopback:
        return LOOPBACK
    return str(found if found.version == 4 else ipaddress.ip_network((found, 64), strict=False))


def is_own_host(host: str) -> bool:
    """Whether a Host header names this device by address, as localhost or by its own name.

    A page of another site whose name was made to point here (DNS rebinding) sends its own name.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    own_name = socket.gethostname().lower()
    if name in ("localhost", own_name, f"{own_name.partition('.')[0]}.local"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def refusal(method: str, path: str, headers: Message) -> str:
    """Say why a request is not one of this page's own; empty where it is."""
    host = headers.get("Host", "")
    if not is_own_host(host):
        return "open the page by this device's address, or by localhost; another name is not answered"
    if method == "GET":
        site = headers.get("Sec-Fetch-Site", "none")
        # a link somewhere else leads here
        opened = path in ("/", "/timeline") and headers.get("Sec-Fetch-Mode") == "navigate"
        return "" if site in ("none", "same-origin") or opened else "another site asked for it"
    if headers.get("Origin") not in (f"http://{host}", f"https://{host}"):
        return "the Origin of a change must be this page"
    if headers.get("Content-Type", "").partition(";")[0].strip() != "application/json":
        return "a change must be application/json"
    if headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
        return "another site asked for it"
    return ""
