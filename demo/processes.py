"""The demo's programs, which end with a `with` block however it is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gaitway.errors import GaitwayError

GRACE_S = 8.0
INTERRUPT_GRACE_S = 0.4  # a person waits after Ctrl-C, and programs that are killed lose nothing
TIMEOUT_S, POLL_S = 900.0, 0.5
UNTIL_FINISHED = "--until-finished"  # the option of an agent that may end by itself
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class DemoError(GaitwayError):
    """The demo can't continue; the message says what to do."""


@dataclass
class Programs:
    """The programs of the demo by name; leaving the `with` block ends those that still run."""

    logs: Path
    started: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __enter__(self) -> Programs:
        """Turn signals into exceptions, so that the block is left when they arrive."""
        for number in SIGNALS[1:]:
            signal.signal(number, signal.default_int_handler)
        self.logs.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        """End every program; another Ctrl-C is ignored, because it would leave programs running."""
        before = [signal.signal(number, signal.SIG_IGN) for number in SIGNALS]
        try:
            self.end(self.started, INTERRUPT_GRACE_S if isinstance(error, KeyboardInterrupt) else GRACE_S)
        finally:
            for number, handler in zip(SIGNALS, before, strict=True):
                signal.signal(number, handler)

    def start(self, name: str, module: str, *arguments: str) -> None:
        """Run `python -m module arguments` with its output in a log file."""
        with (self.logs / f"{name}.log").open("ab") as output:
            self.started[name] = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches the demo alone, which then ends the program's whole group
            )

    def check(self) -> None:
        """Raise a DemoError with the end of its log if a program has failed, or ended although it should run."""
        for name, process in self.started.items():
            status = process.poll()
            if status is not None and (status or UNTIL_FINISHED not in process.args):
                log = self.logs / f"{name}.log"
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
                raise DemoError(f"{name} ended with status {status}. The end of {log}:\n{tail}")

    def ticks(self, awaited: str, timeout_s: float = TIMEOUT_S) -> Iterator[None]:
        """Yield now and then; raise a DemoError once a program has failed or the time is over."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self.check()
            yield
            time.sleep(POLL_S)
        raise DemoError(f"{awaited} took more than {timeout_s:.0f} s; see {self.logs}")

    def end(self, names: Iterable[str], grace_s: float = GRACE_S) -> None:
        """Ask programs to end, and kill what is left of their groups after a grace period."""
        chosen = {name: self.started[name] for name in names}
        for process in chosen.values():
            _signal_group(process, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        for name, process in chosen.items():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            _signal_group(process, signal.SIGKILL)
            process.wait()
            del self.started[name]


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that no program listens on."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
