"""The folders and the configuration of a Mosquitto installation.

Each of broker, server, devices and operator has what it needs, and no more:

authority/  ca.key                         the operator's; neither broker nor server needs it
broker/     ca.pem server.pem server.key mosquitto.conf data/dynamic-security.json
server/     ca.pem server.toml mqtt_password broker_admin_password; https.pem https.key if it speaks HTTPS itself
ca.pem                                     for every device
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from aggregator_api.core.errors import ConfigError
from aggregator_api.transport.mqtt.mosquitto import certificates, roles
from gaitway.files import write_file

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


PLUGIN = PurePosixPath("/usr/lib/x86_64-linux-gnu/mosquitto_dynamic_security.so")
"""Where Debian's amd64 package has it; `aarch64-linux-gnu` on arm64, /usr/lib in the eclipse-mosquitto image."""

SECRET, PUBLIC, FOLDER, PASSED_THROUGH = 0o600, 0o644, 0o700, 0o755


@dataclass(frozen=True)
class Installation:
    """What is asked for; `broker_dir` and `server_dir` are the folders as those programs see them."""

    out: Path
    hosts: Sequence[str] = ("localhost", "127.0.0.1")
    port: int = 8883
    bind: str = ""
    plugin: PurePosixPath = PLUGIN
    days: int = 397
    user: str | None = None
    broker_dir: PurePosixPath | None = None
    server_dir: PurePosixPath | None = None
    limits: Limits = field(default_factory=Limits)

    @property
    def broker(self) -> Path:
        """The broker's folder."""
        return self.out / "broker"

    @property
    def server(self) -> Path:
        """The server's folder."""
        return self.out / "server"


def create(wanted: Installation) -> None:
    """Write everything anew: an authority, a certificate, the accounts and the configurations.

    Raises:
        ConfigError: if there is an installation already, or a setting is impossible.
    """
    if (wanted.out / "authority").exists():
        raise ConfigError(
            f"{wanted.out} has an authority already; --renew issues a new certificate from it, "
            "or choose another folder with --out"
        )
    authority = certificates.make_authority("Gaitway broker authority")
    certificate = certificates.issue(authority, wanted.hosts, days=wanted.days)
    for folder in (wanted.out / "authority", wanted.broker / "data", wanted.server):
        _make(folder)
    for folder in (wanted.out / "authority", wanted.broker, wanted.broker / "data", wanted.server):
        folder.chmod(FOLDER)
    write_file(wanted.out / "authority" / "ca.key", authority.key, mode=SECRET)
    for folder in (wanted.out, wanted.broker, wanted.server):
        write_file(folder / "ca.pem", authority.certificate, mode=PUBLIC)
    _write_certificate(wanted, certificate)
    _write_accounts(wanted)
    _write_configurations(wanted)
    _give(wanted.broker, wanted.user)


def _make(folder: Path) -> None:
    """Make a folder that the broker's user can pass through, whatever the umask; one that is there stays as it is."""
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir(exist_ok=True)
        folder.chmod(PASSED_THROUGH)


def renew(wanted: Installation) -> None:
    """Issue a new server certificate and key; the authority, the accounts and the configurations stay.

    Raises:
        ConfigError: if there is no installation.
    """
    try:
        authority = certificates.CertifiedKey(
            (wanted.out / "ca.pem").read_bytes(), (wanted.out / "authority" / "ca.key").read_bytes()
        )
    except OSError as error:
        raise ConfigError(f"{wanted.out} has no authority to renew with: {error}; leave --renew out") from error
    _write_certificate(wanted, certificates.issue(authority, wanted.hosts, days=wanted.days))
    _give(wanted.broker, wanted.user)


@dataclass(frozen=True)
class ServerCertificate:
    """The files of the server's own HTTPS."""

    certificate: Path
    key: Path
    hosts: tuple[str, ...]


def issue_for_server(out: Path, hosts: Sequence[str], *, days: int) -> ServerCertificate:
    """Write a certificate for the server's own HTTPS, or a new one in the place of that before.

    The authority is that of `create`; where there is none yet, one is made. Without hosts the names are those of the
    certificate that is there.

    Raises:
        ConfigError: for no host, a host that no certificate can name, or an authority that cannot be read.
    """
    folder = out / "server"
    written = folder / "https.pem"
    named = tuple(hosts) or (certificates.hosts_of(written.read_bytes()) if written.is_file() else ())
    made = certificates.issue(_authority(out), named, days=days)
    _make(folder)
    folder.chmod(FOLDER)
    write_file(folder / "https.key", made.key, mode=SECRET)
    write_file(written, made.certificate, mode=PUBLIC)
    return ServerCertificate(written, folder / "https.key", named)


def _authority(out: Path) -> certificates.CertifiedKey:
    """Return the installation's authority; a new one where there is neither its key nor its certificate."""
    key, certificate = out / "authority" / "ca.key", out / "ca.pem"
    if not key.exists() and not certificate.exists():
        made = certificates.make_authority("Gaitway authority")
        _make(key.parent)
        key.parent.chmod(FOLDER)
        write_file(key, made.key, mode=SECRET)
        write_file(certificate, made.certificate, mode=PUBLIC)
    try:
        return certificates.CertifiedKey(certificate.read_bytes(), key.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"the authority of {out} cannot be read: {error}; bring {key} back to where it was, or choose a new folder"
        ) from error


def _write_certificate(wanted: Installation, certificate: certificates.CertifiedKey) -> None:
    write_file(wanted.broker / "server.key", certificate.key, mode=SECRET)
    write_file(wanted.broker / "server.pem", certificate.certificate, mode=PUBLIC)


def _write_accounts(wanted: Installation) -> None:
    server = roles.Account(roles.SERVER_ROLE, roles.new_password(), roles.SERVER_ROLE)
    admin = roles.Account(roles.ADMIN_ROLE, roles.new_password(), roles.ADMIN_ROLE)
    write_file(wanted.server / "mqtt_password", server.password.encode(), mode=SECRET)
    write_file(wanted.server / "broker_admin_password", admin.password.encode(), mode=SECRET)
    described = roles.security_file(server, admin)
    write_file(wanted.broker / "data" / "dynamic-security.json", described.encode(), mode=SECRET)


def _write_configurations(wanted: Installation) -> None:
    place = wanted.broker_dir or PurePosixPath(wanted.broker.resolve())
    text = configuration(
        place, bind=wanted.bind, port=wanted.port, plugin=wanted.plugin, user=wanted.user, limits=wanted.limits
    )
    write_file(wanted.broker / "mosquitto.conf", text.encode(), mode=PUBLIC)
    own = wanted.server_dir or PurePosixPath(wanted.server.resolve())
    settings = {
        "broker_host": wanted.hosts[0],
        "broker_port": wanted.port,
        "public_broker_url": f"mqtts://{_in_url(wanted.hosts[0])}:{wanted.port}",
        "mqtt_ca_file": str(own / "ca.pem"),
        "mqtt_username": roles.SERVER_ROLE,
        "mqtt_password_file": str(own / "mqtt_password"),
        "broker_admin_username": roles.ADMIN_ROLE,
        "broker_admin_password_file": str(own / "broker_admin_password"),
    }
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
    write_file(wanted.server / "server.toml", text.encode(), mode=SECRET)


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _give(folder: Path, user: str | None) -> None:
    """Let the broker's own user have its folder, where this program may decide that."""
    if user is None or os.geteuid() != 0:
        return
    try:
        pwd.getpwnam(user)
    except KeyError:
        return  # the broker runs in another container, which knows its own users
    for path in (folder, *folder.rglob("*")):
        shutil.chown(path, user, user)
