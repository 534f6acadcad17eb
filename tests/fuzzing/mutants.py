"""What was valid, changed in a few places by a seeded generator: it comes further than random bytes do."""

from __future__ import annotations

import json
import random
from typing import Any

HOSTILE: tuple[Any, ...] = (
    0, -1, 1, 2**31, 2**53, 2**63, 2**64 - 1, 10**30, 10**4000, 0.5, -0.0, 1e308, -1e308, 5e-324, float("nan"),
    float("inf"), "", " ", "0", "-1", "1e9", "nan", "x" * 200, "x" * 5000, "\0", "\ud800", "é", "../../etc/passwd", "+",
    "#", "a/b", "__metadata__", None, True, False, [], {}, [None], {"": None}, [[[[[[]]]]]], {"x": {"x": {"x": 1}}},
)  # fmt: skip
LENGTHS = (0, 1, 7, 255, 2**16, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1)
DEEP = b"[" * 3000
"""What a parser that recurses would fall over."""


def bytes_of(rng: random.Random, valid: bytes, others: tuple[bytes, ...] = ()) -> bytes:
    """Change, insert, cut out, repeat, swap or cut off some bytes of what was valid."""
    data = bytearray(valid)
    for _ in range(rng.randint(1, 4)):
        at, length = rng.randint(0, len(data)), rng.choice((1, 2, 8, 64, 400))
        match rng.randrange(9):
            case 0:
                data[at : at + 1] = bytes((rng.randrange(256),))
            case 1 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 2:
                data[at:at] = rng.randbytes(rng.randint(1, 16))
            case 3:
                del data[at : at + length]
            case 4:
                data[at:at] = data[at : at + length] * rng.choice((1, 1, 1, 20))
            case 5:
                del data[at:]
            case 6:  # lengths and places are often said in so many bytes
                width = rng.choice((1, 2, 4, 8))
                number = rng.choice(LENGTHS) if rng.random() < 0.7 else rng.getrandbits(64)
                data[at : at + width] = (number % 256**width).to_bytes(width, "little")
            case 7:
                data[:8] = rng.choice((*LENGTHS, rng.randrange(2000))).to_bytes(8, "little")
            case 8 if others:
                other = rng.choice(others)
                data[at:] = other[rng.randint(0, len(other)) :]
    return bytes(data)


def value_of(rng: random.Random, valid: Any) -> Any:
    """Return a copy of some JSON with a few of its values, names or lengths changed, at any depth."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        valid = _changed(rng, valid)
    return valid


def json_of(rng: random.Random, valid: Any) -> bytes:
    """Return valid JSON changed in its values, in its bytes, or in both."""
    how = rng.random()
    text = json.dumps(valid if how < 0.2 else value_of(rng, valid)).encode()
    if how < 0.35:
        text = bytes_of(rng, text)
    if how > 0.99:
        at = rng.randint(0, len(text))
        text = text[:at] + DEEP + text[at:]
    return text


def hostile(rng: random.Random) -> Any:
    """Return a value that somebody may have forgotten."""
    match rng.randrange(6):
        case 0:
            return rng.choice((1, -1)) * rng.getrandbits(rng.choice((8, 31, 53, 64, 100)))
        case 1:
            return rng.uniform(-1, 1) * 10.0 ** rng.randint(-300, 300)
        case 2:
            return "".join(chr(rng.randrange(0x300)) for _ in range(rng.randrange(12)))
    return rng.choice(HOSTILE)


def _changed(rng: random.Random, value: Any) -> Any:
    inside = isinstance(value, dict | list) and len(value) > 0 and rng.random() < 0.85
    if inside and isinstance(value, dict):
        return _changed_dict(rng, value)
    if inside:
        return _changed_list(rng, value)
    match rng.randrange(5):
        case 0:
            return [value]
        case 1 if isinstance(value, int | float) and not isinstance(value, bool):
            return value + rng.choice((1, -1, 0.5, 1e-9, 2**31)) if abs(value) < 1e300 else -value
        case 2 if isinstance(value, int | float):
            return str(value) if abs(value) < 1e300 else "1"
    return hostile(rng)


def _changed_dict(rng: random.Random, value: dict[str, Any]) -> dict[str, Any]:
    changed, name = dict(value), rng.choice(list(value))
    match rng.randrange(8):
        case 0:
            del changed[name]
        case 1:
            changed[str(hostile(rng))[:300] if rng.random() < 0.5 else name.upper()] = changed.pop(name)
        case 2:
            changed[f"more{rng.randrange(1000)}"] = hostile(rng)
        case _:
            changed[name] = _changed(rng, changed[name])
    return changed


def _changed_list(rng: random.Random, value: list[Any]) -> list[Any]:
    changed, at = list(value), rng.randrange(len(value))
    match rng.randrange(8):
        case 0:
            del changed[at]
        case 1:
            changed.insert(at, changed[rng.randrange(len(value))])
        case 2:
            changed = changed * rng.choice((2, 3, 30)) if len(changed) < 100 else changed[:1]
        case 3:
            rng.shuffle(changed)
        case _:
            changed[at] = _changed(rng, changed[at])
    return changed
