"""Whom a device believes about models: the server whose key it got when it enrolled, and no older model than before.

Checked before a byte is downloaded. A device that has not enrolled has no key, and believes its broker.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from edge_agent.errors import TrustError
from edge_agent.store import Store
from federation.errors import WireError
from federation.protocol.messages import BlobPointer
from federation.protocol.signing import ModelManifest, read_seal

NEWEST = "newest_version"
"""Name in the store of the highest version that this device has believed."""


class Trust:
    """The check of one device of one federation; any thread may ask."""

    def __init__(
        self, folder: Path, federation: str, server_key: bytes | None, clock: Callable[[], float] = time.time
    ) -> None:
        self._folder, self._federation, self._key, self._clock = folder, federation, server_key, clock

    def check(self, pointer: BlobPointer, instance: str) -> None:
        """Let a pointer pass that the server has signed for this federation, that is not out of date, and not older.

        Raises:
            TrustError: saying what is wrong with it.
        """
        if self._key is None:
            return
        try:
            manifest, signature = read_seal(pointer, federation=self._federation, instance=instance)
        except WireError as error:
            raise TrustError(f"{error}, but this device has enrolled and takes only what its server signs") from error
        self._verify(self._key, manifest, signature)
        late_s = self._clock() - manifest.expires
        if late_s > 0:
            raise TrustError(
                f"the signature of model {_short(manifest)} expired {late_s:.0f} s ago by this device's clock; "
                f"check the clock, or the server has not announced for long"
            )
        self._refuse_older(manifest)

    def _verify(self, key: bytes, manifest: ModelManifest, signature: bytes) -> None:
        try:
            Ed25519PublicKey.from_public_bytes(key).verify(signature, manifest.to_bytes())
        except InvalidSignature as error:
            raise TrustError(
                f"model {_short(manifest)} is not signed by this device's server for federation "
                f"{self._federation!r}; if the server has a new key, enrol this device anew"
            ) from error

    def _refuse_older(self, manifest: ModelManifest) -> None:
        with closing(Store(self._folder)) as store:
            newest = int(store.get(NEWEST) or -1)
            if manifest.version < newest:
                raise TrustError(
                    f"model {_short(manifest)} is version {manifest.version}, and this device has seen {newest}: "
                    f"it goes back to no older one"
                )
            if manifest.version > newest:
                store.put(**{NEWEST: str(manifest.version)})


def _short(manifest: ModelManifest) -> str:
    return f"{manifest.sha256[:12]}…"
