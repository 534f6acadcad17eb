"""Uvicorn around the application: it ends cleanly on SIGTERM, endless responses included."""

from __future__ import annotations

import gc
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

import uvicorn
from fastapi import FastAPI

from aggregator_api.api.connections import BACKLOG, bounded_protocol, bounds_of
from aggregator_api.app import create_app
from aggregator_api.settings import Settings
from aggregator_api.storage.disk import require_folder
from aggregator_api.storage.folder_lock import FolderLock

GRACE_S = 5
MOST_FILES = 65_536
GC_THRESHOLDS = (10_000, 10, 50)
"""More objects made than freed before the youngest are looked at (Python's own: 700), and so many times the next."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_server(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        ConfigError: if it cannot start; nothing was served then.
    """
    _raise_open_files()
    for folder in settings.own_folders:
        require_folder(folder, "data_dir, or the folder of the database")
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=GRACE_S,
        server_header=False,
        lifespan="off",  # _Server does it
        http=bounded_protocol(bounds_of(settings)),
        timeout_keep_alive=settings.idle_timeout_s,
        backlog=BACKLOG,
        proxy_headers=False,  # uvicorn would believe any program on this machine; see auth/client_address.py
    )
    with ExitStack() as locks:
        for folder in settings.own_folders:
            locks.enter_context(FolderLock(folder))
        _Server(config, app).run()


class _Server(uvicorn.Server):
    """Uvicorn with two differences.

    It raises a caught signal again once it has ended; a clean end is no failure, so this one does not. And it tells
    of an error at the application's start by a traceback; this one starts the application itself and lets it through.
    """

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        with self.capture_signals():
            async with self._app.router.lifespan_context(self._app):
                _spare_what_stays()
                await super().serve(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        runtime = getattr(self._app.state, "runtime", None)  # none yet while it starts
        if runtime is not None:
            runtime.closing.set()
        super().handle_exit(sig, frame)


def _spare_what_stays() -> None:
    """Take what the start has made out of garbage collections, and let full ones be rare.

    Every thread stands still meanwhile. With some 300,000 objects of torch and the routes that is 0.1 s, every few
    seconds beside a round; of what is left, a full collection frees less than a thousand objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _raise_open_files() -> None:
    """Allow as many open files as the system lets this user have: each connection is one, and 1,024 are soon used."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
