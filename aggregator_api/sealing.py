"""Seals what devices are to load, and signs which of it they are to use; both for a time."""

from __future__ import annotations

import time
from collections.abc import Callable

from federation.protocol.messages import BlobPointer, ReleaseOrder
from federation.protocol.signing import sealed, signed_order


class Sealer:
    """Signs with the server's key; a seal holds for `lifetime_s`, and is renewed after half of that.

    The version is the model version's row number: it rises with every model of this database, whatever federation
    it belongs to, and also where a federation is founded anew.
    """

    def __init__(
        self, sign: Callable[[bytes], bytes], lifetime_s: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._sign, self._lifetime_s, self._clock = sign, lifetime_s, clock
        self._renewed_at = clock()

    def seal(self, pointer: BlobPointer, federation: str, instance: str, version: int) -> BlobPointer:
        """Return the pointer with a seal for the devices of that federation."""
        expires = self._expires()
        return sealed(
            pointer, federation=federation, instance=instance, version=version, expires=expires, sign=self._sign
        )

    def sign_order(self, order: ReleaseOrder, federation: str, instance: str) -> ReleaseOrder:
        """Return the order about releases with its time of expiry and a signature."""
        lasting = order.model_copy(update={"expires": self._expires()})
        return signed_order(lasting, federation=federation, instance=instance, sign=self._sign)

    def _expires(self) -> int:
        step_s = max(1, int(self._lifetime_s / 100))  # in steps, so that the same model is said in the same bytes
        return (int(self._clock() + self._lifetime_s) // step_s + 1) * step_s

    def renewal_is_due(self) -> bool:
        """Say once per half lifetime that everything must be announced again."""
        if abs(self._clock() - self._renewed_at) < self._lifetime_s / 2:  # also where the clock was set back
            return False
        self._renewed_at = self._clock()
        return True
