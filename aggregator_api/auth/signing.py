"""The server's ed25519 key, and the signatures on what it sends to devices (RFC 8032)."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from aggregator_api.core.errors import ConfigError
from federation.plan import Strict
from federation.protocol.messages import write
from federation.protocol.signing import Kind, wrap
from gaitway.files import FILE, private_folder, write_file

PUBLIC_KEY_BYTES = 32
SIGNATURE_BYTES = 64


class Identity:
    """The key pair in a PEM file, which is read, or made, on first use.

    Devices store the public half when they enrol, so the file belongs in the backup, and all server processes of one
    database share it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def public_key(self) -> bytes:
        """The raw public key, 32 bytes."""
        return self._key.public_key().public_bytes_raw()

    def load(self) -> None:
        """Read or make the key now, because a server that can't sign must not start.

        Raises:
            ConfigError: as `sign`.
        """
        _ = self._key  # read once, then cached

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message, 64 bytes.

        Raises:
            ConfigError: if the file can't be read or made, or isn't an ed25519 key.
        """
        return self._key.sign(message)

    @cached_property
    def _key(self) -> Ed25519PrivateKey:
        try:
            if not self.path.exists():
                _create(self.path)
            found = load_pem_private_key(self.path.read_bytes(), password=None)
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise ConfigError(
                f"the server's key {self.path} cannot be used: {error}; restore it from a backup"
            ) from error
        if not isinstance(found, Ed25519PrivateKey):
            raise ConfigError(f"{self.path} holds a {type(found).__name__}, expected an ed25519 key")
        return found


def verify(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether a raw public key (32 bytes) made that signature (64 bytes) of the message."""
    if len(public_key) != PUBLIC_KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def write_secret(path: Path, data: bytes) -> bool:
    """Write a file that only its owner can read, atomically; return False if the file exists."""
    private_folder(path.parent)
    try:
        write_file(path, data, mode=FILE, replace=False)
    except FileExistsError:
        return False
    return True


def _create(path: Path) -> None:
    pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_secret(path, pem)  # if another process was faster, its key is the one


class Signer:
    """Signs with the server's key; an announcement is valid for `lifetime_s`, and is renewed after half of that."""

    def __init__(
        self, sign: Callable[[bytes], bytes], lifetime_s: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._sign, self._lifetime_s, self._clock = sign, lifetime_s, clock
        self._renewed_at = clock()

    def wrap(self, kind: Kind, federation: str, device: str, message: Strict) -> bytes:
        """Return a signed message; `device` is empty if it is for all devices."""
        return wrap(kind, federation, device, write(message), self._sign)

    def expires(self) -> int:
        """Return the expiry of an announcement made now, in Unix time."""
        return int(self._clock() + self._lifetime_s) + 1

    @property
    def renewed_at(self) -> float:
        """Time of the last complete renewal, in Unix time."""
        return self._renewed_at

    def renewal_is_due(self) -> bool:
        """Return True once per half lifetime, when everything must be announced again."""
        if abs(self._clock() - self._renewed_at) < self._lifetime_s / 2:  # also after the clock was set back
            return False
        self._renewed_at = self._clock()
        return True
