"""The experiment trackers by name; each is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path

from gaitway.errors import closest
from sim.errors import SettingsError
from sim.results.run_directory import RunDirectory
from sim.results.tracking.callback import RunCallback
from sim.scores.records import RoundRecord, Summary

TRACKERS: Mapping[str, tuple[str, str]] = {
    "mlflow": ("sim.results.tracking.mlflow", "MlflowTracker"),
    "tensorboard": ("sim.results.tracking.tensorboard", "TensorBoardTracker"),
}
"""Of each tracker its module and class; the package that it needs has its name."""


def trackers(names: Sequence[str], out: Path, warn: Callable[[str], None]) -> list[RunCallback]:
    """Return the trackers of these names for the run in `out`; what goes wrong in one ends it, not the run.

    Raises:
        SettingsError: for a name that is unknown, or whose package is not installed.
    """
    return [_Guarded(name, _tracker(name, out), warn) for name in dict.fromkeys(names)]


def _tracker(name: str, out: Path) -> RunCallback:
    if name not in TRACKERS:
        near = closest(name, TRACKERS)
        hint = f"did you mean {near!r}?" if near else f"there are {', '.join(TRACKERS)}"
        raise SettingsError(f"--log {name}: no such tracker; {hint}")
    module, class_name = TRACKERS[name]
    try:
        tracker: RunCallback = getattr(import_module(module), class_name)(out)
    except ImportError as error:
        raise SettingsError(
            f"--log {name} needs {name}, which is not installed ({error}): pip install {name}"
        ) from error
    return tracker


class _Guarded(RunCallback):
    """A tracker whose server may be away: its first failure is said, and it is not called again."""

    def __init__(self, name: str, tracker: RunCallback, warn: Callable[[str], None]) -> None:
        self._name, self._tracker, self._warn, self._has_failed = name, tracker, warn, False

    def _call(self, method: Callable[[], None]) -> None:
        if self._has_failed:
            return
        try:
            method()
        except Exception as error:  # of somebody else's program, of which the run does not depend
            self._has_failed = True
            self._warn(
                f"--log {self._name} failed and is off for the rest of this run: {type(error).__name__}: {error}"
            )

    def on_start(self, run: RunDirectory, rounds_done: int) -> None:
        self._call(lambda: self._tracker.on_start(run, rounds_done))

    def on_round(self, record: RoundRecord) -> None:
        self._call(lambda: self._tracker.on_round(record))

    def on_end(self, run: RunDirectory, summary: Summary) -> None:
        self._call(lambda: self._tracker.on_end(run, summary))

    def on_error(self, error: BaseException) -> None:
        self._call(lambda: self._tracker.on_error(error))
