"""Replays client partitions with the methods, the local round and the round machine of the live programs."""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):
    raise ImportError(
        f"the simulation needs Python 3.11 or newer, and this is {sys.version.split()[0]}; a device takes 3.10"
    )

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaitway.own_packages import refuse_hidden

refuse_hidden("har_pipeline", "models", "federation", "export")

if TYPE_CHECKING:
    from sim.reports.run_result import RunResult
    from sim.results.tracking import RunCallback


def simulate(
    out: str | Path,
    *,
    data_root: str | Path | None = None,
    preset: str | None = None,
    log: Sequence[str] = (),
    callbacks: Sequence[RunCallback] = (),
    resume: bool = True,
    **options: Any,
) -> RunResult:
    """Do what `python -m sim run` does, without its output, and return the run's result: what `summary.json` says.

    `options` are those of the command line, `--eval-every 5` as `eval_every=5`, `--set mu=0.1` as `set=["mu=0.1"]`.
    The same call resumes a run that was interrupted, or returns a finished one. It refuses a run whose recordings or
    method were changed since; `resume=False` deletes what a run has left in `out`, and begins again. Scores are
    between 0 and 1. `log` names experiment trackers ("mlflow", "tensorboard"); `callbacks` are called after each
    round (`sim.results.tracking.RunCallback`).

    Raises:
        SettingsError: for an option that is unknown or does not fit, or a tracker that is not installed.
        RunDirectoryError: if `out` holds the run of another experiment, or of other data or code.
    """
    import warnings

    from sim.cli.options import describe  # `import sim` stays light
    from sim.errors import SettingsError
    from sim.experiment.settings import OPTIONS
    from sim.presets import with_defaults
    from sim.reports.run_result import RunResult
    from sim.results.run_directory import delete_run
    from sim.results.tracking import trackers
    from sim.run import Places, load_data, resolve, run

    unknown = sorted(options.keys() - OPTIONS.keys() - {"set"})
    if unknown:
        raise SettingsError(f"unknown option {unknown[0]!r}; there are {', '.join(sorted([*OPTIONS, 'set']))}")
    out = Path(out)
    followers = [*trackers(log, out, lambda words: warnings.warn(words, stacklevel=2)), *callbacks]
    experiment = describe(with_defaults(preset, options), preset, None)
    if resume:
        places = Places(Path(data_root) if data_root else None)
        return RunResult(run(experiment, out, followers, places=places), out)
    data = load_data(resolve(experiment), Path(data_root) if data_root else None)
    delete_run(out)  # not before the settings are checked and the data are there
    return RunResult(run(experiment, out, followers, data=data), out)
