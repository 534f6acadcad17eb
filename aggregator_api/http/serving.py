"""Serves HTTP and HTTPS, and reloads the certificate when it changes."""

from __future__ import annotations

import gc
import logging
import resource
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from aggregator_api.core.errors import ConfigError
from aggregator_api.core.ports import listen
from aggregator_api.core.settings import ADDRESS_FILE, Settings
from aggregator_api.devices.service import BrokerAccounts
from aggregator_api.http.api.connections import BACKLOG, Connection, ConnectionLimits, Connections, RequestPhases
from aggregator_api.http.app import create_app
from aggregator_api.storage.outages import FolderLock, require_folder
from gaitway.files import write_file

log = logging.getLogger(__name__)

GRACE_S = 2
"""Time for running requests once the server stops; downloads and uploads resume at its next start."""
MAX_FILES = 65_536
GC_THRESHOLDS = (10_000, 10, 50)
"""More objects made than freed before the youngest are looked at (Python's own: 700), and so many times the next."""
TICKS_PER_S = 10
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_server(settings: Settings, accounts: BrokerAccounts | None = None) -> None:
    """Serve until SIGTERM or SIGINT; `accounts` are the devices' at the broker, if not those of the settings.

    Raises:
        ConfigError: if it cannot start; nothing was served then.
    """
    _raise_open_files()
    for folder in settings.own_folders:
        require_folder(folder, "data_dir, or the folder of the database")
    certificate = certificate_of(settings)
    app = create_app(settings, accounts=accounts)
    config = uvicorn.Config(
        RequestPhases(app),
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=GRACE_S,
        server_header=False,
        lifespan="off",  # _Server does it
        http="httptools",
        ws="none",
        timeout_keep_alive=settings.idle_timeout_s,
        proxy_headers=False,  # uvicorn would believe any program on this machine; see auth/client_address.py
    )
    with ExitStack() as locks:
        for folder in settings.own_folders:
            locks.enter_context(FolderLock(folder))
        _Server(config, app, settings, certificate).run()


class _Server(uvicorn.Server):
    """Uvicorn with three differences.

    It raises a caught signal again once it has ended; a clean end is no failure, so this one does not. It tells of an
    error at the application's start by a traceback; this one starts the application itself and lets it through. And it
    listens once and hands sockets to its protocol; this one listens with and without TLS, and bounds connections.
    """

    def __init__(
        self, config: uvicorn.Config, app: FastAPI, settings: Settings, certificate: Certificate | None
    ) -> None:
        super().__init__(config)
        self._app = app
        self._settings = settings
        self._certificate = certificate
        self._connections = Connections(ConnectionLimits.of(settings))

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        with self.capture_signals():
            async with self._app.router.lifespan_context(self._app):
                _freeze_gc()
                await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        settings = self._settings
        if settings.plain_http:
            server = await listen(self._connection, settings.host, settings.port, backlog=BACKLOG)
            self.servers.append(server)
        if self._certificate is not None:
            context, host, port = self._certificate.context, *settings.https_address
            handshake_s = settings.header_timeout_s
            server = await listen(self._connection, host, port, backlog=BACKLOG, tls=context, handshake_s=handshake_s)
            self.servers.append(server)
        try:
            write_file(settings.data_dir / ADDRESS_FILE, f"{settings.own_url}\n".encode("ascii"))
        except OSError as error:  # a full disk stops no server: commands then take the port from the settings
            log.warning("address not written: %s", error)
        log.info("listening at %s; `login-link` opens the pages", settings.own_url)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        with suppress(OSError):
            (self._settings.data_dir / ADDRESS_FILE).unlink(missing_ok=True)
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        if self._certificate is not None and counter % (REFRESH_S * TICKS_PER_S) == 0:
            self._certificate.refresh()
        return await super().on_tick(counter)

    def _connection(self) -> Connection:
        make: Any = self.config.http_protocol_class  # which the setting `http` names
        return Connection(self._connections, partial(make, self.config, self.server_state))

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


def _freeze_gc() -> None:
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
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


REFRESH_S = 60
"""How often the files are looked at."""


class Certificate:
    """A certificate and its key in files, and the TLS context that shows them.

    Raises:
        ConfigError: if the files cannot be read or do not belong together.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self._files = (certificate, key)
        self._seen: tuple[tuple[int, int, int], ...] = ()
        self._seen = self._state()
        self.context = self._loaded()

    def refresh(self) -> bool:
        """Reload changed files; an unusable certificate is logged, and the previous one stays."""
        state = self._state()
        if state == self._seen:
            return False
        try:
            self._loaded()  # first beside the one in use, which half of a pair would spoil
        except ConfigError as error:
            log.warning("new certificate rejected: %s", error)
            self._seen = state
            return False
        self.context.load_cert_chain(*self._files)
        self._seen = state
        log.info("certificate reloaded file=%s", self._files[0])
        return True

    def _loaded(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(*self._files, password=_no_password)
        except (OSError, ssl.SSLError) as error:
            named = f"tls_cert_file {self._files[0]} and tls_key_file {self._files[1]}"
            raise ConfigError(
                f"{named} cannot be used for HTTPS: {error.strerror or error}; expected a certificate and its own key "
                "as PEM, readable by this user: `python -m aggregator_api server-certificate` makes such files"
            ) from error
        return context

    def _state(self) -> tuple[tuple[int, int, int], ...]:
        """Return what changes when a file does; a file that is away is no change yet."""
        try:
            found = [file.stat() for file in self._files]
        except OSError:
            return self._seen
        return tuple((entry.st_ino, entry.st_mtime_ns, entry.st_size) for entry in found)


def certificate_of(settings: Settings) -> Certificate | None:
    """Read the certificate that the settings name; None where HTTPS is a proxy's.

    Raises:
        ConfigError: if it cannot be used.
    """
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    return Certificate(settings.tls_cert_file, settings.tls_key_file)


def _no_password() -> str:
    raise ssl.SSLError("the key has a password; write it without one, mode 0600")
