"""A device's broker address: from its config, or from the server at enrolment, but never guessed.

What the server says is not taken where it would take protection away: a device that enrolled over TLS speaks to no
broker without TLS, unless both are this machine. A broker on loopback is the server's own: on another machine that is
nobody's business.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from edge_agent.config.brokers import BrokerPlace
from edge_agent.config.settings import Config
from edge_agent.errors import ConfigError
from edge_agent.storage.credentials import BrokerAddress, read_credentials


def broker_place(config: Config) -> BrokerPlace | None:
    """Return where the broker is; None if nobody has said it.

    Raises:
        ConfigError: if what the server said would take protection away, or its answer is damaged on the disk.
    """
    section = config.broker
    if section.host is not None:
        return section.place
    known = read_credentials(config.agent.data_dir)
    address = known.broker.address if known else None
    if address is None or (is_loopback(address.host) and not _is_near(config.server.url)):
        return None
    if problem := unsafe_address(config.server.url, address):
        raise ConfigError(problem)
    if section.tls and not address.tls:
        place = f"{address.host}:{address.port}"
        raise ConfigError(f"[broker] tls is set, but the server's broker at {place} has no TLS; ask its operator")
    return BrokerPlace(address.host, address.port, address.tls, section.ca_file, section.keepalive_s)


def require_place(config: Config) -> BrokerPlace:
    """Return where the broker is.

    Raises:
        ConfigError: as `broker_place`; also if nobody has said it: what runs on some port may be anything.
    """
    place = broker_place(config)
    if place is None:
        raise ConfigError(
            "no broker address configured: [broker] host is not set, and the server has not named one to this "
            'device; set [broker] host and port, or [server] transport = "http" to do without one. Its operator can '
            "set public_broker_url, which the server then says at `enrol`"
        )
    return place


def unsafe_address(server_url: str, address: BrokerAddress) -> str:
    """Say why an address is not to be used by who enrolled at that URL; empty if it may be."""
    if address.tls or urlsplit(server_url).scheme != "https" or is_loopback(address.host):
        return ""
    return (
        f"{server_url} names a broker without TLS, {address.host}:{address.port}, to a device that speaks TLS with the "
        "server: whoever listens on the way could read and change its messages. Ask the operator for one with TLS "
        "(mqtts://), or set [broker] host yourself"
    )


def _is_near(server_url: str) -> bool:
    return is_loopback(urlsplit(server_url).hostname or "")


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine's own."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
