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
from federation.protocol.messages import BlobPointer, ReleaseOrder
from federation.protocol.signing import ModelManifest, read_order, read_seal

NEWEST = "newest_version"
"""Name in the store of the highest version that this device has believed."""
NEWEST_ORDER = "newest_order"
"""Name in the store of the highest serial of an order about releases that this device has believed."""


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
        self._verify(self._key, manifest.to_bytes(), signature, f"model {_short(manifest)}")
        late_s = self._clock() - manifest.expires
        if late_s > 0:
            raise TrustError(
                f"the signature of model {_short(manifest)} expired {late_s:.0f} s ago by this device's clock; "
                f"check the clock, or the server has not announced for long"
            )
        self._refuse_older(manifest)

    def check_order(self, order: ReleaseOrder, instance: str) -> None:
        """Let an order about releases pass; it may name an older model, but must not itself be older than another.

        Raises:
            TrustError: saying what is wrong with it.
        """
        if self._key is None:
            return
        try:
            said, signature = read_order(order, federation=self._federation, instance=instance)
        except WireError as error:
            raise TrustError(f"{error}, but this device has enrolled and obeys only what its server signs") from error
        self._verify(self._key, said, signature, "the order about releases")
        if order.expires is not None and self._clock() > order.expires:
            raise TrustError("the order about releases has expired by this device's clock; check the clock")
        with closing(Store(self._folder)) as store:
            newest = int(store.get(NEWEST_ORDER) or -1)
            if order.serial < newest:
                raise TrustError(f"the order about releases has serial {order.serial}, this device has seen {newest}")
            if order.serial > newest:
                store.put(**{NEWEST_ORDER: str(order.serial)})

    def _verify(self, key: bytes, said: bytes, signature: bytes, what: str) -> None:
        try:
            Ed25519PublicKey.from_public_bytes(key).verify(signature, said)
        except InvalidSignature as error:
            raise TrustError(
                f"{what} is not signed by this device's server for federation {self._federation!r}; "
                f"if the server has a new key, enrol this device anew"
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
