"""Uvicorn around the application: it ends cleanly on SIGTERM, endless responses included."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from fastapi import FastAPI

from aggregator_api.app import create_app
from aggregator_api.settings import Settings

GRACE_S = 5
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_server(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT."""
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=GRACE_S,
        server_header=False,
    )
    _Server(config, app).run()


class _Server(uvicorn.Server):
    """Uvicorn raises a caught signal again once it has ended; a clean end is no failure, so this one does not."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

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
