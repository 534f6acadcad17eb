"""The device's key, its credentials from the server, and its voucher, readable only by their owner."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from edge_agent.config.brokers import BrokerSection
from edge_agent.errors import ConfigError
from edge_agent.storage.data_folder import write_file
from edge_agent.storage.state_store import StateStore
from federation.errors import WireError
from federation.plan import SecureSettings
from federation.protocol.messages import DeviceStatus, UpdateManifest, write
from federation.protocol.signing import Kind, wrap
from federation.secure_sums.vouching import VoucherCheck, read_revoked
from gaitway.errors import first_problem
from gaitway.secret_fields import revealed

KEY_FILE, CREDENTIALS_FILE, PINNED_FILE = "device.key", "credentials.json", "server.fingerprint"
PUBLIC_KEY_BYTES = 32
MAX_SECRET = 1024


def _raw_key(text: str) -> str:
    try:
        raw = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ValueError("the server's key is not base64") from error
    if len(raw) != PUBLIC_KEY_BYTES:
        raise ValueError(f"the server's key has {len(raw)} bytes; an ed25519 key has {PUBLIC_KEY_BYTES}")
    return text


class _ServerReply(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


Secret = Annotated[str, Field(min_length=1, max_length=MAX_SECRET, pattern=r"^[\x21-\x7e]+$")]


class BrokerAddress(_ServerReply):
    """Where the server says that its broker is."""

    host: Annotated[str, Field(pattern=r"^[A-Za-z0-9.:_-]{1,253}$")]
    port: Annotated[int, Field(ge=1, le=65535)]
    tls: bool


class BrokerLogin(_ServerReply):
    """The device's account at the broker, and where that is; the name is also its client id."""

    username: Secret
    password: Secret
    address: BrokerAddress | None = None


class Credentials(_ServerReply):
    """What an approved device gets."""

    api_key: Secret
    broker: BrokerLogin
    server_key: Annotated[str, AfterValidator(_raw_key)]

    @property
    def server_key_bytes(self) -> bytes:
        """The server's raw ed25519 public key, 32 bytes."""
        return base64.b64decode(self.server_key)


class Login(NamedTuple):
    """How the device introduces itself to the broker."""

    client_id: str
    username: str | None
    password: str | None


def key_of(path: Path | None) -> str | None:
    """Read an API key from a file; None without one.

    Raises:
        ConfigError: if it cannot be read, or holds no key.
    """
    if path is None:
        return None
    try:
        with path.open() as file:
            text = file.read(MAX_SECRET + 1).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"server.key_file {path} cannot be read: {error}") from error
    if not re.fullmatch(r"[\x21-\x7e]{1,1024}", text):
        raise ConfigError(f"server.key_file {path} contains no API key; expected one line, gw_…")
    return text


def read_credentials(folder: Path) -> Credentials | None:
    """Return what the server gave; None before it gave anything.

    Raises:
        ConfigError: if the file is damaged.
    """
    path = folder / CREDENTIALS_FILE
    try:
        return Credentials.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        wrong = first_problem(error)  # not the whole error: it quotes what it has read, and that is secret
        todo = "move it away, and get new ones with `edge_agent enrol` without a token"
        raise ConfigError(f"{path} is damaged: {wrong}; {todo}") from None


def write_credentials(folder: Path, credentials: Credentials) -> None:
    """Keep what the server gave, readable by this user alone."""
    write_file(folder / CREDENTIALS_FILE, credentials.model_dump_json().encode())  # its temporary file is 0600


def pin_server(folder: Path, fingerprint: str) -> None:
    """Keep which server the operator's token named: no other one's credentials are taken."""
    write_file(folder / PINNED_FILE, fingerprint.encode())


def pinned_server(folder: Path) -> str:
    """Return the fingerprint of the key of the server that this device has enrolled with; empty before it has."""
    try:
        return (folder / PINNED_FILE).read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{folder / PINNED_FILE} cannot be read: {error}; enrol with a new token") from error


def has_key(folder: Path) -> bool:
    """Whether the device has made its key: it has been enrolled, or has tried."""
    return (folder / KEY_FILE).is_file()


def device_key(folder: Path) -> Ed25519PrivateKey:
    """Read the device's key, or make it.

    Raises:
        ConfigError: if the file is no such key.
    """
    path = folder / KEY_FILE
    if not path.exists():
        made = Ed25519PrivateKey.generate()
        write_file(path, made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    try:
        found = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"the device's key {path} cannot be used: {error}; move it away and enrol again") from error
    if not isinstance(found, Ed25519PrivateKey):
        raise ConfigError(f"{path} holds a {type(found).__name__}, expected an ed25519 key; move it away")
    return found


