"""Ctrl-C in every program: no traceback, at once while something is being imported, and one set of exit codes.

An interrupt within an import is swallowed or turned into another error by what is imported (NumPy 2 recurses until it
fails), so there it ends the process instead of being raised. Python ignores what is raised in a callback of `fork` or
in a `__del__`: such an interrupt is sent once more.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from gaitway.exit_codes import ExitCode

IMPORT_MACHINERY = "<frozen importlib._bootstrap>"
SAID = "Interrupted."
RESEND_S = 0.01
"""After which a callback that ignored an interrupt has returned."""


def end_at_once() -> None:
    """Let Ctrl-C end the process without a word from now on: a program that is being loaded has nothing to clean up.

    Where SIGINT is ignored, as in what a shell runs in the background, it stays so.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def run_program(program: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Run a command line (typer's app or click's command), in which Ctrl-C is an exception again.

    Raises:
        SystemExit: with the exit code; one line says that it was interrupted, and what `resumable` has to say of it.
    """
    if signal.getsignal(signal.SIGINT) in (signal.SIG_DFL, signal.default_int_handler):
        signal.signal(signal.SIGINT, _interrupt)
        resend_ignored()
    try:
        program(*arguments, **options)
    except SystemExit as ended:
        if ended.code == ExitCode.INTERRUPTED:
            print(" ".join([SAID, *_notes(ended)]), file=sys.stderr)
        raise


def resend_ignored() -> None:
    """Send an interrupt that Python has ignored once more, from now on."""

    def hook(ignored: sys.UnraisableHookArgs) -> None:
        if issubclass(ignored.exc_type, KeyboardInterrupt):
            threading.Timer(RESEND_S, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            before(ignored)

    before, sys.unraisablehook = sys.unraisablehook, hook


@contextmanager
def resumable(words: str) -> Iterator[None]:
    """Have a Ctrl-C within the block say these words: how to go on."""
    try:
        yield
    except KeyboardInterrupt as error:
        error.add_note(words)
        raise


def _interrupt(number: int, frame: FrameType | None) -> None:
    if _is_importing(frame):
        os.write(2, f"{SAID}\n".encode())
        os._exit(ExitCode.INTERRUPTED)
    raise KeyboardInterrupt


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == IMPORT_MACHINERY:
            return True
        frame = frame.f_back
    return False


def _notes(error: BaseException | None) -> list[str]:
    """Return the notes of the interrupt that this error came from."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return list(getattr(error, "__notes__", []))
        error = error.__cause__ or error.__context__
    return []
