"""Ctrl-C in every program: no traceback, at once while something is being imported, and one set of exit codes.

An interrupt within an import is swallowed or turned into another error by what is imported (NumPy 2 recurses until it
fails), so there it ends the process instead of being raised. Python ignores what is raised in a callback of `fork` or
in a `__del__`: such an interrupt is sent once more.
"""

from __future__ import annotations

import atexit
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

from gaitway.errors import ExitCode

IMPORT_MACHINERY = "<frozen importlib._bootstrap>"
SAID = "Interrupted."
FIRST_NOTICE_S, NOTICE_S = 4.0, 10.0
"""After so long a program says that it is being loaded, and again each time after so long."""
RESEND_S = 0.01
"""After which a callback that ignored an interrupt has returned."""
_loaded = threading.Event()


def begin_loading() -> None:
    """Let Ctrl-C end the process without a word from now on: a program that is being loaded has nothing to clean up.

    Where loading takes long, lines on standard error say so until `run_program` or `end_loading`. Where SIGINT is
    ignored, as in what a shell runs in the background, it stays so.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _loaded.clear()
    threading.Thread(target=_say_loading, daemon=True).start()


def end_loading() -> None:
    """Make Ctrl-C an exception again, which is sent once more where Python has ignored it."""
    _loaded.set()
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.unraisablehook = _resend_ignored


@contextmanager
def loading() -> Iterator[None]:
    """Say on standard error that the block takes long, where it does."""
    _loaded.clear()
    threading.Thread(target=_say_loading, daemon=True).start()
    try:
        yield
    finally:
        _loaded.set()


def run_program(program: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Run a command line (typer's app or click's command), in which Ctrl-C is an exception again.

    Raises:
        SystemExit: with the exit code; one line says that it was interrupted, and what `resumable` has to say of it.
    """
    end_loading()
    if is_heeded := signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        program(*arguments, **options)
    except SystemExit as ended:
        if ended.code == ExitCode.INTERRUPTED:
            print(" ".join([SAID, *_notes(ended)]), file=sys.stderr)
            end_process(ExitCode.INTERRUPTED)
        raise
    finally:
        sys.unraisablehook = sys.__unraisablehook__
        if is_heeded:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def end_process(code: int) -> NoReturn:
    """End the process, without the seconds that Python takes to free what a program has imported."""
    atexit._run_exitfuncs()  # noqa: SLF001 (there is no public way)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class HeldSignals:
    """Holds the first Ctrl-C or SIGTERM back until the block ends, so that the block can save its work.

    The block leaves early when `held` is not None. A second signal of the same kind is delivered at once. `notice` is
    printed for the first. In other threads than the main one nothing is held: Python delivers signals to that one.
    """

    def __init__(self, notice: str) -> None:
        self.held: int | None = None
        self._notice = notice
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> HeldSignals:
        """Take the signals over, except those that this process ignores."""
        if threading.current_thread() is threading.main_thread():
            found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
            self._handlers = {n: handler for n, handler in found.items() if handler not in (None, signal.SIG_IGN)}
        for number in self._handlers:
            signal.signal(number, self._hold)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Give the signals back, and deliver the one that was held unless the block has failed."""
        self._give_back()
        if self.held is not None and kind is None:
            signal.raise_signal(self.held)

    def _hold(self, number: int, _frame: FrameType | None) -> None:
        if self.held == number:
            self._give_back()
            signal.raise_signal(number)
        elif self.held is None:
            self.held = number
            with suppress(RuntimeError):  # the signal came while something else was being printed
                print(self._notice, file=sys.stderr, flush=True)

    def _give_back(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}


@contextmanager
def resumable(words: str) -> Iterator[None]:
    """Have a Ctrl-C within the block say these words: how to go on."""
    try:
        yield
    except KeyboardInterrupt as error:
        error.args = (*error.args, words)  # Python 3.10 has no notes
        raise


def _say_loading() -> None:
    is_quiet = any(word == "--quiet" or re.fullmatch("-[a-zA-Z]*q[a-zA-Z]*", word) for word in sys.argv[1:])
    if is_quiet or not sys.stderr.isatty():
        return
    began, pause_s = time.monotonic(), FIRST_NOTICE_S
    while not _loaded.wait(pause_s):
        print(f"loading …, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        pause_s = NOTICE_S


def _resend_ignored(ignored: sys.UnraisableHookArgs) -> None:
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        threading.Timer(RESEND_S, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(ignored)


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
            return [str(words) for words in error.args]
        error = error.__cause__ or error.__context__
    return []
