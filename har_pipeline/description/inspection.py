"""Applies a description to the files under a root: each file's rows, rate and labels, or why it is unusable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from har_pipeline.description.clocks import TimeSpan, overlaps, restarts
from har_pipeline.description.files import DescribedFile, DescribedFiles
from har_pipeline.description.model import Description
from har_pipeline.description.samples import Part, file_parts
from har_pipeline.errors import PipelineError
from har_pipeline.recording import Categorical, Recording, Sensor
from har_pipeline.signals.directions import Difference, GravityDirections
from har_pipeline.signals.tally import Tally

UNLABELLED_NAME = "(none)"


@dataclass
class FileReport:
    """One file as it was read: how many samples of which sensor and label, and what is wrong with it."""

    name: str
    clients: set[str] = field(default_factory=set)
    sessions: set[str] = field(default_factory=set)
    samples: Counter[Part] = field(default_factory=Counter)
    lost: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    seconds: dict[Part, float] = field(default_factory=dict)
    rate_hz: float | None = None
    levels: dict[Sensor, float] = field(default_factory=dict)
    spans: list[TimeSpan] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problem: str = ""
    directions: GravityDirections = field(default_factory=GravityDirections, repr=False)


def inspect(
    description: Description, files: DescribedFiles, progress: Callable[[int, str], None] | None = None
) -> Iterator[FileReport]:
    """Read every file, one after the other, and yield what was found; a file that cannot be read says why."""
    for done, file in enumerate(files.each(), start=1):
        yield _inspected(description, file)
        if progress is not None:
            progress(done, file.name)


def differences(reports: Iterable[FileReport]) -> list[Difference]:
    """Say which clients' gravity points elsewhere than the others' in the same activity."""
    together = GravityDirections()
    for report in reports:
        if not report.problem:
            together.merge(report.directions)
    return together.differences()


def covered_s(reports: Iterable[FileReport]) -> float:
    """Return how long people were recorded: the sensors' files of one session count once."""
    by_session: dict[tuple[frozenset[str], frozenset[str]], dict[Part, float]] = {}
    for report in reports:
        session = by_session.setdefault((frozenset(report.clients), frozenset(report.sessions)), {})
        for part, seconds in report.seconds.items():
            session[part] = session.get(part, 0.0) + seconds
    return sum(max(session.values(), default=0.0) for session in by_session.values())


def odd_words(reports: Iterable[FileReport]) -> Iterator[str]:
    """Say what is odd about files that can be read all the same: spellings, order, and times that overlap."""
    every = [report for report in reports if not report.problem]
    for report in every:
        yield from report.notes
    yield from overlaps(span for report in every for span in report.spans)


def _inspected(description: Description, file: DescribedFile) -> FileReport:
    report = FileReport(file.name)
    tallies: dict[Part, Tally] = {}
    levels: dict[Sensor, list[float]] = {}
    ends: dict[tuple[str, str, Part], tuple[float, int]] = {}
    try:
        for part, recording in file_parts(description, file, report.notes.append):
            if recording.sensor not in description.sensors:
                continue  # zeros in place of a gyroscope
            _count(part, recording, report)
            if part == recording.sensor:  # a whole sensor: of linear acceleration, gravity is in other files
                report.directions.add(recording)
            _span(part, recording, report, ends)
            tally = tallies.setdefault(part, Tally())
            tally.add(recording.session, recording.times_s, recording.values)
            sizes = np.linalg.norm(recording.values, axis=1)
            if np.isfinite(sizes).any() and part == recording.sensor:
                levels.setdefault(recording.sensor, []).append(float(np.nanmedian(sizes)))
    except PipelineError as error:
        report.problem = str(error)
    known = {part: tally for part, tally in tallies.items() if np.isfinite(tally.rate_hz)}
    # a pause between recordings counts nothing
    report.seconds = {part: tally.covered_s for part, tally in known.items()}
    report.rate_hz = next((tally.rate_hz for tally in known.values()), None)
    report.levels = {sensor: float(np.median(sizes)) for sensor, sizes in levels.items()}
    if not report.problem and not report.samples:
        why = "its sensor is neither acc nor gyro" if description.sensor_by_row else "it has no rows"
        report.problem = f"{file.name}: {why}"
    return report


def _span(
    part: Part, recording: Recording, report: FileReport, ends: dict[tuple[str, str, Part], tuple[float, int]]
) -> None:
    """Lengthen the last span of a session, whose last time and index `ends` has; a clock set back begins another."""
    times = recording.times_s[np.isfinite(recording.times_s)]
    if not len(times):
        return
    key = recording.client, recording.session, part
    before_s, at = ends.get(key, (float(times[0]), -1))
    for number, stretch in enumerate(np.split(times, restarts(times, before_s))):
        if not len(stretch):
            at = -1
            continue
        span = TimeSpan(recording.client, part, float(stretch.min()), float(stretch.max()), report.name)
        if number or at < 0:
            report.spans.append(span)
            at = len(report.spans) - 1
        else:
            known = report.spans[at]
            begin_s, end_s = min(known.begin_s, span.begin_s), max(known.end_s, span.end_s)
            report.spans[at] = span._replace(begin_s=begin_s, end_s=end_s)
    ends[key] = float(times[-1]), at


def _count(part: Part, recording: Recording, report: FileReport) -> None:
    report.clients.add(recording.client)
    report.sessions.add(recording.session)
    report.samples[part] += len(recording.times_s)
    usable = np.isfinite(recording.times_s) & np.isfinite(recording.values).all(axis=1)
    report.lost += int(len(usable) - usable.sum())
    if part in ("acc", "linear"):
        activity = recording.activity
        words = activity if isinstance(activity, Categorical) else Categorical.of(np.full(len(usable), activity))
        for name, count in zip(words.names.tolist(), np.bincount(words.codes, minlength=len(words.names)), strict=True):
            if count:
                report.labels[name or UNLABELLED_NAME] += int(count)
