"""What a reader of images consists of, and how it finds its files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from har_pipeline import SourceError
from har_pipeline.readers.archive import Source
from har_pipeline.readers.reader import DataSetReader, Options
from sim.data.images.labelled import LabelledImages
from sim.data.images.moments import Moments
from sim.errors import SettingsError

__all__ = ["ImageReader", "Options", "positive", "square"]


@dataclass(frozen=True, kw_only=True)
class ImageReader(DataSetReader):
    """A set of images: the shape (channels, height, width), how its files are read, and what normalizes its channels.

    `images` gets the files of the first layout that was found; where there are several, `source.layout` says which.
    """

    shape: Callable[[Options], tuple[int, int, int]]
    images: Callable[[Source, Options], LabelledImages]
    moments: Moments

    def read(self, root: Path | str | None, given: Options | None = None) -> LabelledImages:
        """Read the first layout that lies under root, a folder, an archive or a file.

        Raises:
            SettingsError: of har_pipeline for an unknown option, of sim for a value that does not fit.
            SourceError: if no layout is found, or a file is not what its layout says.
        """
        options = self.options(given)
        # false options are told before the files are searched
        self.labels(options), self.shape(options)
        source = self.open(root, options)
        if source is None:
            raise SourceError(f"{self.name} has no layout to look for")
        return self.images(source, options)


def positive(options: Options, key: str, most: int) -> int:
    """Return an option that counts something; raises SettingsError where it is no whole number from 1 to `most`."""
    value = options[key]
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise SettingsError(f"option {key} is {value!r}; expected a whole number from 1 to {most}")
    return value


def square(options: Options, most: int) -> tuple[int, int, int]:
    """Return the shape of colour pictures whose option `side` is at most so many pixels."""
    side = positive(options, "side", most)
    return 3, side, side
