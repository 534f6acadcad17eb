"""Distributes work among forked processes, which inherit its input and return results through shared memory.

A fork shares the parent's pages, so neither examples nor parameters are copied or sent. A worker says through a pipe
how large a result is, is told where in the parent's shared memory it goes, and writes it there: the one copy on its
way. A worker that dies is replaced, and its work repeated.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

import torch

from federation.records import Tree
from gaitway.errors import GaitwayError
from sim.engines.shared_memory import Layout, MmapArena, Packing, Slot, read
from sim.errors import ClientStoreError, EngineError

ATTEMPTS = 3
EXIT_TIMEOUT_S = 5.0

Work = Callable[[int], Tree]


def is_supported() -> bool:
    """Whether this system can fork and has files in memory: Linux."""
    return hasattr(os, "fork") and hasattr(os, "memfd_create")


def fork_map(
    order: Sequence[int],
    work: Work,
    workers: int,
    name: Callable[[int], str] = str,
    arena: MmapArena | None = None,
) -> Iterator[tuple[int, Tree]]:
    """Yield (number, work(number)) for every number, as they are ready, begun in the given order.

    Each worker has one torch thread. `name` says in errors what a number stands for. Results are views of slots of
    `arena`, in memory, which are free again with the last tensor that refers to them.

    Raises:
        EngineError: if the work fails, or if its process died three times.
    """
    waiting, deaths, team = deque(order), Counter[int](), list[_Worker]()
    arena = arena or MmapArena(None)

    def engage(number: int) -> None:
        worker = _start(work, arena, team)
        team.append(worker)
        worker.begin(number)

    try:
        while waiting and len(team) < workers:
            engage(waiting.popleft())
        while team:
            for connection in wait([worker.connection for worker in team]):
                worker = next(member for member in team if member.connection is connection)
                number = worker.number
                try:
                    result = worker.answered(name, arena)
                except (EOFError, ConnectionError):
                    team.remove(worker)
                    worker.end()
                    deaths[number] += 1
                    if deaths[number] == ATTEMPTS:
                        raise EngineError(_died(name(number), worker.process.exitcode)) from None
                    engage(number)
                    continue
                if result is None:
                    continue
                if waiting:
                    worker.begin(waiting.popleft())
                else:
                    team.remove(worker)
                    worker.stop()
                yield number, result
    finally:
        for worker in team:
            worker.end()


def _died(what: str, code: int | None) -> str:
    how = f"was ended by {signal.Signals(-code).name}" if code and code < 0 else f"left with exit code {code}"
    return f"{what}: its process {how}, {ATTEMPTS} times; if memory is short, use fewer --workers"


@dataclass
class _Worker:
    """The parent's side of a fork, which has one piece of work at a time."""

    process: BaseProcess
    connection: Connection
    number: int = -1
    result: tuple[Layout, Slot] | None = None  # its layout, and where it is being written

    def begin(self, number: int) -> None:
        self.number, self.result = number, None
        self._say(number)

    def answered(self, name: Callable[[int], str], arena: MmapArena) -> Tree | None:
        """Hear what the worker says: how large the result is, then that it is written. Return it then."""
        message = json.loads(self.connection.recv_bytes())
        if "error" in message:
            raise EngineError(f"{name(self.number)}: {message['error']}")
        if self.result is None:
            self.result = message["layout"], arena.reserve(message["size"])
            self._say(self.result[1].position)
            return None
        layout, slot = self.result
        tree: Tree = read(layout, slot.memory)
        return tree

    def stop(self) -> None:
        """Let an idle worker go; nobody waits until the kernel has taken its memory back."""
        self.connection.close()
        self.process.terminate()

    def end(self) -> None:
        """End a worker at its work: when this returns, it writes nowhere any more."""
        self.stop()
        self.process.join(EXIT_TIMEOUT_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def _say(self, number: int) -> None:
        self.connection.send_bytes(str(number).encode())


def _start(work: Work, arena: MmapArena, team: Sequence[_Worker]) -> _Worker:
    context = get_context("fork")
    ours, theirs = context.Pipe()
    inherited = [*(worker.connection for worker in team), ours]
    process = context.Process(target=_serve, args=(theirs, inherited, work, arena), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _serve(connection: Connection, inherited: Sequence[Connection], work: Work, arena: MmapArena) -> None:
    """Work until the pipe is closed, which it also is when the parent was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in inherited:
        other.close()  # else the pipe of a killed parent would stay open in a sibling
    torch.set_num_threads(1)
    with suppress(EOFError, ConnectionError):
        while True:
            _send(connection, _answer(int(connection.recv_bytes()), connection, work, arena))


def _answer(number: int, connection: Connection, work: Work, arena: MmapArena) -> dict[str, Any]:
    """Do one piece of work, ask the parent where its result goes, and write it there; return the last word on it."""
    try:
        packing = Packing(work(number))
    except Exception as error:  # it is the parent's to raise
        words = str(error) if isinstance(error, GaitwayError) else f"{type(error).__name__}: {error}"
        return {"error": words}
    _send(connection, {"layout": packing.layout, "size": packing.size})
    position = int(connection.recv_bytes())
    try:
        arena.store(packing, position)
    except ClientStoreError as error:
        return {"error": str(error)}
    return {}


def _send(connection: Connection, message: dict[str, Any]) -> None:
    connection.send_bytes(json.dumps(message).encode())


T = TypeVar("T")

PART = 1000
"""Clients that a worker pool sees.

Whoever looks at an object counts a reference, and a fork that writes copies the page: of every client that it trains,
some 14 kB. At 10,000 clients that were 100 MB and more; a new pool takes some hundredths of a second.
"""


def batched(ordered: Sequence[T]) -> Iterator[Sequence[T]]:
    """Cut into stretches of at most `PART`."""
    for start in range(0, len(ordered), PART):
        yield ordered[start : start + PART]
