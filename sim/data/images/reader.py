"""What a reader of images consists of, and how it finds its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from gaitway.errors import did_you_mean
from har_pipeline import SourceError
from har_pipeline.archive import Layout, Source, locate
from sim.data.images.labelled import LabelledImages
from sim.data.images.moments import Moments
from sim.errors import SettingsError

Options = Mapping[str, Any]


class Form(NamedTuple):
    """One layout in which a data set is had, and how it is read."""

    layout: Layout
    read: Callable[[Source, Options], LabelledImages]


@dataclass(frozen=True)
class ImageReader:
    """One data set: labels, shape (channels, height, width), the forms that it is looked for in, in that order.

    `moments` are what its channels are normalized with; `defaults` names every option and its default.
    """

    name: str
    summary: str
    labels: Callable[[Options], tuple[str, ...]]
    shape: Callable[[Options], tuple[int, int, int]]
    forms: tuple[Form, ...]
    moments: Moments
    defaults: Options = field(default_factory=dict)

    def options(self, given: Options | None) -> dict[str, Any]:
        """Lay the given options over the defaults; an unknown one raises SettingsError."""
        for key in given or {}:
            if key not in self.defaults:
                hint = did_you_mean(key, self.defaults) if self.defaults else "it takes none"
                raise SettingsError(f"unknown option {key!r} for {self.name}; {hint}")
        return {**self.defaults, **(given or {})}

    def read(self, root: Path | str | None, given: Options | None = None) -> LabelledImages:
        """Read the first form that lies under root, a folder, an archive or a file.

        Raises:
            SettingsError: for an unknown option or a value that does not fit.
            SourceError: if no form is found, or a file is not what its layout says.
        """
        options = self.options(given)
        # false options are told before the files are searched
        self.labels(options), self.shape(options)
        source, form = self._found(root)
        return form.read(source, options)

    def _found(self, root: Path | str | None) -> tuple[Source, Form]:
        missing = []
        for form in self.forms:
            try:
                return locate(root, form.layout, self.name), form
            except SourceError as error:
                missing.append(str(error))
        raise SourceError("; or: ".join(missing))


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
