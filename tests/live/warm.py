"""Devices and servers that are forks of one process which has imported everything, and that end themselves by SIGKILL.

They are processes as `Fleet` starts them, with the same command lines, but nothing is imported: torch, FastAPI and
pydantic's models cost a device's start, a training process and a server's start seconds of a core each, which on two
busy cores made a kill cost a minute and a half. What they start are forks as well.

A program that has a `Death` ends itself: at its so many-th step, or after a time, so at any moment. Steps are commits,
files that take their place, messages, blobs and acknowledgements, each before and after it; what it was is noted.
"""

from __future__ import annotations

import gc
import itertools
import json
import multiprocessing
import os
import random
import runpy
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, NamedTuple

from tests.live.fleet import Program

IMPORTED = (
    "torch",
    "onnx",
    "onnxruntime",
    "aggregator_api.cli.app",
    "aggregator_api.http.app",
    "aggregator_api.http.serving",
    "aggregator_api.notifications",
    "aggregator_api.http.serving",
    "alembic",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.httptools_impl",
    "uvicorn.protocols.websockets.auto",
    "aggregator_api.rounds.aggregation",
    "edge_agent.__main__",
    "edge_agent.page.server",
    "edge_agent.sensors.replay",
    "edge_agent.transport.http_link",
    "edge_agent.transport.mqtt",
    "edge_agent.training.trainer",
    "edge_agent.training.torch_runtime",
    "tests.live.warm",
)
JOB, WORKER = "edge_agent.training.entrypoint", "aggregator_api.rounds.aggregation_worker"
CONTEXT = multiprocessing.get_context("forkserver")


class Death(NamedTuple):
    """When a program and what it starts kill themselves; where it is noted, one JSON line a kill."""

    seed: int
    notes: Path


class WarmProgram(Program):
    """A program of ours that is forked; `next_death` says of each start when it ends itself, None: never."""

    def __init__(self, command: Sequence[str], log: Path, next_death: Callable[[], Death | None]) -> None:
        super().__init__(command, log)
        self._next_death = next_death
        self._fork: ForkServerProcess | None = None

    def start(self) -> None:
        """Run it, unless it runs."""
        if self.has_left:
            CONTEXT.set_forkserver_preload(list(IMPORTED))
            self._fork = CONTEXT.Process(target=_run, args=(list(self.command), self.log, self._next_death()))
            self._fork.start()

    def kill(self) -> None:
        """End it with SIGKILL; its training process ends with it, as its standard input closes."""
        if self._fork is not None:
            self._fork.kill()
            self._fork.join()

    def ask_to_stop(self) -> None:
        """Send SIGTERM, and wait for nothing."""
        if self._fork is not None:
            self._fork.terminate()

    def stop(self) -> None:
        """End it in order."""
        self.ask_to_stop()
        if self._fork is not None:
            self._fork.join(10)
            self.kill()

    @property
    def has_left(self) -> bool:
        """Whether it does not run."""
        return self._fork is None or not self._fork.is_alive()

    @property
    def exit_code(self) -> int | None:
        """How it ended: -9 where it was killed; None while it runs, or before it has."""
        return None if self._fork is None else self._fork.exitcode


class ForkedPopen:
    """What our programs use of `subprocess.Popen`, of a fork."""

    def __init__(
        self, command: Sequence[str], death: Death | None, stderr: IO[bytes] | None = None, umask: int = -1
    ) -> None:
        (read_in, write_in), (read_out, write_out) = os.pipe(), os.pipe()
        self.stdin, self.stdout = os.fdopen(write_in, "wb"), os.fdopen(read_out, "rb")
        said = os.dup(2 if stderr is None else stderr.fileno())
        ends = Connection(read_in, writable=False), Connection(write_out, readable=False), Connection(said)
        self._process = CONTEXT.Process(target=_run_below, args=(list(command), ends, umask, death))
        self._process.start()
        for end in ends:
            end.close()

    @property
    def pid(self) -> int:
        """The process's id."""
        return int(self._process.pid or 0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code; raises TimeoutExpired."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a fork", timeout or 0.0)
        return self._process.exitcode

    def communicate(self) -> None:
        """Close its input, and wait for its end."""
        self.stdin.close()
        self.stdout.read()
        self.stdout.close()
        self.wait()

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()


def _run(command: list[str], log: Path, death: Death | None) -> None:
    """Be the command `python -m MODULE …`, whose output goes to a log."""
    gc.freeze()  # what was imported stays, and need not be looked through by each of them
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    module, arguments = _module_of(command)
    os.environ.update(word.split("=", 1) for word in command[: command.index("-m")] if "=" in word)  # after `env`
    forked = SimpleNamespace(
        Popen=lambda command, *, stdin, stdout, umask, stderr=None: ForkedPopen(command, death, stderr, umask),
        PIPE=subprocess.PIPE,
        TimeoutExpired=subprocess.TimeoutExpired,
    )
    if module == "edge_agent":
        import edge_agent.training.job as starts
    else:
        import aggregator_api.rounds.aggregation_executor as starts  # type: ignore[no-redef]
    starts.subprocess = forked  # type: ignore[attr-defined,assignment]
    if death is not None:
        if module == "edge_agent":
            _die_as_device(_Reaper.of(death, module, max_steps=30, max_s=6.0))
        else:  # a server's start takes longer, and all wait for it
            _die_as_server(_Reaper.of(death, module, max_steps=100, max_s=20.0))
    _become(module, arguments)


