"""The command line for descriptions: `info --describe` applies one, `describe` writes a first draft."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from gaitway.files import write_file
from gaitway.terminal import Console, working
from har_pipeline.description.files import DescribedFiles, find_files
from har_pipeline.description.guess.draft import draft
from har_pipeline.description.inspection import FileReport, covered_s, differences, inspect, odd_words
from har_pipeline.description.model import Description
from har_pipeline.errors import SettingsError, SourceError
from har_pipeline.recording import Sensor
from har_pipeline.signals.directions import Difference
from har_pipeline.units import MEANINGS

SHOWN_FILES = 20
SHOWN_PROBLEMS = 5
PLACE = re.compile(r"\d+")
"""Numbers of lines and counts, which are ignored when reasons are compared."""
LEVELS: tuple[tuple[Sensor, str, str], ...] = (
    ("acc", "m/s²", "gravity alone is 9.8"),
    ("gyro", "rad/s", "at rest near 0, walking some 1"),
)


def write_draft(root: Path, out: Path | None, console: Console) -> None:
    """Guess a description of the files under root, print it, and write it to `out` if that doesn't exist."""
    if out is not None and out.exists():
        raise SettingsError(f"{out} already exists; remove it, or give --out another name")
    with working(console, "looking") as say:
        found = draft(root, lambda done, name: say(f"trying it on file {done}: {name}"))
    text = found.toml()
    console.print(text, markup=False, soft_wrap=True)
    for problem in found.problems[:SHOWN_PROBLEMS]:
        console.print(f"not read  {problem}", markup=False)
    if len(found.problems) > SHOWN_PROBLEMS:
        console.print(f"… and {len(found.problems) - SHOWN_PROBLEMS} more files were not read")
    _show_directions(found.differences, console)
    if found.clients:
        console.print(f"clients: {_few(found.clients, 10)} ({len(found.clients)})", markup=False, soft_wrap=True)
    unsure = [key for key, guess in found.guesses.items() if not guess.sure]
    console.print(
        f"{len(found.guesses) - len(unsure)} of {len(found.guesses)} keys are sure; check {', '.join(unsure)}."
    )
    if out is None:
        console.print("Use --out data.toml to write it to a file.")
        return
    try:
        write_file(out, text.encode(), replace=False)
    except FileExistsError as error:
        raise SettingsError(f"{out} already exists; remove it, or choose another --out") from error
    except OSError as error:
        raise SettingsError(f"{out} cannot be written: {error}") from error
    console.print(
        f"Written to {out}. Next: python -m har_pipeline info --describe {out} --data-root {root}", markup=False
    )


def description_record(description: Description, root: Path | None) -> dict[str, Any]:
    """Return as JSON what a description says and, with a root, what it makes of each file there."""
    about = {"labels": list(description.labels.names), "expected": description.files}
    record = {**about, "acceleration": description.acceleration, "has_gyro": description.gyro is not None}
    if root is None:
        return record
    files = find_files(description, root)
    reports = list(inspect(description, files))
    rows = [
        {
            "file": report.name, "clients": sorted(report.clients), "sessions": sorted(report.sessions),
            "samples": dict(report.samples), "rate_hz": report.rate_hz, "seconds": dict(report.seconds),
            "lost": report.lost, "labels": dict(report.labels), "problem": report.problem or None,
        }
        for report in reports
    ]  # fmt: skip
    notes = {"damaged": list(map(str, files.damaged)), "odd": list(dict.fromkeys(odd_words(reports)))}
    return {**record, "files": rows, "others": list(files.others), **notes}


