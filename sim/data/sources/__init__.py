"""Sources of a run's examples by name: recordings of motion sensors, images, or generated tasks."""

from __future__ import annotations

from gaitway.errors import did_you_mean
from har_pipeline import dataset_names
from har_pipeline.combination import combination_of
from sim.data.images import IMAGE_SETS
from sim.data.sources import synthetic
from sim.data.sources.images import Images
from sim.data.sources.recordings import Recordings
from sim.data.sources.source import ExampleSource, Progress, check_target
from sim.errors import SettingsError

__all__ = ["ExampleSource", "Progress", "check_target", "get_source", "source_names"]


def source_names() -> tuple[str, ...]:
    """Return the names of all sets that a run can have."""
    return (*dataset_names(), *IMAGE_SETS, synthetic.NAME)


def get_source(name: str) -> ExampleSource:
    """Return the source of a data set, or of several sets of recordings joined by `+`.

    Raises:
        SettingsError: for a name that is not known.
    """
    if name == synthetic.NAME:
        return synthetic.SyntheticLogistic()
    if name in IMAGE_SETS:
        return Images(IMAGE_SETS[name])
    if name in dataset_names() or combination_of(name):
        return Recordings(name)
    raise SettingsError(f"unknown data set {name!r}; {did_you_mean(name, source_names())}")
