"""What the server signs of a model that a device is to load, as bytes; the keys are each end's own.

The signature is ed25519 (RFC 8032) over `gaitway-model/v1`, a line break, and the manifest as canonical JSON: keys
sorted, no spaces, ASCII. What the pointer and the message around it say already does not travel twice.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

from pydantic import Field

from federation.errors import WireError
from federation.plan import Name, Strict
from federation.protocol.messages import BlobPointer, Instance, Seal, Sha256

PURPOSE = b"gaitway-model/v1\n"
"""Keeps this signature from meaning anything elsewhere."""


class ModelManifest(Strict):
    """A model that a device may load: of which federation and founding, which bytes, and until when."""

    federation: Name
    instance: Instance
    version: int = Field(ge=0, lt=1 << 53)
    sha256: Sha256
    size: int = Field(ge=0)
    expires: int = Field(ge=0, lt=1 << 53)

    def to_bytes(self) -> bytes:
        """Return what is signed."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return PURPOSE + text.encode("ascii")


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
        expires=seal.expires,
    )
    return manifest, base64.b64decode(seal.signature)
