"""Work shared among forked processes: what it needs they inherit, what they make comes back through shared memory.

A fork shares the parent's pages, so neither examples nor parameters are copied or sent. Each worker has a file in
memory of its own into which it lays a result; a pipe says where. A worker that dies is replaced, and its work repeated.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch
from torch import Tensor

from federation.records import Tree
from sim.errors import EngineError
from sim.memory.packing import lay_out, read, write

ATTEMPTS = 3
PATIENCE_S = 5.0

Work = Callable[[int], Tree]


def is_supported() -> bool:
    """Whether this system can fork and has files in memory: Linux."""
    return hasattr(os, "fork") and hasattr(os, "memfd_create")


def forked(
    order: Sequence[int],
    work: Work,
    workers: int,
    name: Callable[[int], str] = str,
    hold: Callable[[Tensor], Tensor] = torch.clone,
) -> Iterator[tuple[int, Tree]]:
    """Yield (number, work(number)) for every number, as they are ready, begun in the given order.

    Each worker has one torch thread. `name` says in errors what a number stands for. `hold` copies a result's bytes,
    uint8 (n,), to where they stay: the worker's next one goes where they came from.

    Raises:
        EngineError: if the work fails, or if its process died three times.
    """
    waiting, deaths, team = deque(order), Counter[int](), list[_Worker]()

    def engage(number: int) -> None:
        worker = _start(work, team)
        team.append(worker)
        worker.give(number)

    try:
        while waiting and len(team) < workers:
            engage(waiting.popleft())
        while team:
            for connection in wait([worker.connection for worker in team]):
                worker = next(one for one in team if one.connection is connection)
                number = worker.number
                try:
                    result = worker.take(name(number), hold)
                except (EOFError, ConnectionError):
                    team.remove(worker)
                    deaths[number] += 1
                    worker.end()
                    if deaths[number] == ATTEMPTS:
                        raise EngineError(_died(name(number), worker.process.exitcode)) from None
                    engage(number)
                    continue
                if waiting:
                    worker.give(waiting.popleft())
                else:
                    team.remove(worker)
                    worker.end()
                yield number, result
    finally:
        for worker in team:
            worker.end()


def _died(what: str, code: int | None) -> str:
    how = f"was ended by {signal.Signals(-code).name}" if code and code < 0 else f"left with exit code {code}"
    return f"{what}: its process {how}, {ATTEMPTS} times; if memory is short, use fewer --workers"


@dataclass
class _Memory:
    """A growing file in memory, mapped by whoever uses it; forks share the file, not the mapping."""

    file: int = field(default_factory=lambda: os.memfd_create("gaitway-results"))
    mapped: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))

    def at_least(self, size: int) -> Tensor:
        """Return its bytes, `size` or more."""
        if len(self.mapped) < size:
            if os.fstat(self.file).st_size < size:
                os.ftruncate(self.file, size)
            length = os.fstat(self.file).st_size
            self.mapped = torch.frombuffer(mmap.mmap(self.file, length), dtype=torch.uint8)
        return self.mapped


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    memory: _Memory
    number: int = -1

    def give(self, number: int) -> None:
        self.number = number
        self.connection.send_bytes(str(number).encode())

    def take(self, what: str, hold: Callable[[Tensor], Tensor]) -> Tree:
        message = json.loads(self.connection.recv_bytes())
        if "error" in message:
            raise EngineError(f"{what}: {message['error']}")
        size = message["size"]
        return read(message["layout"], hold(self.memory.at_least(size)[:size]))

    def end(self) -> None:
        self.connection.close()
        self.process.terminate()
        self.process.join(PATIENCE_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        os.close(self.memory.file)


def _start(work: Work, team: Sequence[_Worker]) -> _Worker:
    context = get_context("fork")
    ours, theirs = context.Pipe()
    memory = _Memory()
    inherited = [*(worker.connection for worker in team), ours]
    process = context.Process(target=_serve, args=(theirs, inherited, memory, work), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours, memory)


def _serve(connection: Connection, inherited: Sequence[Connection], memory: _Memory, work: Work) -> None:
    """Work until the pipe is closed, which it also is when the parent was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in inherited:
        other.close()  # else the pipe of a killed parent would stay open in a sibling
    torch.set_num_threads(1)
    while True:
        try:
            number = int(connection.recv_bytes())
        except EOFError:
            return
        connection.send_bytes(json.dumps(_answer(memory, work, number)).encode())


def _answer(memory: _Memory, work: Work, number: int) -> dict[str, object]:
    try:
        packing = lay_out(work(number))
        write(packing, memory.at_least(packing.size))
    except Exception as error:  # it is the parent's to raise
        return {"error": f"{type(error).__name__}: {error}"}
    return {"layout": packing.layout, "size": packing.size}
