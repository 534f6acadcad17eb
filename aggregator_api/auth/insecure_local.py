"""`--insecure-local`: whoever sits at this machine needs no key. Only requests that cannot be anybody else's pass.

What a reverse proxy passes on also comes from loopback, and what a web page makes a browser send too. The first shows
by a header, by the name of another host or, with nginx's plain `proxy_pass`, by nothing but HTTP/1.0; the second by the
name of another host (DNS rebinding) or origin. The setting is for trials all the same: a proxy may hide itself.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from aggregator_api.ports import is_loopback

FORWARDED = frozenset({"forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip"})
FORWARDED_PREFIX = "x-forwarded-"
_ORIGIN_SCHEMES = ("http", "https")
_HOST = re.compile(r"(?P<name>[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")

ADVICE = "the server runs with --insecure-local, for programs on its own machine alone; start it without, and use a key"


def refusal(peer: str, headers: Headers, http_version: str) -> str | None:
    """Return why a request is not from a program on this machine of its own accord, in words; None if it is."""
    if not is_loopback(peer):
        return f"the request comes from {peer}; {ADVICE}"
    for name in headers:
        if name in FORWARDED or name.startswith(FORWARDED_PREFIX):
            return f"a proxy has passed the request on (it has a header {name}); {ADVICE}"
    if http_version == "1.0":
        return f"the request is HTTP/1.0, as proxies send it; {ADVICE}"
    hosts = headers.getlist("host")
    if len(hosts) != 1 or not names_loopback(hosts[0]):
        return f"the request is for the host {', '.join(hosts)[:200] or '(none)'!r}, not for this machine; {ADVICE}"
    for origin in headers.getlist("origin"):
        scheme, _, netloc = origin.partition("://")
        if scheme not in _ORIGIN_SCHEMES or not names_loopback(netloc):
            return f"a web page of {origin[:200]!r} sends the request; {ADVICE}"
    return None


def names_loopback(netloc: str) -> bool:
    """Whether `host[:port]` names this machine; with anything else in it, such as a user, it does not."""
    found = _HOST.fullmatch(netloc)
    return found is not None and is_loopback(urlsplit(f"//{found['name']}").hostname or "")
