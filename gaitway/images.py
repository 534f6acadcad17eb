"""Images and masks from JPEG and PNG files: bounded, at one size, by Pillow; for training and for serving alike."""

from __future__ import annotations

import io
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from gaitway.errors import GaitwayError
from gaitway.input_spec import Fit

if TYPE_CHECKING:
    from PIL import Image

MAX_BYTES = 16 << 20
MAX_PIXELS = 1 << 24
VOID = 255
"""What a mask holds where a pixel has no class."""
PADDING = 128
"""Grey beside an image of another shape: about the mean of images, so about 0 after normalization."""
SUFFIXES = (".jpg", ".jpeg", ".png")

Bytes = npt.NDArray[np.uint8]
_MODES = {1: "L", 3: "RGB"}


class ImageError(GaitwayError):
    """A file is no image that can be read, or no mask of these classes."""


class Frame(NamedTuple):
    """The size that images and masks are brought to; `pad` keeps their shape, `stretch` fills all of it."""

    height: int
    width: int
    fit: Fit = "stretch"

    def box(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Return (top, left, height, width) of where an image of this size comes to lie."""
        if self.fit == "stretch":
            return 0, 0, self.height, self.width
        scale = min(self.height / height, self.width / width)
        inner = min(self.height, max(1, round(height * scale))), min(self.width, max(1, round(width * scale)))
        return (self.height - inner[0]) // 2, (self.width - inner[1]) // 2, *inner

    def image(self, image: Image.Image) -> Bytes:
        """Return a grey or coloured image as (bands, H, W), resampled by Lanczos, grey beside it."""
        from PIL import Image  # whoever has an image has Pillow; who only wants the geometry needs none

        top, left, height, width = self.box(image.height, image.width)
        if image.size != (width, height):
            image = image.resize((width, height), Image.Resampling.LANCZOS)
        pixels = np.asarray(image, dtype=np.uint8).reshape(height, width, -1)
        out = np.full((pixels.shape[2], self.height, self.width), PADDING, dtype=np.uint8)
        out[:, top : top + height, left : left + width] = pixels.transpose(2, 0, 1)
        return out

    def mask(self, mask: Bytes, beside: int) -> Bytes:
        """Return an image's mask (h, w) as (H, W): the nearest pixels, and `beside` where no image is."""
        top, left, height, width = self.box(*mask.shape)
        out = np.full((self.height, self.width), beside, dtype=np.uint8)
        out[top : top + height, left : left + width] = nearest(mask, height, width)
        return out

    def mask_back(self, mask: Bytes, height: int, width: int) -> Bytes:
        """Return the part of a mask (H, W) that is an image of this size, with as many pixels as that has."""
        top, left, inner_height, inner_width = self.box(height, width)
        return nearest(mask[top : top + inner_height, left : left + inner_width], height, width)


def decode_image(content: bytes, name: str, shape: tuple[int, int, int], fit: Fit = "stretch") -> Bytes:
    """Decode an image to uint8 of a shape (1 or 3 channels, height, width); another size is resampled by Lanczos.

    Raises:
        ImageError: for bytes that are no JPEG or PNG, are damaged, or claim more than 16 million pixels.
    """
    channels, height, width = shape
    with opened(content, name, ("JPEG", "PNG"), "a JPEG or PNG") as image:
        return Frame(height, width, fit).image(image.convert(_MODES[channels]))


def decode_mask(content: bytes, name: str, height: int, width: int, classes: int, fit: Fit = "stretch") -> Bytes:
    """Decode a mask to uint8 (height, width), each pixel the one nearest to its centre; VOID beside it.

    A mask is a PNG whose palette indices or grey values are numbers of classes, or VOID for no class.

    Raises:
        ImageError: as `decode_image`, and for a number that is no class.
    """
    with opened(content, name, ("PNG",), "a PNG whose palette or grey values are numbers of classes") as image:
        numbers = class_numbers(image, content, name)
    strange = np.setdiff1d(numbers, [*range(classes), VOID])
    if len(strange):
        known = f"0 to {classes - 1}, and {VOID} for none"
        raise ImageError(f"{name} has pixels of {strange.tolist()}; known are {known}")
    return Frame(height, width, fit).mask(numbers, VOID)


def image_size(content: bytes, name: str) -> tuple[int, int]:
    """Return an image's height and width, by its header alone; raises ImageError as `decode_image`."""
    with opened(content, name, ("JPEG", "PNG"), "a JPEG or PNG") as image:
        return image.height, image.width


def class_numbers(image: Image.Image, content: bytes, name: str) -> Bytes:
    """Return palette indices or grey values (h, w) as they are in the file `content`, whatever the bits of each.

    Raises:
        ImageError: for colours, and for numbers above 255.
    """
    if image.mode not in ("P", "L", "1", "I;16", "I"):
        raise ImageError(
            f"{name} is a {image.mode} image; a mask must be a palette or grey PNG whose values are numbers of "
            "classes: convert colours to numbers first"
        )
    values = np.asarray(image)
    if values.max() >= 256:
        raise ImageError(f"{name} has pixels of {values.max()}; expected numbers of classes from 0 to 255")
    numbers: Bytes = values.astype(np.uint8)
    # Pillow stretches grey values of 2 and 4 bits over 0 to 255; the depth stands in byte 24 of every PNG
    return numbers // {2: 85, 4: 17}.get(content[24], 1) if image.mode == "L" else numbers


def nearest(mask: Bytes, height: int, width: int) -> Bytes:
    """Scale class numbers (h, w) to (height, width): of each cell the pixel at its centre."""
    rows, columns = (_centres(old, new) for old, new in zip(mask.shape, (height, width), strict=True))
    return mask[rows[:, None], columns]


def _centres(old: int, new: int) -> npt.NDArray[np.int64]:
    return (2 * np.arange(new) + 1) * old // (2 * new)


@contextmanager
def opened(
    content: bytes, name: str, formats: tuple[str, ...], expected: str, max_pixels: int = MAX_PIXELS
) -> Iterator[Image.Image]:
    """Open an image whose pixels are decoded only after their number is known: the header alone was read.

    Raises:
        ImageError: for bytes that are of none of the `formats`, are damaged, or claim too many pixels.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ModuleNotFoundError as error:
        raise ImageError(f"images need Pillow ({error}): pip install pillow") from error
    damaged = (OSError, EOFError, zlib.error, SyntaxError, ValueError, Warning, Image.DecompressionBombError)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with Image.open(io.BytesIO(content), formats=formats) as image:
                if image.width * image.height > max_pixels:
                    raise ImageError(f"{name} claims {image.width} × {image.height} pixels; the limit is {max_pixels}")
                yield image
    except UnidentifiedImageError as error:  # Pillow's words name a buffer in memory
        content_text = f"it begins with {content[:12]!r}" if content else "it is empty"
        raise ImageError(f"{name} is no image that can be read: {content_text}; expected {expected}") from error
    except damaged as error:
        raise ImageError(f"{name} is no image that can be read: {error}; expected {expected}") from error
