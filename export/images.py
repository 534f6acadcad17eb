"""Images of any size for a model: numpy, Pillow and ONNX Runtime, without torch.

    images = Images(Session.load("model.onnx"))
    for answer in images.predict([np.asarray(Image.open("street.jpg").convert("RGB"))]):
        print(answer.shares)

An image is resized to the model's input like the training images (`fit`: stretched, or padded with grey), by Lanczos
resampling. Pixels are divided by 255; the graph contains the rest of the normalization. A mask is resized to the
image's own size by nearest neighbor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from export.runtime import Floats, InputError, Session
from gaitway.images import Bytes, Frame, ImageError, opened

MAX_BYTES = 64 << 20
MAX_PIXELS = 1 << 26
FORMATS = ("JPEG", "PNG", "WEBP", "BMP")
_COLOURS = {1: "L", 3: "RGB"}


class ImagePrediction(NamedTuple):
    """What a model says of one image.

    `label` and `probabilities` (C,) of the whole image, where it was classified; `mask` (height, width) of class
    numbers, as many pixels as the image has, where it was segmented. `shares` (C,) sum to 1: the probabilities, or
    each class's share of the pixels.
    """

    label: str | None
    probabilities: Floats | None
    mask: Bytes | None
    shares: Floats


class ImageRecognizer:
    """A model on images; raises InputError where it takes none."""

    def __init__(self, session: Session) -> None:
        spec = session.metadata.input
        if spec.kind != "image" or spec.shape[0] not in _COLOURS:
            raise InputError(f"the model takes {spec.kind}s {spec.describe()}; expected one on grey or coloured images")
        if session.metadata.segments and len(session.metadata.labels) > 256:
            raise InputError(f"{len(session.metadata.labels)} classes; a mask has at most 256")
        self.session = session
        self._channels, height, width = spec.shape
        self._frame = Frame(height, width, spec.fit or "stretch")

    def predict(self, images: Sequence[NDArray[Any]]) -> list[ImagePrediction]:
        """Answer for images, each uint8 (height, width, 3), or (height, width) of grey; raises InputError."""
        if not images:
            return []
        found = self.session.predict(np.stack([self._fitted(image) for image in images]))
        if not self.session.metadata.segments:
            pairs = zip(found.labels, found.probabilities, strict=True)
            return [ImagePrediction(label, own, None, own) for label, own in pairs]
        return [self._segmented(own, image) for own, image in zip(found.classes, images, strict=True)]

    def predict_files(self, paths: Iterable[Path]) -> Iterator[tuple[Path, ImagePrediction]]:
        """Answer for files, one after the other, as `read_image` reads them."""
        for path in paths:
            yield path, self.predict([read_image(path)])[0]

    def _fitted(self, image: NDArray[Any]) -> Floats:
        """Bring an image to (C, height, width) float32 between 0 and 1."""
        grey, colour = image.ndim == 2, image.ndim == 3 and image.shape[2] == 3
        if image.dtype != np.uint8 or not (grey or colour) or 0 in image.shape:
            raise InputError(
                f"an image {image.shape} of {image.dtype}; expected uint8 (height, width, 3), or (height, width)"
            )
        sized = Image.fromarray(np.ascontiguousarray(image)).convert(_COLOURS[self._channels])
        return self._frame.image(sized).astype(np.float32) / np.float32(255)

    def _segmented(self, classes: NDArray[np.int64], image: NDArray[Any]) -> ImagePrediction:
        mask = self._frame.mask_back(classes.astype(np.uint8), *image.shape[:2])
        counts = np.bincount(mask.ravel(), minlength=len(self.session.metadata.labels))
        return ImagePrediction(None, None, mask, (counts / mask.size).astype(np.float32))


def read_image(path: Path) -> Bytes:
    """Decode a JPEG, PNG, WebP or BMP file to uint8 (height, width, 3); raises InputError."""
    expected = f"one of {', '.join(FORMATS)}"
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"{path}: {path.stat().st_size} bytes; expected at most {MAX_BYTES}")
        with opened(path.read_bytes(), str(path), FORMATS, expected, MAX_PIXELS) as image:
            return np.asarray(image.convert("RGB"), dtype=np.uint8)
    except OSError as error:
        raise InputError(f"{path} isn't a readable image: {error}; expected {expected}") from None
    except ImageError as error:
        raise InputError(str(error)) from None


def mask_paths(folder: Path, images: Sequence[Path]) -> list[Path]:
    """Name the file of each image's mask, `folder`/NAME.png.

    Raises:
        InputError: where two images have one name, or a mask would take an image's place.
    """
    whose: dict[Path, Path] = {}
    for image in images:
        target = folder / f"{image.stem}.png"
        other = whose.setdefault(target, image)
        if other is not image:
            raise InputError(f"{other} and {image} would both write their mask to {target}; give one folder at a time")
    taken = {image.resolve() for image in images}
    if (over := next((path for path in whose if path.resolve() in taken), None)) is not None:
        raise InputError(f"the mask of {whose[over]} would overwrite the image {over}; give another folder")
    return list(whose)


def write_mask(path: Path, mask: Bytes) -> None:
    """Write class numbers (height, width) as a PNG, a palette of colours beside them: its indices are the numbers."""
    image = Image.fromarray(mask)
    image.putpalette(_palette())
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, format="PNG")


def _palette() -> list[int]:
    """Return 256 colours, far from each other where numbers are small: the bits of each number, as Pascal VOC's."""
    numbers = np.arange(256)
    colours = np.zeros((256, 3), np.uint8)
    for bit in range(8):
        for channel in range(3):
            colours[:, channel] |= ((numbers >> channel & 1) << (7 - bit)).astype(np.uint8)
        numbers >>= 3
    flat: list[int] = colours.ravel().tolist()
    return flat
