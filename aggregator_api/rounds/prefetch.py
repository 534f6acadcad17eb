"""Reading and decoding a few things ahead, while the one before them is at work."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Name = TypeVar("Name")
Thing = TypeVar("Thing")

AHEAD = 2


def prefetch(names: Iterable[Name], read: Callable[[Name], Thing]) -> Iterator[Thing]:
    """Yield what `read` makes of each name, in order; it runs on another thread, at most `AHEAD` things early."""
    left = iter(names)
    with ThreadPoolExecutor(1, "read-ahead") as executor:
        coming: deque[Future[Thing]] = deque()
        try:
            while True:
                while len(coming) < AHEAD and (name := next(left, None)) is not None:
                    coming.append(executor.submit(read, name))
                if not coming:
                    return
                yield coming.popleft().result()
        finally:
            for future in coming:
                future.cancel()
