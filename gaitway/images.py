"""Images and masks from JPEG and PNG files by Pillow: size-limited, scaled to one size, for training and serving."""

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
"""The value of a mask's pixel that has no class."""
PADDING = 128
"""The grey that pads an image of another shape: about images' mean, so about 0 after normalization."""
SUFFIXES = (".jpg", ".jpeg", ".png")

Bytes = npt.NDArray[np.uint8]
_MODES = {1: "L", 3: "RGB"}


class ImageError(GaitwayError):
    """A file isn't a readable image, or isn't a mask of these classes."""


class Frame(NamedTuple):
    """The size that images and masks are scaled to; `pad` keeps their aspect ratio, `stretch` fills the frame."""

    height: int
    width: int
    fit: Fit = "stretch"

    def box(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Return the position (top, left, height, width) of an image of this size in the frame."""
        if self.fit == "stretch":
            return 0, 0, self.height, self.width
        scale = min(self.height / height, self.width / width)
        inner = min(self.height, max(1, round(height * scale))), min(self.width, max(1, round(width * scale)))
        return (self.height - inner[0]) // 2, (self.width - inner[1]) // 2, *inner

    def image(self, image: Image.Image) -> Bytes:
        """Return a grey or color image as (bands, H, W), resampled by Lanczos and padded with grey."""
        from PIL import Image  # a caller with an image has Pillow; one that only needs the geometry doesn't

        top, left, height, width = self.box(image.height, image.width)
        if image.size != (width, height):
            image = image.resize((width, height), Image.Resampling.LANCZOS)
        pixels = np.asarray(image, dtype=np.uint8).reshape(height, width, -1)
        out = np.full((pixels.shape[2], self.height, self.width), PADDING, dtype=np.uint8)
        out[:, top : top + height, left : left + width] = pixels.transpose(2, 0, 1)
        return out

    def mask(self, mask: Bytes, beside: int) -> Bytes:
        """Return an image's mask (h, w) as (H, W): the nearest pixels, padded with `beside`."""
        top, left, height, width = self.box(*mask.shape)
        out = np.full((self.height, self.width), beside, dtype=np.uint8)
        out[top : top + height, left : left + width] = nearest(mask, height, width)
        return out

    def mask_back(self, mask: Bytes, height: int, width: int) -> Bytes:
        """Return the part of a mask (H, W) that an image of this size covers, scaled to that size."""
        top, left, inner_height, inner_width = self.box(height, width)
        return nearest(mask[top : top + inner_height, left : left + inner_width], height, width)


def decode_image(content: bytes, name: str, shape: tuple[int, int, int], fit: Fit = "stretch") -> Bytes:
    """Decode an image to uint8 (1 or 3 channels, height, width); other sizes are resampled by Lanczos.

    Raises:
        ImageError: if the bytes aren't a JPEG or PNG, are damaged, or claim more than 16 million pixels.
    """
    channels, height, width = shape
    with opened(content, name, ("JPEG", "PNG"), "a JPEG or PNG") as image:
        return Frame(height, width, fit).image(image.convert(_MODES[channels]))


def decode_mask(content: bytes, name: str, height: int, width: int, classes: int, fit: Fit = "stretch") -> Bytes:
    """Decode a mask to uint8 (height, width) by nearest pixels, padded with VOID.

    A mask is a PNG whose palette indices or grey values are class numbers, or VOID for no class.

    Raises:
        ImageError: as `decode_image`, and for a number that isn't a class.
    """
    with opened(content, name, ("PNG",), "a PNG whose palette or grey values are class numbers") as image:
        numbers = class_numbers(image, content, name)
    strange = np.setdiff1d(numbers, [*range(classes), VOID])
    if len(strange):
        known = f"0 to {classes - 1}, and {VOID} for none"
        raise ImageError(f"{name} has pixel values {strange.tolist()}; expected {known}")
    return Frame(height, width, fit).mask(numbers, VOID)


def image_size(content: bytes, name: str) -> tuple[int, int]:
    """Return an image's height and width from its header alone; raise ImageError like `decode_image`."""
    with opened(content, name, ("JPEG", "PNG"), "a JPEG or PNG") as image:
        return image.height, image.width


def class_numbers(image: Image.Image, content: bytes, name: str) -> Bytes:
    """Return palette indices or grey values (h, w) as stored in the file `content`, whatever the bit depth.

    Raises:
        ImageError: for colors, and for numbers above 255.
    """
    if image.mode not in ("P", "L", "1", "I;16", "I"):
        raise ImageError(
            f"{name} is a {image.mode} image; a mask must be a palette or grey PNG whose values are class numbers: "
            f"convert colors to numbers first"
        )
    values = np.asarray(image)
    if values.max() >= 256:
        raise ImageError(f"{name} has pixel values up to {values.max()}; expected class numbers from 0 to 255")
    numbers: Bytes = values.astype(np.uint8)
    # Pillow stretches grey values of 2 and 4 bits over 0 to 255; byte 24 of every PNG holds the depth
    return numbers // {2: 85, 4: 17}.get(content[24], 1) if image.mode == "L" else numbers


def nearest(mask: Bytes, height: int, width: int) -> Bytes:
    """Scale class numbers (h, w) to (height, width), taking the pixel at each cell's center."""
    rows, columns = (_centres(old, new) for old, new in zip(mask.shape, (height, width), strict=True))
    return mask[rows[:, None], columns]


def _centres(old: int, new: int) -> npt.NDArray[np.int64]:
    return (2 * np.arange(new) + 1) * old // (2 * new)


@contextmanager
def opened(
    content: bytes, name: str, formats: tuple[str, ...], expected: str, max_pixels: int = MAX_PIXELS
) -> Iterator[Image.Image]:
    """Open an image by its header alone, so that its size is checked before any pixel is decoded.

    Raises:
        ImageError: if the bytes aren't in one of the `formats`, are damaged, or claim too many pixels.
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
    except UnidentifiedImageError as error:  # Pillow's message names a buffer in memory
        content_text = f"it begins with {content[:12]!r}" if content else "it is empty"
        raise ImageError(f"{name} isn't a readable image: {content_text}; expected {expected}") from error
    except damaged as error:
        raise ImageError(f"{name} isn't a readable image: {error}; expected {expected}") from error