def public_key_text(folder: Path) -> str:
    """Return the public half of the device's key as base64, as the server lists it."""
    return base64.b64encode(device_key(folder).public_key().public_bytes_raw()).decode()


def manifest_signer(folder: Path, federation: str, device: str) -> Callable[[UpdateManifest], bytes]:
    """Return what makes an update's manifest ready to be sent: signed, if the device has a key.

    Raises:
        ConfigError: if the key's file is no such key.
    """
    if not has_key(folder):
        return write
    key = device_key(folder)
    return lambda manifest: wrap(Kind.UPDATE, federation, device, write(manifest), key.sign)


def status_signer(folder: Path, federation: str, device: str) -> Callable[[DeviceStatus], DeviceStatus]:
    """Return what signs refusals of a plan or a model in a status, if the device has a key; the rest isn't signed.

    Raises:
        ConfigError: if the key's file is no such key.
    """
    if not has_key(folder):
        return lambda status: status
    key = device_key(folder)

    def envelope(kind: Kind, body: str) -> str:
        return wrap(kind, federation, device, body.encode(), key.sign).decode() if body else ""

    def signed(status: DeviceStatus) -> DeviceStatus:
        refusal = envelope(Kind.REFUSAL, status.refusal)
        unusable = envelope(Kind.MODEL_REFUSAL, status.unusable)
        return status.model_copy(update={"refusal": refusal, "unusable": unusable})

    return signed


def login(settings: BrokerSection, credentials: Credentials | None, device: str) -> Login:
    """Say how to introduce the device: as the config says, else as it was enrolled, else anonymously.

    Raises:
        ConfigError: if the password's file cannot be read.
    """
    if settings.username is not None:
        # the broker binds a device's account to its own name as the client id
        password = revealed(settings.password) or first_line(settings.password_file)
        return Login(settings.username, settings.username, password)
    if credentials is None:
        return Login(device, None, None)
    return Login(credentials.broker.username, credentials.broker.username, credentials.broker.password)


def first_line(path: Path | None, section: str = "broker") -> str | None:
    """Return the first line of a section's password_file, None without one; raises ConfigError if it is unreadable."""
    if path is None:
        return None
    try:
        with path.open(encoding="utf-8") as file:
            return file.readline(MAX_SECRET).rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"[{section}] password_file {path} cannot be read: {error}") from error


OWN_VOUCHER, REVOKED = "voucher", "revoked_identities"
"""Names in the store; both outlive federations that are re-created."""


def keep_voucher(store: StateStore, voucher: str) -> None:
    """Keep this device's own voucher, as the server hands it out; whether it holds is judged where it is shown."""
    if voucher and voucher != store.get(OWN_VOUCHER):
        store.put(**{OWN_VOUCHER: voucher})


def keep_revoked(store: StateStore, settings: SecureSettings, listed: str) -> None:
    """Keep a newer list of revoked identities; an older one, or one that isn't signed, changes nothing."""
    if not listed or settings.voucher is None or listed == store.get(REVOKED):
        return
    key, federation = base64.b64decode(settings.voucher), store.get("federation")
    try:
        serial = read_revoked(key, federation, listed.encode()).serial
    except WireError:
        return
    if serial > _serial(key, federation, store.get(REVOKED)):
        store.put(**{REVOKED: listed})


def _serial(key: bytes, federation: str, listed: str) -> int:
    try:
        return read_revoked(key, federation, listed.encode()).serial if listed else -1
    except WireError:  # of another key, before the person has accepted this one
        return -1


def own_voucher(store: StateStore) -> bytes:
    """Return what this device shows with its keys; empty where nobody vouches for it."""
    return store.get(OWN_VOUCHER).encode()


def voucher_check(store: StateStore, settings: SecureSettings) -> VoucherCheck | None:
    """Return by what the members of a sum are judged; None where the plan names no key that vouches for them."""
    if settings.voucher is None:
        return None
    key, listed = base64.b64decode(settings.voucher), store.get(REVOKED)
    try:
        found = read_revoked(key, store.get("federation"), listed.encode()).identities if listed else ()
    except WireError:
        found = ()
    return VoucherCheck(key, frozenset(map(base64.b64decode, found)), time.time())
