"""Replays client partitions with the methods, the local round and the round machine of the live programs."""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):
    raise ImportError(
        f"the simulation needs Python 3.11 or newer, but this is {sys.version.split()[0]}; only devices can use 3.10"
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
    """Run what `python -m sim run` runs, without its output, and return the run's result, as in `summary.json`.

    `options` are the command line's: `--eval-every 5` is `eval_every=5`, `--set mu=0.1` is `set=["mu=0.1"]`. The same
    call resumes an interrupted run, or returns a finished one. It refuses a run whose recordings or method have changed
    since; `resume=False` deletes the earlier run in `out` and starts again. Scores are between 0 and 1. `log` names
    experiment trackers ("mlflow", "tensorboard"); `callbacks` are called after each round
    (`sim.results.tracking.RunCallback`).

    Raises:
        SettingsError: for an unknown or invalid option, or a tracker that isn't installed.
        RunDirectoryError: if `out` contains the run of another experiment, or one with other data or code.
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
        raise SettingsError(f"unknown option {unknown[0]!r}; the options are {', '.join(sorted([*OPTIONS, 'set']))}")
    out = Path(out)
    followers = [*trackers(log, out, lambda words: warnings.warn(words, stacklevel=2)), *callbacks]
    experiment = describe(with_defaults(preset, options), preset, None)
    if resume:
        places = Places(Path(data_root) if data_root else None)
        return RunResult(run(experiment, out, followers, places=places), out)
    data = load_data(resolve(experiment), Path(data_root) if data_root else None)
    delete_run(out)  # only once the settings are checked and the data exist
    return RunResult(run(experiment, out, followers, data=data), out)
