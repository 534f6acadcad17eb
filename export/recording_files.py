"""Reads recordings for a model: described files, folders and archives, and pipes and growing files.

The description's reader parses them, with pandas; `export.recognizer` itself does without.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

from export.runtime import InputError
from gaitway.own_packages import install_command
from har_pipeline import Recording
from har_pipeline.description import DescribedFile, Description, description_of, file_recordings, find_files
from har_pipeline.description.files import Matched
from har_pipeline.description.sessions import recordings
from har_pipeline.units import axes_matrix

PIPE = "standard input"
BATCH_ROWS = 4096
"""Bytes of a live stream that are parsed together: one sensor is never many seconds ahead of the other."""
POLL_S = 0.1


class CsvColumns(NamedTuple):
    """CSV files with a header, described by the names of their columns, as the command's options give them."""

    time: str
    acc: str
    gyro: str
    units: str
    axes: str
    separator: str
    acceleration: str

    def description(self) -> Description:
        """Describe them as a file would.

        Raises InputError and SettingsError for what names no three columns, no units, no axes and no convention.
        """
        names = [unit.strip() for unit in self.units.split(",")]
        if len(names) != 3:
            raise InputError(
                f"--units {self.units!r}: expected three, of time, accelerometer and gyroscope: s,m/s2,rad/s"
            )
        turned = {} if self.axes == "x,y,z" else {"matrix": axes_matrix(self.axes).tolist()}
        sensors = {"acc": (self.acc, names[1]), **({"gyro": (self.gyro, names[2])} if self.gyro else {})}
        return description_of(
            {
                "files": "[^/]+",
                "separator": self.separator,
                "time": {"column": self.time, "unit": names[0]},
                "acceleration": self.acceleration,
                **{
                    sensor: {"columns": columns.split(","), "unit": unit, **turned}
                    for sensor, (columns, unit) in sensors.items()
                },
            }
        )


def read_recordings(
    name: str, description: Description, *, follow: bool, on_warning: Callable[[str], None]
) -> Iterator[Recording]:
    """Yield the chunks of every client's sessions in turn; a pipe ("-") and a file to `follow` are one without names.

    What the files say of activities is not asked. Raises PipelineError, and InputError where pandas is missing.
    """
    if importlib.util.find_spec("pandas") is None:
        raise InputError(f"text files are read with pandas, which is not installed: {install_command('runtime')}")
    description = description.with_labels(())
    if name != "-" and not follow:
        found = recordings(description, find_files(description, name), report=on_warning)
    else:
        path = Path("/dev/stdin" if name == "-" else name)
        shown = PIPE if name == "-" else name
        file = DescribedFile(shown, path, Matched({}, shown), partial(_opened, name, follow=follow), endless=True)
        found = (recording._replace(client="", session="") for recording in file_recordings(description, file))
    for recording in found:
        if recording.sensor == "acc" or description.gyro is not None:
            yield recording


class _Live:
    """The bytes of a pipe as they come, or of a file that grows, at whose end more is waited for."""

    def __init__(self, file: IO[bytes], *, wait: bool) -> None:
        self._file, self._wait = file, wait

    def read(self, size: int, /) -> bytes:
        """Return what is there, at most BATCH_ROWS; nothing at the end, which a file that grows never has."""
        read = getattr(self._file, "read1", self._file.read)
        while not (found := bytes(read(min(size, BATCH_ROWS)))) and self._wait:
            time.sleep(POLL_S)
        return found


@contextmanager
def _opened(name: str, *, follow: bool) -> Iterator[_Live]:
    with ExitStack() as stack:
        try:
            file = sys.stdin.buffer if name == "-" else stack.enter_context(Path(name).open("rb"))
        except OSError as error:
            raise InputError(f"{name}: {error.strerror}") from None
        yield _Live(file, wait=follow and name != "-")
