"""Decoding JPEG and PNG files to bytes of one size, by Pillow; the only module that imports it."""

from __future__ import annotations

import io
import warnings
from typing import IO

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from har_pipeline import SourceError
from sim.data.images.bounded import DAMAGED, read_at_most

MOST_BYTES = 16 << 20
MOST_PIXELS = 1 << 24


def read_picture(stream: IO[bytes], name: str, side: int) -> npt.NDArray[np.uint8]:
    """Decode one picture to (3, side, side) uint8; another size is resampled (Lanczos), whatever its aspect.

    Raises:
        SourceError: for a file that is no JPEG or PNG, is damaged, or claims more than 16 million pixels.
    """
    content = io.BytesIO(read_at_most(stream, MOST_BYTES, name))
    try:
        with warnings.catch_warnings(action="error"), Image.open(content, formats=("JPEG", "PNG")) as picture:
            # the header alone was read: the pixels are decoded only after their number is known
            if picture.width * picture.height > MOST_PIXELS:
                raise SourceError(
                    f"{name} claims {picture.width} × {picture.height} pixels; the limit is {MOST_PIXELS}"
                )
            colour = picture.convert("RGB")
    except (*DAMAGED, UnidentifiedImageError, SyntaxError, ValueError, Warning, Image.DecompressionBombError) as error:
        raise SourceError(f"{name} is no picture that can be read: {error}; expected a JPEG or PNG") from error
    if colour.size != (side, side):
        colour = colour.resize((side, side), Image.Resampling.LANCZOS)
    return np.asarray(colour, dtype=np.uint8).transpose(2, 0, 1)
