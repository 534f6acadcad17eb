"""Values that are made when they are asked for: thousands of clients' views, jobs and updates at once are memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar, overload

S = TypeVar("S")
T = TypeVar("T")


class LazyMapping(Mapping[str, T]):
    """A value for each name; made anew every time."""

    def __init__(self, names: Iterable[str], make: Callable[[str], T]) -> None:
        self._names, self._make = dict.fromkeys(names), make

    def __getitem__(self, name: str) -> T:
        if name not in self._names:
            raise KeyError(name)
        return self._make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class LazySequence(Sequence[T], Generic[S, T]):
    """A value for each of some others, in their order; made anew every time."""

    def __init__(self, others: Sequence[S], make: Callable[[S], T]) -> None:
        self._others, self._make = others, make

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> LazySequence[S, T]: ...
    def __getitem__(self, index: int | slice) -> T | LazySequence[S, T]:
        if isinstance(index, slice):
            return LazySequence(self._others[index], self._make)
        return self._make(self._others[index])

    def __len__(self) -> int:
        return len(self._others)
