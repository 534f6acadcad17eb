"""Values that are made when they are asked for: thousands of clients' views, jobs and updates at once are memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar, overload

T = TypeVar("T")


class Mapped(Mapping[str, T]):
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


class Listed(Sequence[T]):
    """A value for each name, in the order of the names; made anew every time."""

    def __init__(self, names: Sequence[str], make: Callable[[str], T]) -> None:
        self._names, self._make = names, make

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Listed[T]: ...
    def __getitem__(self, index: int | slice) -> T | Listed[T]:
        if isinstance(index, slice):
            return Listed(self._names[index], self._make)
        return self._make(self._names[index])

    def __len__(self) -> int:
        return len(self._names)
