"""A bad network: a proxy before a broker that cuts its connections in the middle of what they carry."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PIECE = 512


class BadNetwork:
    """Forwards to a port on this machine; each connection is cut once it has carried so many bytes up."""

    def __init__(self, target: int, cut_after: list[int]) -> None:
        self._target, self._cut_after = target, list(cut_after)
        self.cuts: list[int] = []
        """How much each connection that was cut had carried."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        """End every connection."""
        for one in [self._listener, *self._open]:
            _end(one)

    def _accept(self) -> None:
        while True:
            try:
                device, _ = self._listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(("127.0.0.1", self._target), timeout=5)
            except OSError:
                _end(device)
                continue
            broker.settimeout(None)
            self._open += [device, broker]
            limit = self._cut_after.pop(0) if self._cut_after else None
            threading.Thread(target=self._carry, args=(device, broker, limit), daemon=True).start()
            threading.Thread(target=self._carry, args=(broker, device, None), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, limit: int | None) -> None:
        carried = 0
        with suppress(OSError):
            while data := source.recv(PIECE):
                if limit is not None and carried + len(data) > limit:
                    sink.sendall(data[: limit - carried])  # half a packet arrives
                    self.cuts.append(limit)
                    break
                sink.sendall(data)
                carried += len(data)
        _end(source)
        _end(sink)


@contextmanager
def bad_network(target: int, cut_after: list[int]) -> Iterator[BadNetwork]:
    """Run a proxy."""
    network = BadNetwork(target, cut_after)
    try:
        yield network
    finally:
        network.close()


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
