"""The server's settings: one class, from a TOML file, GAITWAY_* environment variables and the command line."""

from __future__ import annotations

import re
import socket
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import urlsplit

from pydantic import Field, IPvAnyNetwork, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import EnvSettingsSource, NoDecode, SettingsConfigDict
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from aggregator_api.core.errors import ConfigError
from aggregator_api.core.notification_settings import NotificationSettings
from aggregator_api.core.ports import is_loopback
from gaitway.errors import did_you_mean, first_problem
from gaitway.secret_fields import revealed

OWN_PATHS = frozenset(
    {"docs", "events", "favicon.ico", "federations", "healthz", "live", "login", "logout", "metrics", "new-federation"}
    | {"openapi.json", "phone", "readyz", "static", "v1"}
)
"""First parts of the server's own paths."""
_ROOT_PATH = re.compile(r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._~-]{1,64}){1,4}")


DATABASE = "gaitway.sqlite3"
"""The database's file in data_dir, and in a backup."""
ADDRESS_FILE = "address.txt"
"""The file in data_dir with the URL at which the running server listens."""


def parsed_url(url: str | URL) -> URL:
    """Read a database's URL.

    Raises:
        ConfigError: for one that names no SQLite file and no PostgreSQL database.
    """
    expected = "expected postgresql+psycopg://USER@HOST/DATABASE or sqlite:////FOLDER/FILE"
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise ConfigError(f"database_url is not a URL; {expected}") from None  # it may contain a password
    if parsed.get_backend_name() not in ("postgresql", "sqlite"):
        raise ConfigError(f"database_url names {parsed.get_backend_name()!r}, which is not supported; {expected}")
    return parsed


def sqlite_url(path: Path) -> URL:
    """Return the URL of a file, whatever characters its path holds: `?` and `%` mean something in a written URL."""
    return URL.create("sqlite", database=str(path))


def is_root_path(path: str) -> bool:
    """Whether the server can be below that path, written without a trailing slash."""
    return _ROOT_PATH.fullmatch(path) is not None and path.split("/")[1] not in OWN_PATHS


