"""What a description makes of the files under a root: each file's rows, rate and labels, or why it is of no use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from har_pipeline.description.files import DescribedFile, DescribedFiles
from har_pipeline.description.model import Description
from har_pipeline.description.samples import file_recordings
from har_pipeline.errors import PipelineError
from har_pipeline.recording import Categorical, Recording, Sensor
from har_pipeline.signals.tally import Tally

UNLABELLED_NAME = "(none)"


@dataclass
class FileReport:
    """One file as it was read: how many samples of which sensor and label, and what is wrong with it."""

    name: str
    clients: set[str] = field(default_factory=set)
    sessions: set[str] = field(default_factory=set)
    samples: Counter[Sensor] = field(default_factory=Counter)
    lost: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    rate_hz: float | None = None
    levels: dict[Sensor, float] = field(default_factory=dict)
    problem: str = ""


def inspect(
    description: Description, files: DescribedFiles, progress: Callable[[int, str], None] | None = None
) -> Iterator[FileReport]:
    """Read every file, one after the other, and yield what was found; a file that cannot be read says why."""
    for done, file in enumerate(files.each(), start=1):
        yield _inspected(description, file)
        if progress is not None:
            progress(done, file.name)


def _inspected(description: Description, file: DescribedFile) -> FileReport:
    report = FileReport(file.name)
    tallies: dict[Sensor, Tally] = {}
    levels: dict[Sensor, list[float]] = {}
    try:
        for recording in file_recordings(description, file):
            if recording.sensor not in description.sensors:
                continue  # zeros in place of a gyroscope
            _count(recording, report)
            tally = tallies.setdefault(recording.sensor, Tally())
            tally.add(recording.session, recording.times_s, recording.values)
            sizes = np.linalg.norm(recording.values, axis=1)
            if np.isfinite(sizes).any():
                levels.setdefault(recording.sensor, []).append(float(np.nanmedian(sizes)))
    except PipelineError as error:
        report.problem = str(error)
    known = [each for each in tallies.values() if np.isfinite(each.rate_hz)]
    report.seconds = max((each.covered_s for each in known), default=0.0)  # a pause between recordings counts nothing
    report.rate_hz = known[0].rate_hz if known else None
    report.levels = {sensor: float(np.median(sizes)) for sensor, sizes in levels.items()}
    if not report.problem and not report.samples:
        why = "its sensor is neither acc nor gyro" if description.sensor_by_row else "it has no rows"
        report.problem = f"{file.name}: {why}"
    return report


def _count(recording: Recording, report: FileReport) -> None:
    report.clients.add(recording.client)
    report.sessions.add(recording.session)
    report.samples[recording.sensor] += len(recording.times_s)
    usable = np.isfinite(recording.times_s) & np.isfinite(recording.values).all(axis=1)
    report.lost += int(len(usable) - usable.sum())
    if recording.sensor == "acc":
        activity = recording.activity
        words = activity if isinstance(activity, Categorical) else Categorical.of(np.full(len(usable), activity))
        for name, count in zip(words.names.tolist(), np.bincount(words.codes, minlength=len(words.names)), strict=True):
            if count:
                report.labels[name or UNLABELLED_NAME] += int(count)
