"""The text of mosquitto.conf for Mosquitto 2.0 and later: one TLS listener, no anonymous users, bounds everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

MAX_PACKET_BYTES = (1 << 20) + (64 << 10)
"""The largest chunk that the settings allow, and room for its topic and header."""


@dataclass(frozen=True)
class Limits:
    """What one broker takes; a client's queues are bounded, so that none can fill the broker's memory alone."""

    connections: int = 20_000
    in_flight: int = 64
    queued_messages: int = 20_000
    queued_bytes: int = 256 << 20
    memory_bytes: int = 0
    """Written as `memory_limit`; 0: not at all. Under it Mosquitto 2.0.11 (Debian 12) with the dynamic security plugin
    ends new TLS connections after some accounts were revoked, however little it uses: bound its process instead."""


def configuration(
    place: PurePosixPath, *, bind: str, port: int, plugin: PurePosixPath, user: str | None, limits: Limits
) -> str:
    """Write the file for a broker that finds its certificate and data below `place`."""
    listener = f"listener {port} {bind}".rstrip()
    lines = [
        "# Written by `python -m aggregator_api broker-config`; see docs/operations.md.",
        *([f"user {user}"] if user else []),
        "",
        "# Everybody says who they are; what each may do is in the plugin's file.",
        "per_listener_settings false",
        "allow_anonymous false",
        f"plugin {plugin}",
        f"plugin_opt_config_file {place / 'data' / 'dynamic-security.json'}",
        "",
        "# Retained messages, sessions and their queues survive a restart; what they lose in a crash is said again.",
        "persistence true",
        f"persistence_location {place / 'data'}/",
        "autosave_interval 60",
        "persistent_client_expiration 30d",
        "",
        "# No chunk is larger; an offender is cut off.",
        f"max_packet_size {MAX_PACKET_BYTES}",
        "# For the server while it is away, and for each device: what is beyond is dropped, and its sender repeats it.",
        f"max_inflight_messages {limits.in_flight}",
        f"max_queued_messages {limits.queued_messages}",
        f"max_queued_bytes {limits.queued_bytes}",
        "# All of it together is bounded where the broker is started: MemoryMax= in its unit, or its container's limit",
        *([f"memory_limit {limits.memory_bytes}"] if limits.memory_bytes else []),
        "max_keepalive 3600",
        "set_tcp_nodelay true",
        "sys_interval 60",
        "",
        "log_dest stderr",
        "log_type error",
        "log_type warning",
        "log_type notice",
        "log_timestamp_format %Y-%m-%dT%H:%M:%S",
        "connection_messages false",
        "",
        listener,
        f"max_connections {limits.connections}",
        f"cafile {place / 'ca.pem'}",
        f"certfile {place / 'server.pem'}",
        f"keyfile {place / 'server.key'}",
        "tls_version tlsv1.2",
        "require_certificate false",
    ]
    return "\n".join(lines) + "\n"
