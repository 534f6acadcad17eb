"""Listens on ports, checks them before startup with clear errors, and identifies loopback addresses."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import ssl
from collections.abc import Callable
from urllib.parse import urlsplit

from aggregator_api.core.errors import ConfigError

PROBE_S = 2.0
TLS_SHUTDOWN_S = 5.0
"""Seconds for a client's TLS close."""


def require_free(host: str, port: int, option: str = "--port") -> None:
    """Check that this program could listen on host and port now.

    Raises:
        ConfigError: saying which option to change.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ConfigError(f"{host!r} is not an address; choose another address") from error
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is usable
        try:
            probe.bind(address)
        except OSError as error:
            raise ConfigError(_explain(host, port, option, error)) from error


def is_open(url: str) -> bool:
    """Whether something listens at a URL's host and port."""
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 80), PROBE_S).close()
    except (OSError, ValueError):
        return False
    return True


async def listen(
    protocol: Callable[[], asyncio.Protocol],
    host: str,
    port: int,
    *,
    backlog: int,
    tls: ssl.SSLContext | None = None,
    handshake_s: float = 0,
) -> asyncio.Server:
    """Listen, with TLS where a context is given; its handshake has `handshake_s`.

    Raises:
        ConfigError: saying which option to change.
    """
    loop = asyncio.get_running_loop()
    try:
        if tls is None:
            return await loop.create_server(protocol, host, port, backlog=backlog)
        return await loop.create_server(
            protocol,
            host,
            port,
            backlog=backlog,
            ssl=tls,
            ssl_handshake_timeout=handshake_s,
            ssl_shutdown_timeout=TLS_SHUTDOWN_S,
        )
    except OSError as error:
        raise ConfigError(_explain(host, port, "--port" if tls is None else "https_port", error)) from error


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _explain(host: str, port: int, option: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is used by another program; choose another with {option}"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} needs more privileges than this program has; choose one above 1023 with {option}"
    return f"cannot listen on {host}: {error.strerror}; choose another address"
