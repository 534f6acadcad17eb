"""The folders of an installation: what the broker, the server, the devices and the operator each need, and no more.

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
from aggregator_api.transport.mqtt.mosquitto import accounts, certificates, mosquitto, roles
from gaitway.files import write_file

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
    limits: mosquitto.Limits = field(default_factory=mosquitto.Limits)

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
    server = accounts.Account(roles.SERVER_ROLE, accounts.new_password(), roles.SERVER_ROLE)
    admin = accounts.Account(roles.ADMIN_ROLE, accounts.new_password(), roles.ADMIN_ROLE)
    write_file(wanted.server / "mqtt_password", server.password.encode(), mode=SECRET)
    write_file(wanted.server / "broker_admin_password", admin.password.encode(), mode=SECRET)
    described = accounts.security_file(server, admin)
    write_file(wanted.broker / "data" / "dynamic-security.json", described.encode(), mode=SECRET)


def _write_configurations(wanted: Installation) -> None:
    place = wanted.broker_dir or PurePosixPath(wanted.broker.resolve())
    text = mosquitto.configuration(
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
