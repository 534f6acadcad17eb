"""Signs what the server says to devices; what is announced holds for a time, and is said again before it is over."""

from __future__ import annotations

import time
from collections.abc import Callable

from federation.plan import Strict
from federation.protocol.messages import write
from federation.protocol.signing import Kind, wrap


class Signer:
    """Signs with the server's key; an announcement holds for `lifetime_s`, and is renewed after half of that."""

    def __init__(
        self, sign: Callable[[bytes], bytes], lifetime_s: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._sign, self._lifetime_s, self._clock = sign, lifetime_s, clock
        self._renewed_at = clock()

    def wrap(self, kind: Kind, federation: str, device: str, message: Strict) -> bytes:
        """Return a message as it is sent; `device` is empty in what is said to all."""
        return wrap(kind, federation, device, write(message), self._sign)

    def expires(self) -> int:
        """Return until when what is announced now holds, in Unix time."""
        return int(self._clock() + self._lifetime_s) + 1

    @property
    def renewed_at(self) -> float:
        """When everything was signed anew, at the latest; Unix time."""
        return self._renewed_at

    def renewal_is_due(self) -> bool:
        """Say once per half lifetime that everything must be announced again."""
        if abs(self._clock() - self._renewed_at) < self._lifetime_s / 2:  # also where the clock was set back
            return False
        self._renewed_at = self._clock()
        return True
