"""Templates to pages: everything that is put into one is escaped, and files carry the hash of their bytes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from aggregator_api.auth import web_sessions
from aggregator_api.auth.api_keys import Caller
from aggregator_api.http.web.files import url_of
from aggregator_api.http.web.terms import TERMS, term_label
from aggregator_api.storage.db.event_kinds import EVENT_KINDS
from gaitway.plain_text import label_text

TEMPLATES = Path(__file__).parent / "templates"
MIN_TIME_S = 1_000_000_000
"""Earlier moments are of clocks that nobody had set, and not shown as dates."""
MAX_ROOTS = 4
"""Paths of proxies whose templates are kept; there is one, or two."""


def page(request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """Answer with a page; `federation`, where it is among the values, is the one whose pages the bar shows."""
    name = values.get("federation")
    caller: Caller | None = getattr(request.state, "caller", None)
    session = getattr(request.state, "session", "")
    context = {
        "federation": name,
        "caller": caller,
        "may_act": may_act(caller, name),
        "may_create": may_act(caller, None),
        "csrf": web_sessions.csrf_token(session) if session else "",
        "path": request.url.path,
        "query": f"?{request.url.query}" if request.url.query else "",
    }
    return HTMLResponse(_template(request, template).render({**context, **values}), status)


def part(request: Request, template: str, **values: Any) -> HTMLResponse:
    """Answer with a part of a page, the same for every caller with the same rights: it holds no form's token."""
    return HTMLResponse(_template(request, template).render({"csrf": "", **values}))


def _template(request: Request, name: str) -> Template:
    return _environment(request.scope.get("root_path", "")).get_template(name)


def may_act(caller: Caller | None, federation: str | None) -> bool:
    """Whether a caller may change that federation, or (None) the server."""
    if caller is None or "operator" not in caller.scopes:
        return False
    return caller.federation is None or caller.federation == federation


@lru_cache(maxsize=MAX_ROOTS)
def _environment(root: str) -> Environment:
    """Return the templates of a server below that path, which macros need as well as pages."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.globals["root"] = root
    made.globals |= {"terms": TERMS, "term_label": term_label}
    made.globals["static"] = lambda name: root + url_of(name)
    filters: dict[str, Callable[..., Any]] = {
        "time": time_element,
        "bytes": byte_text,
        "seconds": duration_text,
        "count": lambda number: f"{number:,}",
        "label": label_text,
        "segment": lambda text: quote(str(text), safe=""),
        "meaning": lambda kind: EVENT_KINDS[kind].meaning if kind in EVENT_KINDS else "",  # of an older release
        "hue": lambda text: int(hashlib.sha256(str(text).encode()).hexdigest()[:4], 16) % 360,
    }
    made.filters |= filters
    return made


def time_element(when: float | None) -> Markup:
    """Write a moment as an element that says it in UTC, and that a script puts into the reader's words."""
    if when is None or when < MIN_TIME_S:
        return Markup("–")
    moment = datetime.fromtimestamp(when, UTC)
    return Markup('<time datetime="{}">{}</time>').format(
        escape(moment.isoformat(timespec="seconds")), moment.strftime("%Y-%m-%d %H:%M:%S UTC")
    )


def byte_text(size: float) -> str:
    """Write a number of bytes with three digits at the most."""
    units = ("B", "kB", "MB", "GB", "TB")
    power = 0 if size < 1000 else min(len(units) - 1, int(math.log10(size) / 3))
    value = size / 1000**power
    return f"{value:.0f} {units[power]}" if power == 0 or value >= 100 else f"{value:.1f} {units[power]}"


def duration_text(seconds: float) -> str:
    """Write a time in its two largest units."""
    whole = round(seconds)
    if whole < 1:
        return f"{seconds:.1f} s"
    for size, unit, smaller, below in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit} {rest} {below}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"