def show_description(description: Description, root: Path | None, console: Console) -> None:
    """Print a description and, with a root, its result on the files there."""
    labels = ", ".join(description.labels.names) or "none given"
    console.print(f"labels    {labels}", markup=False)
    console.print(f"expected  files = '{description.files}'", markup=False)
    meaning = MEANINGS[description.acceleration]
    console.print(f"acceleration  {description.acceleration}: {meaning}", markup=False, soft_wrap=True)
    if description.gyro is None:
        console.print("gyroscope not described: channels 4 to 6 of every window are 0, even when normalized by client")
    if root is None:
        console.print("Use --data-root PATH to read the files and show matches, rates and labels.")
        return
    files = find_files(description, root)
    with working(console, "reading") as say:
        reports = list(inspect(description, files, lambda done, name: say(f"{done} of {files.count}: {name}")))
    _show_files(files, reports, console)
    if all(report.problem for report in reports):
        raise SourceError("this description can't read any of the files; see the reasons above")
    for words in dict.fromkeys(odd_words(reports)):
        console.print(f"odd       {words}", markup=False)
    _show_labels(description, reports, console)
    _show_directions(differences(reports), console)


def _show_files(files: DescribedFiles, reports: list[FileReport], console: Console) -> None:
    fine = [report for report in reports if not report.problem]
    table = Table("file", "client", "sensors", "Hz", "minutes", "lost", "labels")
    for report in fine[:SHOWN_FILES]:
        table.add_row(
            escape(report.name),
            escape(_few(sorted(report.clients))),
            " ".join(sorted(report.samples)),
            f"{report.rate_hz:.4g}" if report.rate_hz else "?",
            f"{max(report.seconds.values(), default=0.0) / 60:.1f}",
            str(report.lost),
            escape(_few(sorted(report.labels))),
        )
    if fine:
        console.print(table, markup=False)
    if len(fine) > SHOWN_FILES:
        console.print(f"… and {len(fine) - SHOWN_FILES} more files like these")
    for damaged in files.damaged:
        console.print(f"left out  {damaged}", markup=False)
    reasons: dict[str, list[FileReport]] = {}
    for report in (report for report in reports if report.problem):
        reasons.setdefault(PLACE.sub("", report.problem.removeprefix(report.name)), []).append(report)
    for same in list(reasons.values())[:SHOWN_FILES]:
        more = f" (and {len(same) - 1} more files for the same reason)" if len(same) > 1 else ""
        console.print(f"not read  {same[0].problem}{more}", markup=False)
    if len(reasons) > SHOWN_FILES:
        unnamed = sum(len(same) for same in list(reasons.values())[SHOWN_FILES:])
        console.print(f"… and {unnamed} more files were not read, for other reasons")
    clients = {client for report in fine for client in report.clients}
    minutes = covered_s(fine) / 60
    others = f"; {len(files.others)} others do not: {_few(list(files.others))}" if files.others else ""
    console.print(
        f"{len(reports)} files match in {files.root}, {len(fine)} can be read: {len(clients)} clients, "
        f"{minutes:.1f} min{others}",
        markup=False,
    )


def _show_labels(description: Description, reports: list[FileReport], console: Console) -> None:
    samples: Counter[str] = sum((report.labels for report in reports if not report.problem), Counter())
    table = Table("label", "samples", "files", "clients")
    for label in (
        *description.labels.names,
        *(name for name in sorted(samples) if name not in description.labels.names),
    ):
        having = [report for report in reports if label in report.labels and not report.problem]
        clients = {client for report in having for client in report.clients}
        table.add_row(escape(label), str(samples[label]), str(len(having)), str(len(clients)))
    console.print(table, markup=False)
    for sensor, unit, usual in LEVELS:
        sizes = sorted(report.levels[sensor] for report in reports if sensor in report.levels)
        if sizes:
            console.print(f"{sensor:<9} median size {sizes[len(sizes) // 2]:.3g} {unit} ({usual})", markup=False)


def _show_directions(found: list[Difference], console: Console) -> None:
    for difference in found[:SHOWN_PROBLEMS]:
        console.print(f"direction client {difference.client}: {difference.words}", markup=False, soft_wrap=True)
    if len(found) > SHOWN_PROBLEMS:
        others = _few([difference.client for difference in found[SHOWN_PROBLEMS:]])
        console.print(f"direction … and {len(found) - SHOWN_PROBLEMS} more clients: {others}", markup=False)


def _few(words: list[str], most: int = 3) -> str:
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")