def is_base_url(url: str) -> bool:
    """Whether it is a URL that paths of this server can be appended to."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    plain = url.isascii() and url.isprintable() and not set(url) & set(' "<>\\^`{|}')
    nothing_else = not (parts.query or parts.fragment or parts.username or parts.password)
    return plain and len(url) <= 300 and parts.scheme in ("http", "https") and bool(parts.hostname) and nothing_else


class BrokerAccess(NamedTuple):
    """A login at the broker, and the authority of its certificate."""

    username: str | None
    password: str | None
    ca_file: Path | None


class Settings(NotificationSettings):
    """All of the operator's settings; the command line overrides the environment, which overrides the file."""

    model_config = SettingsConfigDict(env_prefix="GAITWAY_", frozen=True, extra="forbid", hide_input_in_errors=True)

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=1, le=65_535)
    data_dir: Path = Field(
        default=Path("runs/server"),
        description="folder of the database, blobs and partial updates, for this program only",
    )
    ledger_dir: Path | None = Field(
        default=None,
        description="folder that records ended access, which a restore must not undo; none: next to data_dir. Servers "
        "of one database share it, and backups exclude it",
    )
    database_url: SecretStr | None = Field(default=None, description="none: SQLite in data_dir")
    database_timeout_s: float = Field(
        default=10.0, gt=0, le=60, description="time limit for a write to wait for other writers"
    )
    blob_url: SecretStr | None = Field(default=None, description="an fsspec URL; none: a folder in data_dir")
    trusted_proxies: Annotated[tuple[IPvAnyNetwork, ...], NoDecode] = Field(
        default=(),
        description="addresses or networks of the reverse proxies whose X-Forwarded-For and X-Forwarded-Proto are "
        "trusted; comma-separated in the environment",
    )
    tls_cert_file: Path | None = Field(
        default=None, description="HTTPS without a proxy: the server's certificate as PEM; none: plain HTTP"
    )
    tls_key_file: Path | None = Field(
        default=None, description="the certificate's private key as PEM, without a password"
    )
    https_host: str | None = Field(default=None, description="address for https_port; none: `host`")
    https_port: int | None = Field(
        default=None, ge=1, le=65_535, description="port for HTTPS, with plain HTTP on `port`; none: HTTPS on `port`"
    )
    root_path: str = Field(
        default="",
        description="the path of this server at a reverse proxy, such as /gaitway; a trusted proxy may also send it "
        "in X-Forwarded-Prefix",
    )
    public_url: str | None = Field(
        default=None,
        max_length=300,
        description="the base URL for devices, such as https://gaitway.example, in links and QR codes; none: an "
        "address that the server listens on",
    )
    identity_file: Path | None = Field(
        default=None, description="the server's key pair; none: in data_dir. Servers of one database share it"
    )
    signature_lifetime_s: float = Field(
        default=30 * 86_400.0, ge=60, description="validity of a signed announcement, which is renewed after half of it"
    )
    admission: Literal["auto", "open", "enrolled"] = Field(
        default="auto",
        description="open: a device joins by publishing a status; enrolled: an operator must approve it; auto: open "
        "with a broker on loopback without passwords",
    )
    key_requests_per_s: float = Field(
        default=50.0, gt=0, description="requests per second with one key; twice as many at once"
    )
    key_streams: int = Field(
        default=64, ge=1, le=65_536, description="event streams that a key may have open; each page has one"
    )
    address_requests_per_s: float = Field(
        default=200.0, gt=0, description="requests per second from one address without a key; twice as many at once"
    )
    failed_keys_per_s: float = Field(
        default=10.0, gt=0, description="wrong keys per second from one address; twice as many at once"
    )
    header_timeout_s: float = Field(default=10.0, gt=0, description="time limit for a request's headers")
    body_timeout_s: float = Field(default=30.0, gt=0, description="time limit for each MiB of a request's body")
    idle_timeout_s: int = Field(default=75, ge=1, description="time between two requests on a connection")
    write_timeout_s: float = Field(
        default=60.0, gt=0, description="time limit for a client that doesn't read its response"
    )
    max_connections: int = Field(
        default=4096, ge=16, description="HTTP connections; beyond that, the longest idle ones are closed"
    )
    broker_host: str = "127.0.0.1"
    broker_port: int = Field(default=1883, ge=1, le=65_535)
    public_broker_url: str | None = Field(
        default=None,
        pattern=r"^mqtts?://([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:]{2,45}\])(:[0-9]{1,5})?$",
        description="the broker's URL for devices, such as mqtts://gaitway.example:8883 (mqtts: with TLS), sent at "
        "enrolment. none: only devices on this machine get a broker, on loopback",
    )
    embedded_broker: bool = Field(
        default=False,
        description="run a broker inside the server, on loopback; with accounts if admission is enrolled",
    )
    mqtt_client_id: str = Field(default="gaitway-server", min_length=1, max_length=64)
    mqtt_username: str | None = None
    mqtt_password: SecretStr | None = Field(
        default=None, description="preferably set in a file, or as GAITWAY_MQTT_PASSWORD"
    )
    mqtt_password_file: Path | None = None
    mqtt_ca_file: Path | None = Field(
        default=None, description="TLS authority of the broker's certificate; none: no TLS"
    )
    broker_admin_username: str | None = Field(
        default=None, description="account that manages devices' accounts at the broker; none: no accounts"
    )
    broker_admin_password: SecretStr | None = None
    broker_admin_password_file: Path | None = None
    node: str = Field(
        default_factory=socket.gethostname,
        pattern=r"^[A-Za-z0-9_.-]{1,64}$",
        description="this process's name among several on one PostgreSQL; its port is added",
    )
    lease_s: float = Field(
        default=10.0,
        ge=0,
        description="on PostgreSQL: how long a dead process blocks its rounds, the same for all processes; 0: only "
        "one process",
    )
    chunk_bytes: int = Field(default=128 * 1024, ge=1024, le=1 << 20, description="chunk size requested from devices")
    inbox_messages: int = Field(default=256, ge=1, description="MQTT messages queued before the network must wait")
    offline_timeout_s: float = Field(
        default=120.0, gt=0, description="a round without a deadline drops a device that has been offline this long"
    )
    uploads_per_device: int = Field(default=2, ge=1, le=64)
    torch_threads: int = Field(default=1, ge=1, description="threads; 1 gives the same aggregate on every machine")
    aggregation_process: bool = Field(default=True, description="aggregate in a separate process instead of a thread")
    aggregation_attempts: int = Field(
        default=3, ge=1, le=100, description="attempts before a dying worker fails the round"
    )
    max_body_bytes: int = Field(default=1 << 20, ge=1024, description="maximum size of a request body")
    max_model_bytes: int = Field(default=1 << 28, ge=1024, description="maximum size of a plan's model")
    min_free_bytes: int = Field(
        default=64 << 20, ge=0, description="free disk space below which uploads are postponed and /readyz fails"
    )
    gc_grace_s: float = Field(default=3600.0, ge=60, description="how long unreferenced blobs are kept")
    keep_versions: int | None = Field(
        default=None, ge=1, description="model versions per federation whose data are kept; none: all"
    )
    update_retention_days: float | None = Field(
        default=None, gt=0, description="age at which settled updates' rows are deleted; none: never"
    )
    event_retention_days: float | None = Field(
        default=None, gt=0, description="age at which federations' events are deleted; none: never"
    )
    programs: bool = Field(
        default=True, description="make each federation's program, with which devices without torch train"
    )
    phone_page: bool = Field(default=True, description="serve the app for phones' browsers at /phone/")
    log_level: str = "INFO"
    log_format: Literal["text", "json"] = Field(default="text", description="json: one line per record")

    @field_validator("trusted_proxies", mode="before")
    @classmethod
    def _split(cls, given: Any) -> Any:
        return [part.strip() for part in given.split(",") if part.strip()] if isinstance(given, str) else given

    @field_validator("root_path")
    @classmethod
    def _is_a_path(cls, given: str) -> str:
        path = given.rstrip("/")
        if path and not is_root_path(path):
            raise ValueError(
                "expected a path such as /gaitway, of letters, digits and .~_-, that doesn't start like one of the "
                "server's own paths ({', '.join(sorted(OWN_PATHS))})"
            )
        return path

    @field_validator("public_broker_url")
    @classmethod
    def _has_a_port(cls, url: str | None) -> str | None:
        if url is not None:
            _ = urlsplit(url).port  # raises ValueError above 65535
        return url

    @field_validator("public_url")
    @classmethod
    def _is_a_base_url(cls, given: str | None) -> str | None:
        if given is None:
            return None
        if not is_base_url(given):
            raise ValueError("expected the server's base URL for devices, such as https://gaitway.example")
        return given.rstrip("/")

    @model_validator(mode="after")
    def _https_has_what_it_needs(self) -> Settings:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_cert_file and tls_key_file go together; give both, or neither")
        if self.tls_cert_file is None and (self.https_port or self.https_host):
            raise ValueError("https_host and https_port need a certificate: tls_cert_file and tls_key_file")
        if self.https_host and self.https_port is None:
            raise ValueError("https_host needs https_port; otherwise HTTPS is on `host` and `port`")
        if self.https_port == self.port:
            raise ValueError(f"https_port and port are both {self.port}; leave https_port out, or choose another")
        return self

    @property
    def own_url(self) -> str:
        """The address of the pages for a browser on this machine."""
        host, port = (self.host, self.port) if self.plain_http else self.https_address
        everywhere = host in ("0.0.0.0", "::", "")
        shown = "127.0.0.1" if everywhere else f"[{host}]" if ":" in host else host
        return f"{'http' if self.plain_http else 'https'}://{shown}:{port}{self.root_path}"

    @property
    def plain_http(self) -> bool:
        """Whether `host` and `port` speak HTTP without TLS."""
        return self.tls_cert_file is None or self.https_port is not None

    @property
    def https_address(self) -> tuple[str, int]:
        """Host and port of HTTPS, where there is a certificate."""
        return (self.https_host or self.host, self.https_port or self.port)

    @property
    def enrolled_only(self) -> bool:
        """Whether a device needs an operator's approval before anything of it is taken."""
        if self.admission == "auto":
            return self.mqtt_username is not None or not is_loopback(self.broker_host)
        return self.admission == "enrolled"

    @property
    def identity(self) -> Path:
        """The file of the server's key pair."""
        return (self.identity_file or self.data_dir / "identity.pem").resolve()

    @property
    def ledger(self) -> Path:
        """The folder of the ledger; by default next to data_dir, so that copies of data_dir exclude it."""
        folder = self.data_dir.resolve()
        return (self.ledger_dir or folder.with_name(f"{folder.name}-ledger")).resolve()

    @property
    def database(self) -> URL:
        """URL of the database; its path may hold any character.

        Raises:
            ConfigError: for a `database_url` that names no SQLite file and no PostgreSQL database.
        """
        written = revealed(self.database_url)
        return parsed_url(written) if written else sqlite_url(self.data_dir.resolve() / DATABASE)

    @property
    def database_file(self) -> Path | None:
        """The database's file; None on PostgreSQL."""
        url = self.database
        return Path(url.database or "") if url.get_backend_name() == "sqlite" else None

    @property
    def shares_work(self) -> bool:
        """Whether other server processes may use the same database."""
        return self.lease_s > 0 and self.database_file is None

    @property
    def own_folders(self) -> tuple[Path, ...]:
        """The folders in which no other server may work; none where several share one database."""
        if self.shares_work:
            return ()
        folders = {self.data_dir.resolve()}
        if self.database_file is not None:
            folders.add(self.database_file.resolve().parent)
        return tuple(sorted(folders))

    @property
    def holder(self) -> str:
        """This process's name in leases and at the broker; the same after a restart."""
        return f"{self.node}-{self.port}"

    @property
    def blobs(self) -> str:
        """Where the blobs are: a folder's path, or a URL."""
        return revealed(self.blob_url) or str(self.data_dir.resolve() / "blobs")

    @property
    def device_broker(self) -> tuple[str, int, bool] | None:
        """Host, port and TLS of the broker that devices get; None: none."""
        if self.public_broker_url is not None:
            url = urlsplit(self.public_broker_url)
            tls = url.scheme == "mqtts"
            return url.hostname or "", url.port or (8883 if tls else 1883), tls
        if is_loopback(self.broker_host):
            return self.broker_host, self.broker_port, self.mqtt_ca_file is not None
        return None

    @property
    def mqtt_login(self) -> BrokerAccess:
        """The server's login at the broker.

        Raises:
            ConfigError: if the password's file cannot be read.
        """
        password = _secret(self.mqtt_password, self.mqtt_password_file)
        return BrokerAccess(self.mqtt_username, password, self.mqtt_ca_file)

    @property
    def broker_admin_login(self) -> BrokerAccess | None:
        """How devices' accounts are managed at the broker, if they are.

        Raises:
            ConfigError: if the password's file cannot be read.
        """
        if self.broker_admin_username is None:
            return None
        password = _secret(self.broker_admin_password, self.broker_admin_password_file)
        return BrokerAccess(self.broker_admin_username, password, self.mqtt_ca_file)


def load(config: Path | None = None, **overrides: Any) -> Settings:
    """Read the settings; overrides that are None count as not given.

    Raises:
        ConfigError: for a file that cannot be read, an unknown key or an impossible value.
    """
    try:
        given = {
            **(_read(config) if config else {}),
            **EnvSettingsSource(Settings)(),
            **{key: value for key, value in overrides.items() if value is not None},
        }
        return Settings(**given)
    except ValidationError as error:
        raise ConfigError(f"setting {first_problem(error, input_shown=True, model=Settings)}") from error


def _secret(given: SecretStr | None, file: Path | None) -> str | None:
    if given is not None or file is None:
        return revealed(given)
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the password in {file} cannot be read: {error}") from error


def _read(config: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(config.read_text())
    except FileNotFoundError as error:
        raise ConfigError(f"there is no {config}") from error
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{config} cannot be read as TOML: {error}") from error
    known = sorted(Settings.model_fields)
    for key in values:
        if key not in known:
            raise ConfigError(f"{config}: unknown setting {key!r}; {did_you_mean(key, known)}")
    return values
