"""Files that pages load, and the page for phones.

The phone's page is an installable app of static files that anybody may load; its requests need a key. Its files lie
below a folder that is named after the bytes of all of them. A page therefore never gets files of two versions, whatever
was cached and whenever the server was upgraded: of another version than its own there are none.

Other pages' files are served under names that change with their bytes.
Swagger UI at /docs comes from files of this package: no other server is asked, and their hashes are pinned.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, RedirectResponse, Response

from aggregator_api.auth.scopes import anybody, requires
from aggregator_api.core.errors import NotFoundError
from gaitway import views
from phone import APP

FILES = Path(__file__).parent / "static"
SHARED = {"base.css": views.FOLDER / "base.css", "icon.svg": views.FOLDER / "icon.svg"}
"""What the operator's pages share with those for people."""
MEDIA_TYPES = {
    "base.css": "text/css",
    "charts.js": "text/javascript",
    "htmx.min.js": "text/javascript",
    "icon.svg": "image/svg+xml",
    "live.js": "text/javascript",
    "upload.js": "text/javascript",
    "uPlot.iife.min.js": "text/javascript",
    "uPlot.min.css": "text/css",
}
SWAGGER = Path(__file__).parent / "swagger"
SWAGGER_ASSETS = ("swagger-ui-bundle.js", "swagger-ui.css", "start.js", "favicon-32x32.png")
"""What index.html of /docs loads; each has a route of its own below /docs."""
DOCS_PATHS = ("/docs", *(f"/docs/{name}" for name in SWAGGER_ASSETS))
IMMUTABLE_CACHE = "public, max-age=31536000, immutable"

files_router = APIRouter(include_in_schema=False)

TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".wasm": "application/wasm",
    ".webmanifest": "application/manifest+json",
}
INDEX = "index.html"
WORKER = "service_worker.js"
RECOGNIZER = APP.parents[1] / "export" / "web"
"""Modules that the app shares with every user of an exported model."""
LATER = ("vendor/", "training/", "timeline.js", "ui/day.js", "views/day.js", "views/api.js", "types.js")
"""Modules that a page loads when it first needs them: what trains runs in a worker, and types are never run."""
RUNTIME = "vendor/ort/ort-wasm-simd-threaded.wasm"
"""ONNX Runtime for the web, 14 MB: a checkout has it after `make phone`, an installation by the wheel gaitway-phone."""
_ANSWER = {"Cache-Control": "no-cache", "Vary": "Accept-Encoding"}

phone_router = APIRouter(include_in_schema=False)


@cache
def files() -> dict[str, Path]:
    """Return every file of the app by its path below the version's folder."""
    found = {path.relative_to(APP).as_posix(): path for path in sorted(APP.rglob("*")) if path.suffix in TYPES}
    recognizer = {f"recognizer/{path.name}": path for path in sorted(RECOGNIZER.glob("*.js"))}
    shown = {f"views/{path.name}": path for path in sorted(views.FOLDER.iterdir()) if path.suffix in TYPES}
    return {**_installed_runtime(), **found, **recognizer, **shown}


def _installed_runtime() -> dict[str, Path]:
    wheel = find_spec("gaitway_phone")
    folders = [] if wheel is None else [Path(location, "ort") for location in wheel.submodule_search_locations or ()]
    return {f"vendor/ort/{path.name}": path for folder in folders for path in folder.glob("*") if path.suffix in TYPES}


@cache
def hashes() -> dict[str, str]:
    """Return the sha256 of every file."""
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files().items()}


@cache
def version() -> str:
    """Return the name of these files together."""
    return hashlib.sha256(json.dumps(hashes(), sort_keys=True).encode()).hexdigest()[:12]


@phone_router.get("/phone")
@anybody()
def without_slash(request: Request) -> RedirectResponse:
    """Lead to the folder, from which the page's paths count."""
    _require_on(request)
    return RedirectResponse("/phone/", 308)


@phone_router.get("/phone/")
@anybody(below=("/phone/",))
def index(request: Request) -> Response:
    """Send the page."""
    _require_on(request)
    return _filled(request, INDEX)


