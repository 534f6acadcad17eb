"""Images and their masks as one set: listed by name first, then decoded into two arrays of bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from federation.tasks.segmentation import Segmentation
from gaitway.images import Bytes, Frame
from gaitway.input_spec import Fit
from har_pipeline import SourceError
from har_pipeline.readers.archive import Source
from sim.data.images.image_files import read_image_and_size, read_mask
from sim.data.images.labelled import LabelledImages, PartitionTargets
from sim.data.images.reader import IMAGENET, ImageReader, Options, chosen, positive

MAX_SIDE = 2048
MAX_BYTES = 32 << 30
"""Of all images and masks of a set, as bytes."""
FRAME: Mapping[str, Any] = {"height": 256, "width": 256, "fit": "pad"}
"""Options of every reader of masks."""


Size = tuple[int, int]
"""Height and width."""


class ImageMaskPair(NamedTuple):
    """One example: the virtual names of its image and its mask, its published part, and whose it is."""

    image: str
    mask: str
    part: str = "train"
    client: str | None = None


def frame_of(options: Options) -> Frame:
    """Return the size that is asked for; raises SettingsError where it is none."""
    return Frame(positive(options, "height", MAX_SIDE), positive(options, "width", MAX_SIDE), _fit_of(options))


def _fit_of(options: Options) -> Fit:
    """Return how images of another shape are to come into that size; raises SettingsError for another word."""
    return "pad" if chosen(options, "fit", ("pad", "stretch")) == "pad" else "stretch"


def _shape_of(options: Options) -> tuple[int, int, int]:
    """Return the shape (3, height, width) that is asked for; raises SettingsError where it is none."""
    frame = frame_of(options)
    return 3, frame.height, frame.width


mask_reader = partial(ImageReader, shape=_shape_of, fit=_fit_of, moments=IMAGENET, target="mask")
"""The reader of a set of images with masks; its own defaults stand beside those of `FRAME`."""


def read_masks(source: Source, pairs: Sequence[ImageMaskPair], frame: Frame, table: Bytes) -> tuple[Bytes, list[Size]]:
    """Decode all masks (n, H, W) in the order of the pairs, and say which size each had.

    Raises:
        SourceError: if one is missing, broken or holds a number that `table` does not know, or all are too much.
    """
    if 4 * frame.height * frame.width * len(pairs) > MAX_BYTES:
        raise SourceError(
            f"{source.root}: {len(pairs):,} images and masks of {frame.height} × {frame.width} pixels take more than "
            f"{MAX_BYTES >> 30} GiB; take a smaller height and width"
        )
    rows = _rows([pair.mask for pair in pairs], source)
    sizes: list[Size] = [(0, 0)] * len(pairs)
    masks = np.empty((len(pairs), frame.height, frame.width), dtype=np.uint8)
    for _, member in source.members():
        if (row := rows.pop(member.name, None)) is not None:
            with member.open() as stream:
                masks[row], sizes[row] = read_mask(stream, member.name, frame, table)
    _complete(source, rows, "masks")
    return masks, sizes


def read_images(source: Source, pairs: Sequence[ImageMaskPair], frame: Frame, sizes: Sequence[Size]) -> Bytes:
    """Decode all images (n, 3, H, W) in the order of the pairs; `sizes` are those of their masks.

    Raises:
        SourceError: if one is missing, broken, or of another size than its mask.
    """
    rows = _rows([pair.image for pair in pairs], source)
    images = np.empty((len(pairs), 3, frame.height, frame.width), dtype=np.uint8)
    for _, member in source.members():
        if (row := rows.pop(member.name, None)) is not None:
            with member.open() as stream:
                images[row], size = read_image_and_size(stream, member.name, frame)
            if size != sizes[row]:
                (height, width), (own, across) = size, sizes[row]
                raise SourceError(
                    f"{pairs[row].mask} has {across} × {own} pixels, its image {member.name} {width} × {height}; "
                    "a mask must be as large as its image"
                )
    _complete(source, rows, "images")
    return images


def images_of(
    pairs: Sequence[ImageMaskPair],
    images: Bytes,
    masks: Bytes,
    labels: tuple[str, ...],
    dealt_by: PartitionTargets | None = None,
) -> LabelledImages:
    """Put a set together; the part `val` is for validation."""
    part = np.array([pair.part for pair in pairs])
    clients = [pair.client for pair in pairs]
    return LabelledImages(
        images,
        masks,
        labels,
        part != "test",
        None if None in clients else np.array(clients),
        dealt_by,
        part == "val" if "val" in part else None,
    )


def distinctive(masks: Bytes, classes: int, train: np.ndarray) -> np.ndarray:
    """Return the class (n,) that each mask has more of than others have, as streets have road but few have fences.

    That is the class whose share of the mask's pixels lies furthest above its mean over the training part (n,), in its
    standard deviations there; of equals the first.
    """
    counts = np.stack([np.bincount(mask.ravel(), minlength=256)[:classes] for mask in masks])
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    mean, std = shares[train].mean(axis=0), shares[train].std(axis=0)
    above: np.ndarray = np.divide(shares - mean, std, out=np.full_like(shares, -np.inf), where=std > 0)
    classes_of: np.ndarray = above.argmax(axis=1)
    return classes_of


def dominant_class(masks: Bytes, background: int | None) -> np.ndarray:
    """Return the class (n,) of most pixels of each mask; the background where there is no other."""
    found: np.ndarray = Segmentation(background=background).partition_label(torch.from_numpy(masks)).numpy()
    return found


def _rows(names: Sequence[str], source: Source) -> dict[str, int]:
    """Return the row of each file; none may be in two."""
    rows: dict[str, int] = {}
    for row, name in enumerate(names):
        if rows.setdefault(name, row) != row:
            raise SourceError(f"{source.root}: {name} is listed twice, so it would be trained and tested on")
    return rows


def _complete(source: Source, missing: Mapping[str, int], what: str) -> None:
    if missing:
        first = min(missing)
        raise SourceError(f"{source.root} lacks {len(missing)} {what}, the first is {first}; download the set again")
