"""Independent random streams named by purpose, so that adding a client doesn't change others' draws."""

from __future__ import annotations

import hashlib

import numpy as np


def seed_for(seed: int, *names: str | int) -> int:
    """Derive a 63-bit seed from the run's seed and a path of names, such as ("order", client, round)."""
    text = "\x1f".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *names: str | int) -> np.random.Generator:
    """Return numpy's generator for the stream of that name."""
    return np.random.Generator(np.random.PCG64(seed_for(seed, *names)))


def noise_seed(seed: int, client_id: str, round_number: int, name: str, bits: int) -> int:
    """Return where the dropout counter of that name starts in a client's round, a number of so many bits."""
    return seed_for(seed, "noise", client_id, round_number, name) % (1 << bits)
