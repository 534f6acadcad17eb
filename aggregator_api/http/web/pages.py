"""The frame of every page: templates, terms with their explanations, and errors as pages.

The one table of the figures' words: the label that stands at a figure, and what it means, which a pop-up says.
Two figures that are measured differently have two entries, so that they cannot carry the same label.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup, escape
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aggregator_api.auth import sessions
from aggregator_api.auth.api_keys import Caller
from aggregator_api.auth.scopes import PROGRAMS
from aggregator_api.http.web.phone import url_of
from aggregator_api.storage.db.event_kinds import EVENT_KINDS
from gaitway.plain_text import label_text
from gaitway.tasks import Metric

TEMPLATES = Path(__file__).parent / "templates"
MIN_TIME_S = 1_000_000_000
"""Earlier times come from unset clocks, and aren't shown as dates."""
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
        "csrf": sessions.csrf_token(session) if session else "",
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


MESSAGES = {
    404: "There is no page at this address.",
    405: "This address only accepts forms from a page.",
}
"""What is said of errors that no route has met."""


class ErrorPages:
    """Turns problems into pages; redirects to the login page and back if needed."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on the request, and turn a problem into a page for browsers."""
        if scope["type"] != "http" or scope["path"].startswith(PROGRAMS) or not _is_browser(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        start: Message | None = None
        body = bytearray()

        async def sending(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and _is_problem(message):
                start = message
            elif start is None:
                await send(message)
            else:
                body.extend(message.get("body", b""))
                if not message.get("more_body", False):
                    await _answer(Request(scope), start, bytes(body))(scope, receive, send)

        await self._app(scope, receive, sending)


def _is_browser(headers: Headers) -> bool:
    return "text/html" in headers.get("accept", "") or "hx-request" in headers


def _is_problem(start: Message) -> bool:
    return Headers(raw=start["headers"]).get("content-type", "").startswith("application/problem+json")


def _answer(request: Request, start: Message, body: bytes) -> Any:
    document: dict[str, Any] = json.loads(body)
    kept = {name: value for name, value in Headers(raw=start["headers"]).items() if name in ("retry-after", "allow")}
    if document["status"] == 401 and request.url.path != "/login":
        return _to_login(request)
    status, title, detail = document["status"], document["title"], document["detail"]
    if detail == title:
        detail = MESSAGES.get(status, detail)
    origin = _federation_of(request.url.path) if document["status"] not in (403, 404) else ""
    answer = page(request, "error.html", status=status, title=title, detail=detail, origin=origin)
    answer.headers.update(kept)
    return answer


def _federation_of(path: str) -> str:
    """Return the federation that a form was about: its page is where one goes on."""
    parts = path.split("/")
    return parts[2] if len(parts) > 3 and parts[1] == "federations" else ""


def _to_login(request: Request) -> Any:
    asked_for = _page_of(request)
    target = "/login" if asked_for in ("", "/") else f"/login?next={quote(asked_for)}"
    status = 401 if "hx-request" in request.headers else 303
    detail = "This page needs an API key."
    answer = page(request, "error.html", status=status, title="Log in first", detail=detail, origin="")
    MutableHeaders(raw=answer.raw_headers)["hx-redirect" if status == 401 else "location"] = target
    return answer


def _page_of(request: Request) -> str:
    """Return the page to come back to after login: the one that is asked for, or that a part or a form is on."""
    if "hx-request" in request.headers:
        found = urlsplit(request.headers.get("hx-current-url", "/"))
    elif request.method in ("GET", "HEAD"):
        return request.url.path + (f"?{request.url.query}" if request.url.query else "")
    else:
        found = urlsplit(request.headers.get("referer", "/"))
    path = found.path.removeprefix(request.scope.get("root_path", ""))
    return path + (f"?{found.query}" if found.query else "")


class Term(NamedTuple):
    """A figure's label, in which {metric} stands for the task's metric, and what it means."""

    label: str
    meaning: str


TERMS = {
    "own_score": Term(
        "{metric}, own models",
        "What devices measured of the models that they had themselves trained in the round, each on its own holdout: "
        "the mean over them. It says how well devices learn, not how good the version is that came of the round.",
    ),
    "version_score": Term(
        "{metric}, version",
        "What devices measured of the version as the server made it, each on its own holdout: when a round gave it to "
        "them, when they judged it, and in its rollout. It decides what is promoted and released.",
    ),
    "works_on": Term(
        "works on",
        "Devices on whose own holdout the model beats the trivial answer, such as always the most frequent class, of "
        "those that measured it and have a holdout that can tell.",
    ),
    "measured_by": Term(
        "measured by",
        "Devices that have measured the version on their own holdout. Too few, and no name moves to it.",
    ),
    "made_from": Term(
        "made from",
        "The devices whose updates the version's round used, and how many examples those were trained on.",
    ),
    "plan": Term(
        "plan",
        "What the federation has agreed on. Labels, network and method never change; settings of rounds, rollouts and "
        "promotion do, and so may differ between two versions.",
    ),
    "online": Term("devices online", "Devices that have said something lately, are not suspended and may take part."),
    "present_model": Term("latest version", "The newest version, which rounds start from; its name is latest."),
    "epsilon": Term(
        "ε",
        "Privacy spent so far: what one person's data can have changed in all published models together, at the plan's "
        "δ. Smaller is more private.",
    ),
    "told": Term("told", "Devices of the waves so far, which were told that the version is for them."),
    "good": Term("good", "They use the version, or keep a model of theirs that is no worse on their own holdout."),
    "bad": Term("bad", "The version is worse there, does not work there, or was left again after it was used."),
    "examples": Term("examples", "Labelled windows on the device. They stay there."),
    "stable": Term("stable", "The newest version that enough devices have measured and that is not worse."),
    "released": Term("released", "The version that the last completed rollout gave to devices."),
    "canary": Term("canary", "The version that a rollout gives to devices, wave after wave, at the moment."),
    "latest": Term("latest", "The newest version, which rounds start from."),
    "previous": Term("previous", "The version that was stable before."),
}


def term_label(name: str, metric: Metric | None = None) -> str:
    """Return a figure's label."""
    return TERMS[name].label.format(metric=metric.label if metric else "")
