"""Whom a device believes about models: the server whose key it got when it enrolled, and no older model than before.

Checked before a byte is downloaded. A device that has not enrolled has no key, and believes its broker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from edge_agent.errors import TrustError
from edge_agent.store import Store
from federation.errors import WireError
from federation.protocol.messages import BlobPointer, ReleaseOrder
from federation.protocol.signing import read_order, read_seal

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
        with _only_signed():
            manifest, signature = read_seal(pointer, federation=self._federation, instance=instance)
        what = f"model {manifest.sha256[:12]}…"
        self._verify(self._key, what, manifest.to_bytes(), signature)
        self._refuse_late(what, manifest.expires)
        self._refuse_older(what, "version", manifest.version, NEWEST)

    def check_order(self, order: ReleaseOrder, instance: str) -> None:
        """Let an order about releases pass; it may name an older model, but must not itself be older than another.

        Raises:
            TrustError: saying what is wrong with it.
        """
        if self._key is None:
            return
        with _only_signed():
            said, signature = read_order(order, federation=self._federation, instance=instance)
        what = "the order about releases"
        self._verify(self._key, what, said, signature)
        self._refuse_late(what, order.expires or 0)
        self._refuse_older(what, "number", order.serial, NEWEST_ORDER)

    def _verify(self, key: bytes, what: str, said: bytes, signature: bytes) -> None:
        try:
            Ed25519PublicKey.from_public_bytes(key).verify(signature, said)
        except InvalidSignature as error:
            raise TrustError(
                f"{what} is not signed by this device's server for federation {self._federation!r}; "
                f"if the server has a new key, enrol this device anew"
            ) from error

    def _refuse_late(self, what: str, expires: int) -> None:
        late_s = self._clock() - expires
        if late_s > 0:
            raise TrustError(
                f"the signature of {what} expired {late_s:.0f} s ago by this device's clock; "
                f"check the clock, or the server has not announced for long"
            )

    def _refuse_older(self, what: str, counted: str, number: int, name: str) -> None:
        with closing(Store(self._folder)) as store:
            newest = int(store.get(name) or -1)
            if number < newest:
                raise TrustError(
                    f"{what} is {counted} {number}, and this device has seen {newest}: it goes back to no older one"
                )
            if number > newest:
                store.put(**{name: str(number)})


@contextmanager
def _only_signed() -> Iterator[None]:
    try:
        yield
    except WireError as error:
        raise TrustError(f"{error}, but this device has enrolled and takes only what its server signs") from error
