"""Replays client partitions with the methods, the local round and the round machine of the live programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack

from sim.run_options import OPTIONS, RunOptions


def simulate(
    out: str | Path, *, data_root: str | Path | None = None, preset: str | None = None, **options: Unpack[RunOptions]
) -> dict[str, Any]:
    """Do what `python -m sim run` does, without its output, and return what `summary.json` says.

    `options` are those of the command line, `--gradient-dissimilarity` as `gradient_dissimilarity=True`, `--set` as
    `set=["mu=0.1"]`. The same call resumes a run that was interrupted. Scores are between 0 and 1.

    Raises:
        SettingsError: for an option that is unknown or does not fit.
        RunDirectoryError: if `out` holds the run of another experiment.
    """
    from sim.cli.options import describe  # `import sim` stays light
    from sim.errors import SettingsError
    from sim.presets import with_defaults
    from sim.run import load_data, run

    unknown = sorted(options.keys() - OPTIONS.keys() - {"set"})
    if unknown:
        raise SettingsError(f"unknown option {unknown[0]!r}; there are {', '.join(sorted([*OPTIONS, 'set']))}")
    experiment = describe(with_defaults(preset, options), preset, None)
    return run(experiment, load_data(experiment, Path(data_root) if data_root else None, None, None), Path(out))