@phone_router.get("/phone/service_worker.js")
@anybody()
def worker(request: Request) -> Response:
    """Send the worker that keeps the app on the phone; from here it is in charge of the whole page."""
    _require_on(request)
    return _filled(request, WORKER)


@phone_router.get("/phone/{wanted}/{name:path}")
@anybody()
def file(request: Request, wanted: str, name: str) -> Response:
    """Send a file of this version."""
    _require_on(request)
    if wanted != version() or name not in files():
        raise NotFoundError(
            f"version {version()} of the phone's page has no {f'{wanted}/{name}'[:100]!r}; reload the page"
        )
    path, kind = files()[name], TYPES[Path(name).suffix]
    headers = {**_ANSWER, "Cache-Control": IMMUTABLE_CACHE, "ETag": f'"{hashes()[name]}"'}
    if "gzip" in request.headers.get("accept-encoding", "") and kind != TYPES[".png"]:
        return Response(_compressed(path), media_type=kind, headers={**headers, "Content-Encoding": "gzip"})
    return FileResponse(path, media_type=kind, headers=headers)


def _require_on(request: Request) -> None:
    if not request.app.state.runtime.settings.phone_page:
        raise NotFoundError("this server does not serve the phone's page: its setting phone_page is false")


def _filled(request: Request, name: str) -> Response:
    etag = f'"{version()}"'
    headers = {**_ANSWER, "ETag": etag}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(filled_page(name), media_type=TYPES[Path(name).suffix], headers=headers)


@cache
def filled_page(name: str) -> str:
    """Write the version, and which files there are, into the page or its worker."""
    modules = (file for file in files() if file.endswith(".js") and file != WORKER and not file.startswith(LATER))
    says = {
        "<!-- modules -->": "\n".join(f'<link rel="modulepreload" href="./{file}">' for file in modules),
        '"./': f'"./{version()}/',  # from the page on, so that a proxy may serve it below a path
        "__VERSION__": version(),
        "__RUNTIME__": "yes" if RUNTIME in files() else "no",
        '"__FILES__"': json.dumps({file: digest for file, digest in hashes().items() if file not in (INDEX, WORKER)}),
    }
    text = files()[name].read_text()
    for mark, value in says.items():
        text = text.replace(mark, value)
    return text


@cache
def _compressed(path: Path) -> bytes:
    return gzip.compress(path.read_bytes(), 6, mtime=0)


@cache
def url_of(name: str) -> str:
    """Return the address of a file, which changes with its bytes, so that browsers may keep it for ever."""
    return f"/static/{hashlib.sha256(_path_of(name).read_bytes()).hexdigest()[:12]}/{name}"


@files_router.get("/static/{version}/{name}")
@anybody(below=("/static/",))
async def static_file(version: str, name: str) -> FileResponse:
    """Send a file; one of another version of the program is not kept by the browser."""
    if name not in MEDIA_TYPES:
        raise NotFoundError(f"there is no file {name[:80]!r}")
    keep = IMMUTABLE_CACHE if url_of(name).split("/")[2] == version else "no-cache"
    return FileResponse(_path_of(name), media_type=MEDIA_TYPES[name], headers={"Cache-Control": keep})


def _path_of(name: str) -> Path:
    return SHARED.get(name, FILES / name)


@files_router.get("/favicon.ico")
@requires("operator", "read")
async def icon() -> FileResponse:
    """Send the icon that browsers look for by themselves."""
    return FileResponse(_path_of("icon.svg"), media_type="image/svg+xml", headers={"Cache-Control": "max-age=86400"})


def _add_docs(path: str, name: str) -> None:
    @files_router.get(path)
    @anybody(below=("/docs/",))
    async def show() -> FileResponse:
        return FileResponse(SWAGGER / name, headers={"Cache-Control": "no-cache"})


_add_docs("/docs", "index.html")
for _name in SWAGGER_ASSETS:
    _add_docs(f"/docs/{_name}", _name)
