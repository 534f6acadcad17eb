"""Any images with masks: two folders with the same names in both, or one where a mask's name ends in a word.

    {train,val,test}/images/NAME.jpg  {train,val,test}/masks/NAME.png     parts above the folders,
    images/{train,val,test}/NAME.jpg  masks/{train,val,test}/NAME.png     below them,
    images/NAME.jpg                   masks/NAME.png                      or none: all is to train on

Names may hold folders (Cityscapes: data.images=leftImg8bit data.masks=gtFine data.image_suffix=_leftImg8bit
data.mask_suffix=_gtFine_labelTrainIds). A mask is a PNG whose palette or grey values are numbers of classes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from gaitway.errors import did_you_mean
from gaitway.images import Bytes
from har_pipeline import SourceError
from har_pipeline.readers.archive import Layout, Source
from sim.data.images.image_files import VOID, classes_table
from sim.data.images.labelled import LabelledImages, PartitionTargets
from sim.data.images.pairs import (
    FRAME,
    ImageMaskPair,
    dominant_class,
    frame_of,
    images_of,
    mask_reader,
    read_images,
    read_masks,
)
from sim.data.images.reader import Options
from sim.errors import SettingsError

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
        not isinstance(each, int) or isinstance(each, bool) or not 0 <= each <= 255 for each in given
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
        raise SettingsError(f"option client is {options['client']!r}, no regular expression: {error}") from error
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
