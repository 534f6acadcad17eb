"""Masks that cancel in the sum, from full 256-bit keys of `cryptography`; nothing here is home-made.

Two neighbours agree on a key by X25519 (RFC 7748) and HKDF with SHA-256 (RFC 5869); its stream is AES-256 in counter
mode, read as whole numbers mod 2³² or 2⁶⁴. A key is of one round, one pair and one purpose, so it has one stream.
"""

from __future__ import annotations

import functools
from typing import Literal

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from federation.errors import WireError

Bits = Literal[32, 64]
RingVector = NDArray[np.unsignedinteger]
"""Whole numbers mod 2^bits, little endian."""

KEY_BYTES = 32
TAG_BYTES = 16
_LABEL = b"gaitway-secure-sums/1\n"
_NONCE = bytes(12)  # a key seals one text


def public_of(secret: bytes) -> bytes:
    """Return the X25519 public key of 32 random bytes."""
    return private_key(secret).public_key().public_bytes_raw()


def private_key(secret: bytes) -> X25519PrivateKey:
    """Return 32 random bytes as a private key: made once for many neighbours, since it takes as long as agreeing."""
    return X25519PrivateKey.from_private_bytes(secret)


def pair_key(private: X25519PrivateKey, public: bytes, purpose: bytes) -> bytes:
    """Return the key that two agree on, for one purpose, which names round and pair.

    Raises:
        WireError: if the public key is of small order, so that everybody knows what they agree on.
    """
    try:
        shared = private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise WireError("a public key has small order, so its shared secrets are public") from error
    return derived(shared, purpose)


def derived(secret: bytes, purpose: bytes) -> bytes:
    """Return a key of a secret for one purpose."""
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=_LABEL + purpose).derive(secret)


def dtype_of(bits: Bits) -> np.dtype[np.unsignedinteger]:
    """Return the numbers of the ring as they lie in memory and on the wire."""
    return np.dtype(f"<u{bits // 8}")


def stream(key: bytes, length: int, bits: Bits) -> RingVector:
    """Return so many numbers of a key's stream."""
    size = length * bits // 8
    out = bytearray(size + 15)  # a cipher wants room for one block more
    Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update_into(_zeros(size), out)
    return np.frombuffer(out, dtype_of(bits), count=length)


@functools.lru_cache(maxsize=2)
def _zeros(size: int) -> bytes:
    return bytes(size)


def seal(key: bytes, text: bytes, bound_to: bytes) -> bytes:
    """Encrypt a text under a key that is used once (AES-256-GCM)."""
    return AESGCM(key).encrypt(_NONCE, text, bound_to)


def unseal(key: bytes, sealed: bytes, bound_to: bytes) -> bytes | None:
    """Decrypt; None for what was not sealed under this key and bound to that."""
    try:
        return AESGCM(key).decrypt(_NONCE, sealed, bound_to)
    except InvalidTag:
        return None
