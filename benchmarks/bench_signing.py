"""What signing and verifying costs in CPU time; a message of usual size must stay under a millisecond at each end.

Example: `python benchmarks/bench_signing.py`
"""

from __future__ import annotations

import time
from collections.abc import Callable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from federation.protocol.signing import Kind, to_sign, unwrap, wrap

LIMIT_US = 1000.0
SIZES = {"acknowledgement": 150, "manifest": 600, "announcement": 3_000, "the largest message": 256 * 1024}
REPEATS, TRIES = 300, 5


def microseconds(call: Callable[[], object]) -> float:
    """Time one call: in CPU time, the best of several tries."""
    best = float("inf")
    for _ in range(TRIES):
        began = time.process_time()
        for _ in range(REPEATS):
            call()
        best = min(best, (time.process_time() - began) / REPEATS)
    return best * 1e6


def main() -> None:
    """Print a line for each size, and end with an error where one is over the limit."""
    key = Ed25519PrivateKey.generate()
    public = key.public_key()
    slow = []
    for name, size in SIZES.items():
        body = b"x" * size
        message = wrap(Kind.UPDATE, "walks", "phone1", body, key.sign)

        def verify(message: bytes = message) -> None:
            found, signature = unwrap(message)
            public.verify(signature or b"", to_sign(Kind.UPDATE, "walks", "phone1", found))

        sign_us = microseconds(lambda body=body: wrap(Kind.UPDATE, "walks", "phone1", body, key.sign))
        verify_us = microseconds(verify)
        print(f"{name:<20} {size:>7,} bytes: sign {sign_us:7.1f} µs, verify {verify_us:7.1f} µs")
        if size <= 3_000 and max(sign_us, verify_us) > LIMIT_US:
            slow.append(name)
    if slow:
        raise SystemExit(f"over {LIMIT_US:.0f} µs: {', '.join(slow)}")


if __name__ == "__main__":
    main()
