"""What a run calls while it goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from gaitway.errors import closest
from sim.data.federated_data import FederatedData
from sim.errors import SettingsError
from sim.results.run_directory import RunDirectory
from sim.scores.records import RoundRecord, Summary


class RunCallback:
    """Override what is of interest; each method does nothing by itself.

    What they raise ends the run as any other error does; its rounds up to the last checkpoint are kept.
    """

    def on_reading(self, done: int, client: str) -> None:
        """Called while data are read, with how much of them is, and whose the latest is."""

    def on_data(self, data: FederatedData) -> None:
        """Called once the data are there."""

    def on_choice(self, what: str, name: str, reason: str) -> None:
        """Called with the engine, the client store and the attack of the run, and why they are these."""

    def on_client(self, client_id: str) -> None:
        """Called after a client has trained."""

    def on_start(self, run: RunDirectory, rounds_done: int) -> None:
        """Called before the first round, with the rounds that an interrupted run has done already."""

    def on_round(self, record: RoundRecord) -> None:
        """Called after each round, with what its line of `rounds.jsonl` says."""

    def on_end(self, run: RunDirectory, summary: Summary) -> None:
        """Called once the summary and the models are written."""

    def on_error(self, error: BaseException) -> None:
        """Called if the run ends early, also by Ctrl-C; the same command resumes it."""


class Observers(RunCallback):
    """Several callbacks as one."""

    def __init__(self, callbacks: Sequence[RunCallback]) -> None:
        self._callbacks = callbacks

    @contextmanager
    def watching(self, out: Path, rounds_done: int) -> Iterator[None]:
        """Say when the rounds begin, and if they end early."""
        try:
            run = RunDirectory(out)
            for callback in self._callbacks:
                callback.on_start(run, rounds_done)
            yield
        except BaseException as error:
            for callback in self._callbacks:
                callback.on_error(error)
            raise

    def on_reading(self, done: int, client: str) -> None:
        for callback in self._callbacks:
            callback.on_reading(done, client)

    def on_data(self, data: FederatedData) -> None:
        for callback in self._callbacks:
            callback.on_data(data)

    def on_choice(self, what: str, name: str, reason: str) -> None:
        for callback in self._callbacks:
            callback.on_choice(what, name, reason)

    def on_client(self, client_id: str) -> None:
        for callback in self._callbacks:
            callback.on_client(client_id)

    def after_round(self, line: Mapping[str, Any]) -> None:
        """Hand on the line of a round."""
        for callback in self._callbacks:
            callback.on_round(RoundRecord.model_validate(line))

    def at_end(self, out: Path, summary: Mapping[str, Any]) -> None:
        """Hand on the summary."""
        for callback in self._callbacks:
            callback.on_end(RunDirectory(out), Summary.model_validate(summary))


def round_scores(record: RoundRecord) -> Iterator[tuple[str, float]]:
    """Yield a round's numbers under names such as `personalization/macro_f1`, those that it has."""
    spreads = {
        "personalization": record.personalization,
        "generalization": record.generalization,
        "validation": record.validation,
    }
    for score, spread in spreads.items():
        yield from ((f"{score}/{metric}", statistic.mean) for metric, statistic in (spread or {}).items())
    yield from _known("global", record.global_ or {})
    yield from _known("train", {"loss": record.train_loss})
    yield from (
        ("client_bytes/up", record.bytes_up),
        ("client_bytes/down", record.bytes_down),
        ("seconds", sum(record.seconds.values())),
    )


def final_scores(summary: Summary) -> Iterator[tuple[str, float]]:
    """Yield the numbers of the round that is to be trusted, under `final/…`, and the new clients' by their shots."""
    chosen = summary.selected(summary.trusted)
    if chosen is not None:
        for score, spread in (("personalization", chosen.personalization), ("generalization", chosen.generalization)):
            yield from ((f"final/{score}/{metric}", statistic.mean) for metric, statistic in (spread or {}).items())
        yield from _known("final/global", chosen.global_ or {})
    if summary.new_clients:
        for shots, spread in summary.new_clients.shots.items():
            yield from ((f"final/new_{shots}/{metric}", statistic.mean) for metric, statistic in (spread or {}).items())


def _known(prefix: str, scores: Mapping[str, float | None]) -> Iterator[tuple[str, float]]:
    yield from ((f"{prefix}/{name}", value) for name, value in scores.items() if value is not None)


TRACKERS: Mapping[str, tuple[str, str]] = {
    "mlflow": ("sim.results.mlflow", "MlflowTracker"),
    "tensorboard": ("sim.results.tensorboard", "TensorBoardTracker"),
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
