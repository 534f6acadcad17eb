"""Images and their masks as one set: listed by name first, then decoded into two arrays of bytes.

Any images with masks: two folders with the same names in both, or one where a mask's name ends in a word.

    {train,val,test}/images/NAME.jpg  {train,val,test}/masks/NAME.png     parts above the folders,
    images/{train,val,test}/NAME.jpg  masks/{train,val,test}/NAME.png     below them,
    images/NAME.jpg                   masks/NAME.png                      or none: all is to train on

Names may hold folders (Cityscapes: data.images=leftImg8bit data.masks=gtFine data.image_suffix=_leftImg8bit
data.mask_suffix=_gtFine_labelTrainIds). A mask is a PNG whose palette or grey values are numbers of classes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from federation.tasks.segmentation import Segmentation
from gaitway.errors import did_you_mean
from gaitway.images import Bytes, Frame
from gaitway.input_spec import Fit
from har_pipeline import SourceError
from har_pipeline.readers.archive import Layout, Source
from sim.data.images.image_files import VOID, classes_table, read_image_and_size, read_mask
from sim.data.images.reader import IMAGENET, ImageReader, LabelledImages, Options, PartitionTargets, chosen, positive
from sim.errors import SettingsError

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


MAX_CLASSES = 254
PARTS = "train|val|test"


def labels(options: Options) -> tuple[str, ...]:
    """Return the option `labels`, the names of the classes.

    Raises:
        SettingsError: where it is missing, or another option does not fit it.
    """
    given = options["labels"]
    if isinstance(given, str) or not 2 <= len(given) <= MAX_CLASSES or len(set(given)) != len(given):
        raise SettingsError(
            f"option labels is {given!r}; expected 2 to {MAX_CLASSES} names of classes, in the order of their numbers "
            'in the masks, such as --set \'data.labels=["background", "road"]\''
        )
    names = tuple(map(str, given))
    _table(options, names), _background(options, names), _client(options), _layout(options)
    return names


def read(source: Source, options: Options) -> LabelledImages:
    """Read all images and masks, ordered by part and name."""
    names, frame, pairs = labels(options), frame_of(options), _pairs(source, options)
    masks, sizes = read_masks(source, pairs, frame, _table(options, names))
    background = _background(options, names)
    dealt = None if background is None else PartitionTargets(dominant_class(masks, background), names)
    return images_of(pairs, read_images(source, pairs, frame, sizes), masks, names, dealt)


def _table(options: Options, names: Sequence[str]) -> Bytes:
    """Return what each number in a mask becomes: the place of its class, or none."""
    values = list(range(len(names))) if options["values"] is None else _numbers(options, "values")
    if len(values) != len(names) or len(set(values)) != len(values):
        raise SettingsError(f"option values is {values}; expected a number in masks for each of {len(names)} labels")
    ignored = [VOID] if options["ignore"] is None else _numbers(options, "ignore")
    if options["ignore"] is not None and (both := sorted(set(values) & set(ignored))):
        raise SettingsError(f"option ignore has {both[0]}, the number of the class {names[values.index(both[0])]!r}")
    return classes_table({**dict.fromkeys(ignored, VOID), **{value: place for place, value in enumerate(values)}})


def _numbers(options: Options, key: str) -> list[int]:
    given = options[key]
    if not isinstance(given, list | tuple) or any(
        not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= 255 for number in given
    ):
        raise SettingsError(f"option {key} is {given!r}; expected numbers from 0 to 255, such as data.{key}=[0,255]")
    return list(given)


def _background(options: Options, names: Sequence[str]) -> int | None:
    """Return the place of the class that an image is only dealt by where it has no other."""
    given = options["background"]
    if given is None:
        return None
    if given not in names:
        raise SettingsError(f"option background is {given!r}; {did_you_mean(str(given), names)}")
    return names.index(given)


def _client(options: Options) -> re.Pattern[str] | None:
    """Return the rule by which an image's name says whose it is: its first group."""
    if options["client"] is None:
        return None
    try:
        rule = re.compile(str(options["client"]))
    except re.error as error:
        raise SettingsError(
            f"option client is {options['client']!r}, which isn't a regular expression: {error}"
        ) from error
    if rule.groups != 1:
        raise SettingsError(
            f"option client is {options['client']!r}; expected a regular expression with one group that is the client, "
            "such as ([^_]+)_ for what stands before the first _"
        )
    return rule


