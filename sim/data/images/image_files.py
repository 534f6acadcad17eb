"""Image files: no more of them than a file may hold, decoded from JPEG and PNG to bytes of one size."""

from __future__ import annotations

import lzma
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import numpy as np
from PIL import Image

from gaitway.images import MAX_BYTES, Bytes, Frame, ImageError, class_numbers, opened
from gaitway.images import VOID as NO_CLASS
from har_pipeline import SourceError

DAMAGED = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)


def read_next(stream: IO[bytes], size: int, name: str) -> bytes:
    """Read the next `size` bytes of a (decompressed) stream; raises SourceError if it is damaged or ends before."""
    content = _read(stream, size, name)
    if len(content) != size:
        raise SourceError(f"{name} ends after {len(content):,} of {size:,} bytes; download it again")
    return content


def read_bounded(stream: IO[bytes], limit: int, name: str) -> bytes:
    """Read a stream to its end; raises SourceError if it is damaged or goes beyond `limit` bytes."""
    content = _read(stream, limit + 1, name)
    if len(content) > limit:
        raise SourceError(f"{name} has more than {limit:,} bytes, so it isn't a file of this data set")
    return content


def read_rest(stream: IO[bytes], size: int, name: str) -> bytes:
    """Read a stream that must end after `size` bytes more; raises SourceError if it does not."""
    return read_next(stream, size, name) + read_bounded(stream, 0, name)


def _read(stream: IO[bytes], size: int, name: str) -> bytes:
    try:
        return stream.read(size)
    except DAMAGED as error:
        raise SourceError(f"{name} cannot be read: {error}; download it again") from error


VOID = NO_CLASS
"""What a mask holds where a pixel has no class, and beside an image of another shape."""


def read_image(stream: IO[bytes], name: str, side: int) -> Bytes:
    """Decode one image to (3, side, side) uint8; another size is resampled (Lanczos), whatever its aspect.

    Raises:
        SourceError: for a file that is no JPEG or PNG, is damaged, or claims more than 16 million pixels.
    """
    return read_image_and_size(stream, name, Frame(side, side))[0]


def read_image_and_size(stream: IO[bytes], name: str, frame: Frame) -> tuple[Bytes, tuple[int, int]]:
    """Decode one image to (3, H, W) uint8, resampled by Lanczos; beside it the height and width that it had.

    Raises:
        SourceError: as `read_image`.
    """
    content = read_bounded(stream, MAX_BYTES, name)
    with _opened(content, name, ("JPEG", "PNG"), "a JPEG or PNG") as image:
        colour = image.convert("RGB")
    return frame.image(colour), (colour.height, colour.width)


def read_mask(stream: IO[bytes], name: str, frame: Frame, classes: Bytes) -> tuple[Bytes, tuple[int, int]]:
    """Decode one mask to (H, W) uint8, each pixel that nearest to its centre; beside it the size that it had.

    A mask is a PNG whose palette indices or grey values are numbers of classes, exactly: `classes` (256,) says what
    each number becomes, VOID for no class, `UNKNOWN` for a number that has no meaning here. What an image does not
    reach is VOID.

    Raises:
        SourceError: for a file that is no such PNG, is damaged, claims more than 16 million pixels, or has a number
            that is unknown, naming it.
    """
    content = read_bounded(stream, MAX_BYTES, name)
    with _opened(content, name, ("PNG",), "a PNG whose palette or grey values are class numbers") as image:
        numbers = class_numbers(image, content, name)
    present = np.flatnonzero(np.bincount(numbers.ravel(), minlength=len(classes)))
    strange = present[classes[present] == UNKNOWN].tolist()
    if strange:
        known = np.flatnonzero(classes != UNKNOWN).tolist()
        raise SourceError(f"{name} has pixel values {_listed(strange)}; expected {_listed(known)}")
    return frame.mask(classes[numbers], VOID), (numbers.shape[0], numbers.shape[1])


UNKNOWN = 254
"""Stands in a table of classes for numbers that no mask may hold."""


def classes_table(numbers: dict[int, int]) -> Bytes:
    """Return the table (256,) of numbers in masks and what they become; all others are UNKNOWN."""
    table = np.full(256, UNKNOWN, dtype=np.uint8)
    for number, becomes in numbers.items():
        table[number] = becomes
    return table


@contextmanager
def _opened(content: bytes, name: str, formats: tuple[str, ...], expected: str) -> Iterator[Image.Image]:
    try:
        with opened(content, name, formats, expected) as image:
            yield image
    except ImageError as error:
        raise SourceError(str(error)) from error


def _listed(numbers: list[int]) -> str:
    """Write ascending numbers, runs as `0 to 20`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
