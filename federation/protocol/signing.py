"""What the server signs of a model that a device is to load or use, as bytes; the keys are each end's own.

The signature is ed25519 (RFC 8032) over `gaitway-model/v1`, a line break, and the manifest as canonical JSON: keys
sorted, no spaces, ASCII. What the pointer and the message around it say already does not travel twice.
An order about releases is signed in the same way, after `gaitway-release/v1`: all of it but the signature, with the
federation and the instance.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

from pydantic import Field

from federation.errors import WireError
from federation.plan import Name, Strict
from federation.protocol.messages import BlobPointer, Instance, ReleaseOrder, Seal, Sha256, VersionScore

PURPOSE = b"gaitway-model/v1\n"
"""Keeps this signature from meaning anything elsewhere."""
RELEASE_PURPOSE = b"gaitway-release/v1\n"


class ModelManifest(Strict):
    """A model that a device may load: of which federation and founding, which bytes, how good, and until when."""

    federation: Name
    instance: Instance
    version: int = Field(ge=0, lt=1 << 53)
    sha256: Sha256
    size: int = Field(ge=0)
    score: VersionScore | None = None
    expires: int = Field(ge=0, lt=1 << 53)

    def to_bytes(self) -> bytes:
        """Return what is signed."""
        return PURPOSE + _canonical(self.model_dump(mode="json"))


def sealed(
    pointer: BlobPointer, *, federation: str, instance: str, version: int, expires: int, sign: Callable[[bytes], bytes]
) -> BlobPointer:
    """Return the pointer with a seal; `sign` is the server's, and returns 64 bytes."""
    manifest = ModelManifest(
        federation=federation,
        instance=instance,
        version=version,
        sha256=pointer.sha256,
        size=pointer.size,
        score=pointer.score,
        expires=expires,
    )
    signature = base64.b64encode(sign(manifest.to_bytes())).decode()
    return pointer.model_copy(update={"seal": Seal(version=version, expires=expires, signature=signature)})


def read_seal(pointer: BlobPointer, *, federation: str, instance: str) -> tuple[ModelManifest, bytes]:
    """Return the manifest that a pointer claims in its place, and the signature to verify over its bytes.

    Raises:
        WireError: if the pointer has no seal.
    """
    seal = pointer.seal
    if seal is None:
        raise WireError(f"the pointer to model {pointer.sha256[:12]}… is not signed")
    manifest = ModelManifest(
        federation=federation,
        instance=instance,
        version=seal.version,
        sha256=pointer.sha256,
        size=pointer.size,
        score=pointer.score,
        expires=seal.expires,
    )
    return manifest, base64.b64decode(seal.signature)


def signed_order(
    order: ReleaseOrder, *, federation: str, instance: str, sign: Callable[[bytes], bytes]
) -> ReleaseOrder:
    """Return an order, which says when it expires, with its signature; `sign` is the server's, and returns 64 bytes."""
    signature = base64.b64encode(sign(_order_bytes(order, federation, instance))).decode()
    return order.model_copy(update={"signature": signature})


def read_order(order: ReleaseOrder, *, federation: str, instance: str) -> tuple[bytes, bytes]:
    """Return the bytes that an order claims to be signed over, and the signature to verify.

    Raises:
        WireError: if the order has no signature.
    """
    if order.signature is None or order.expires is None:
        raise WireError("the order about releases is not signed")
    return _order_bytes(order, federation, instance), base64.b64decode(order.signature)


def _order_bytes(order: ReleaseOrder, federation: str, instance: str) -> bytes:
    said = order.model_dump(mode="json", exclude={"signature"})
    return RELEASE_PURPOSE + _canonical({**said, "federation": federation, "instance": instance})


def _canonical(tree: dict[str, Any]) -> bytes:
    return json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")