def _layout(options: Options) -> Layout:
    """Return how images and masks are called; SettingsError where they could not be told apart."""
    words = {key: options[key] for key in ("images", "masks", "image_suffix", "mask_suffix")}
    for key, word in words.items():
        if not isinstance(word, str):
            raise SettingsError(f"option {key} is {word!r}; expected a text")
    if words["images"] == words["masks"] and words["image_suffix"] == words["mask_suffix"]:
        raise SettingsError(
            f"images and masks both lie in {words['images']!r}: give the end of the masks' names, such as "
            "data.mask_suffix=_mask"
        )
    image, mask = (_files(words[f"{kind}s"], words[f"{kind}_suffix"], kind) for kind in ("image", "mask"))
    # where both lie in one folder the longer end is looked for first: a mask is no image without an end
    both = (mask, image) if len(words["mask_suffix"]) >= len(words["image_suffix"]) else (image, mask)
    return Layout(
        files=re.compile(rf"(?:(?<=/)|^)(?:(?P<above>{PARTS})/)?(?:{both[0]}|{both[1]})$", re.IGNORECASE),
        archives=re.compile("."),
        expected=(
            f"{words['images']}/NAME{words['image_suffix']}.jpg (or .png) and "
            f"{words['masks']}/NAME{words['mask_suffix']}.png, all below train/, val/ or test/, or none"
        ),
    )


def _files(folder: str, suffix: str, kind: str) -> str:
    ends = r"\.(?:png|jpe?g)" if kind == "image" else r"\.png"
    within = f"{re.escape(folder.strip('/'))}/" if folder.strip("/") else ""
    return rf"{within}(?:(?P<{kind}_part>{PARTS})/)?(?P<{kind}>[^/]+(?:/[^/]+)*?){re.escape(suffix)}{ends}"


def _pairs(source: Source, options: Options) -> list[ImageMaskPair]:
    """Join images and masks by part and name."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for match, member in source.members():
        kind = "image" if match["image"] else "mask"
        part = (match["above"] or match[f"{kind}_part"] or "train").lower()
        files = found.setdefault((part, match[kind]), {})
        if kind in files:
            raise SourceError(f"{source.root}: {files[kind]} and {member.name} are both the {kind} of {match[kind]}")
        files[kind] = member.name
    rule = _client(options)
    pairs = []
    for (part, name), files in sorted(found.items()):
        for kind, other in (("image", "mask"), ("mask", "image")):
            if kind not in files:
                raise SourceError(f"{source.root}: {files[other]} has no {kind}; expected {source.layout.expected}")
        pairs.append(ImageMaskPair(files["image"], files["mask"], part, _owner(rule, name, source)))
    return pairs


def _owner(rule: re.Pattern[str] | None, name: str, source: Source) -> str | None:
    if rule is None:
        return None
    match = rule.search(name)
    if match is None or not match[1]:
        raise SourceError(f"{source.root}: option client {rule.pattern!r} finds no client in the name {name!r}")
    return str(match[1])


_DEFAULTS: dict[str, Any] = {
    **FRAME,
    **{"labels": (), "values": None, "ignore": None, "background": None, "client": None},
    **{"images": "images", "masks": "masks", "image_suffix": "", "mask_suffix": ""},
}
READER = mask_reader(
    name="mask_folder",
    summary="any images and masks in two folders; options labels, values, ignore, background, client, images, "
    "masks, image_suffix, mask_suffix, height, width, fit",
    labels=labels,
    has_clients=lambda options: options["client"] is not None,
    layouts=lambda options: (_layout(options),),
    images=read,
    defaults=_DEFAULTS,
)
