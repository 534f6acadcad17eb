"""Child processes that cannot outlive the demo: one process group each, ended on every way out."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType

import psutil

GRACE_S = 8.0
INTERRUPT_GRACE_S = 0.4
"""After Ctrl-C somebody waits; programs that are killed lose nothing, as their tests show."""
STRAYS_S = 2.0
POLL_S = 0.05


class DemoError(Exception):
    """The demo cannot go on; the message says what to do."""


@dataclass
class Child:
    """A started program and its log."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def log_tail(self, lines: int = 15) -> str:
        """Return the end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


@dataclass
class Children:
    """Every process of the demo; leaving the `with` block ends those that still run, whatever happened."""

    folder: Path
    started: list[Child] = field(default_factory=list)

    def __enter__(self) -> Children:
        # a signal becomes an exception, so that __exit__ runs for it too
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _interrupt)
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.end(grace_s=INTERRUPT_GRACE_S if kind and issubclass(kind, KeyboardInterrupt) else GRACE_S)

    def start(self, name: str, module: str, *arguments: str, environment: dict[str, str] | None = None) -> Child:
        """Run `python -m module arguments` with its output in a log file."""
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # its own group: Ctrl-C reaches the demo alone, which then ends the group
            )
        self.started.append(Child(name, process, log))
        return self.started[-1]

    def check(self, may_end: Sequence[Child] = ()) -> None:
        """Complain about a child that ended with an error, or ended although it should run on.

        Raises:
            DemoError: with the end of its log.
        """
        for child in self.started:
            status = child.process.poll()
            if status is not None and (status != 0 or child not in may_end):
                raise DemoError(f"{child.name} ended with status {status}. The end of {child.log}:\n{child.log_tail()}")

    def end(self, chosen: Sequence[Child] = (), grace_s: float = GRACE_S) -> None:
        """Ask every group, or the chosen ones, to end, last started first, and kill what is left after a grace period.

        Who presses Ctrl-C once more, or closes the terminal, does not interrupt it, for processes would be left behind,
        but shortens the grace.

        Raises:
            KeyboardInterrupt: if that came while some of several were ended, after they have.
        """
        interrupts: list[float] = []
        heard = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = [signal.signal(number, lambda *_: interrupts.append(time.monotonic())) for number in heard]
        try:
            _end(list(chosen) or self.started, grace_s, interrupts)
            self.started = [child for child in self.started if child not in chosen]
        finally:
            for number, handler in zip(heard, before, strict=True):
                signal.signal(number, handler)
        if interrupts and chosen:
            raise KeyboardInterrupt


def _end(started: Sequence[Child], grace_s: float, interrupts: Sequence[float]) -> None:
    """`asked`: when somebody has asked for it once more, which may grow."""
    family = _families([child.process.pid for child in started])
    for child in reversed(started):
        signal_group(child.process.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    for child in started:
        while child.process.poll() is None and time.monotonic() < min(
            [deadline, *(at + INTERRUPT_GRACE_S for at in interrupts)]
        ):
            time.sleep(POLL_S)
        if child.process.poll() is None:
            signal_group(child.process.pid, signal.SIGKILL)
            child.process.wait()
    strays = [member for member in family if _runs(member)]
    for stray in strays:
        with suppress(psutil.NoSuchProcess):
            stray.kill()
    deadline = time.monotonic() + STRAYS_S
    while any(map(_runs, strays)) and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _runs(process: psutil.Process) -> bool:
    """Whether it still does something: an orphan that has ended may wait for ever for a container's init to notice."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def require_port(port: int, purpose: str, option: str, host: str = "127.0.0.1") -> None:
    """Check that a port can be listened on.

    Raises:
        DemoError: if something has it.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the servers do: TIME_WAIT is no obstacle
        try:
            probe.bind((host, port))
        except OSError as error:
            raise DemoError(
                f"Port {port} on {host}, meant for {purpose}, is taken ({error.strerror}). "
                f"End the program that has it, or choose another with {option} N ({option} 0: any free one)."
            ) from error


def wait_for_port(port: int, child: Child, timeout_s: float) -> None:
    """Wait until a child listens; looks from outside, as a connection without a word is an error in a broker's log.

    Raises:
        DemoError: if it ends first, or does not within the time.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if child.process.poll() is not None:
            raise DemoError(f"{child.name} ended before it listened. The end of {child.log}:\n{child.log_tail()}")
        with suppress(psutil.NoSuchProcess):
            connections = psutil.Process(child.process.pid).net_connections("tcp")
            if any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in connections):
                return
        time.sleep(0.1)
    raise DemoError(f"{child.name} does not listen on port {port} after {timeout_s:.0f} s; see {child.log}")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _families(pids: Sequence[int]) -> list[psutil.Process]:
    """List processes and all below them, also those that left their groups, by one look at the machine's processes."""
    below: dict[int, list[psutil.Process]] = {}
    known: dict[int, psutil.Process] = {}
    for process in psutil.process_iter(["ppid"]):
        known[process.pid] = process
        below.setdefault(process.info["ppid"], []).append(process)
    found = [known[pid] for pid in pids if pid in known]
    for process in found:  # grows
        found += below.get(process.pid, ())
    return found


def signal_group(pid: int, number: signal.Signals) -> None:
    """Signal a child and what it started, if any of it is left."""
    with suppress(ProcessLookupError):
        os.killpg(pid, number)
