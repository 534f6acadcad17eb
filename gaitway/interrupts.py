"""Ctrl-C handling for all programs: no traceback, immediate exit during imports, and one set of exit codes.

Imported modules may swallow an interrupt or turn it into another error (NumPy 2 recurses until it fails), so during an
import it ends the process instead of being raised. Python ignores exceptions in a callback of `fork` or in `__del__`,
so such an interrupt is sent again.
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
"""Interval after which a loading program says so, again and again."""
RESEND_S = 0.01
"""Time after which a callback that ignored an interrupt has surely returned."""
_loaded = threading.Event()


def begin_loading() -> None:
    """Let Ctrl-C end the process silently from now on, because a loading program has nothing to clean up.

    If loading takes long, lines on standard error say so until `run_program` or `end_loading`. If SIGINT is ignored, as
    in a shell's background jobs, it stays ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _loaded.clear()
    threading.Thread(target=_say_loading, daemon=True).start()


def end_loading() -> None:
    """Make Ctrl-C an exception again, and resend it if Python ignored it."""
    _loaded.set()
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.unraisablehook = _resend_ignored


@contextmanager
def loading() -> Iterator[None]:
    """Say on standard error that the block takes long, if it does."""
    _loaded.clear()
    threading.Thread(target=_say_loading, daemon=True).start()
    try:
        yield
    finally:
        _loaded.set()


def run_program(program: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Run a command line (typer's app or click's command) with Ctrl-C as an exception again.

    Raises:
        SystemExit: with the exit code; one line reports an interrupt, with the message of `resumable`.
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
    """End the process without spending seconds on freeing imported modules."""
    atexit._run_exitfuncs()  # noqa: SLF001 (there is no public way)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class HeldSignals:
    """Delays the first Ctrl-C or SIGTERM until the block ends, so that the block can save its work.

    The block leaves early when `held` is not None. A second signal of the same kind is delivered at once. `notice` is
    printed for the first. Only the main thread can hold signals, because Python delivers them there.
    """

    def __init__(self, notice: str) -> None:
        self.held: int | None = None
        self._notice = notice
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> HeldSignals:
        """Take over the signals, except those that this process ignores."""
        if threading.current_thread() is threading.main_thread():
            found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
            self._handlers = {n: handler for n, handler in found.items() if handler not in (None, signal.SIG_IGN)}
        for number in self._handlers:
            signal.signal(number, self._hold)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Restore the signals, and deliver the held one unless the block failed."""
        self._give_back()
        if self.held is not None and kind is None:
            signal.raise_signal(self.held)

    def _hold(self, number: int, _frame: FrameType | None) -> None:
        if self.held == number:
            self._give_back()
            signal.raise_signal(number)
        elif self.held is None:
            self.held = number
            with suppress(RuntimeError):  # the signal arrived during another print
                print(self._notice, file=sys.stderr, flush=True)

    def _give_back(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}


@contextmanager
def resumable(words: str) -> Iterator[None]:
    """Make Ctrl-C within the block print this hint on how to continue."""
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
    """Return the notes of the interrupt that caused this error."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return [str(words) for words in error.args]
        error = error.__cause__ or error.__context__
    return []