def _run_below(command: list[str], ends: Sequence[Connection], umask: int, death: Death | None) -> None:
    """Be what a program of ours starts, with its end of the pipes."""
    gc.freeze()
    os.nice = lambda _increment: 0  # politeness would starve it where other tests run, and each kill wait for it
    for place, end in enumerate(ends):
        os.dup2(end.fileno(), place)
        end.close()
    os.umask(umask)
    sys.stdin = os.fdopen(0, "r", closefd=False)  # a fork's is /dev/null
    module, arguments = _module_of(command)
    if death is not None and random.Random(os.urandom(8)).random() < 0.5:
        reaper = _Reaper.of(death, module.rpartition(".")[2], max_steps=24, max_s=0.5)
        reaper.around(os, "replace", lambda _source, target, **_: Path(target).name)
    _become(module, arguments)


def _module_of(command: Sequence[str]) -> tuple[str, list[str]]:
    first = list(command).index("-m")
    return command[first + 1], list(command[first + 2 :])


def _become(module: str, arguments: list[str]) -> None:
    sys.modules.pop(f"{module}.__main__", None)  # imported before, for what it imports; it is run again
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        sys.stdout.flush()


class _Reaper:
    """Kills the process that it is in, at a step that its seed draws, or after a while."""

    def __init__(self, notes: Path, who: str) -> None:
        self._notes, self._who, self._lock = notes, who, threading.Lock()
        self._left = 0

    @classmethod
    def of(cls, death: Death, who: str, max_steps: int, max_s: float) -> _Reaper:
        """Draw when it dies: one in four at any moment."""
        reaper, draw = cls(death.notes, who), random.Random(f"{death.seed} {who}")
        if draw.random() < 0.25:
            timer = threading.Timer(draw.uniform(0.0, max_s), reaper._die, ("any moment",))
            timer.daemon = True
            timer.start()
        else:
            reaper._left = draw.randint(1, max_steps)
        return reaper

    def step(self, what: str) -> None:
        """Count a step; the last one is the process's last."""
        with self._lock:
            self._left -= 1
            if not self._left:
                self._die(what)

    def around(self, place: Any, name: str, describe: Callable[..., str]) -> None:
        """Make a call two steps: before and after it."""
        call = getattr(place, name)

        def stepped(*given: Any, **named: Any) -> Any:
            what = describe(*given, **named)
            self.step(f"before {what}")
            result = call(*given, **named)
            self.step(f"after {what}")
            return result

        setattr(place, name, stepped)

    def _die(self, what: str) -> None:
        line = json.dumps({"who": self._who, "step": what}).encode() + b"\n"
        notes = os.open(self._notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(notes, line)
        os.kill(os.getpid(), signal.SIGKILL)


def _die_as_device(reaper: _Reaper) -> None:
    """Count commits but those of the status, files that take their place, and parts of an upload."""
    from edge_agent.storage import state_store
    from edge_agent.transport.chunk_sender import ChunkSender, UploadSender

    begun = state_store.transaction

    @contextmanager
    def stepped(*given: Any) -> Iterator[Any]:
        callers = [frame.f_code.co_name for frame, _ in itertools.islice(traceback.walk_stack(None), 8)]
        what = next((name for name in callers if name in vars(state_store.StateStore) and name[0] != "_"), "commit")
        counts = "save_activity" not in callers
        with begun(*given) as db:
            yield db
            if counts:
                reaper.step(f"before {what}")
        if counts:
            reaper.step(f"after {what}")

    state_store.transaction = stepped  # type: ignore[assignment]
    reaper.around(os, "replace", lambda _source, target, **_: f"a file in {Path(target).parent.name}")
    reaper.around(UploadSender, "begin", lambda *_: "begin of an upload")
    reaper.around(ChunkSender, "_publish", lambda *given: f"{given[3]} of an upload")


def _die_as_server(reaper: _Reaper) -> None:
    """Count commits, blobs and acknowledgements."""
    from sqlalchemy import event
    from sqlalchemy.orm import Session

    from aggregator_api.rounds.announcements import Announcer
    from aggregator_api.storage.blobs import BlobStore

    for kind, name in ((BlobStore, "put"), (BlobStore, "adopt"), (Announcer, "acknowledge")):
        reaper.around(kind, name, lambda *_, what=name, **__: what)
    for moment in ("before_commit", "after_commit"):
        event.listen(Session, moment, lambda _session, what=moment: reaper.step(what.replace("_", " ")))
