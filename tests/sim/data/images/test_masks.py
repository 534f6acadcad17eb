"""Images with masks: VOC, CamVid and folders of one's own, in exactly their layouts, and masks that are refused."""

from __future__ import annotations

import io
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from federation.tasks.segmentation import Segmentation, nearest
from gaitway.errors import GaitwayError
from har_pipeline import SourceError
from sim.data.images import IMAGE_SETS, LabelledImages
from sim.data.images.image_files import Frame, classes_table, read_image_and_size, read_mask
from sim.data.images.voc import MACRO, OBJECTS
from tests.har_pipeline.layouts import Files, forms, unpacked, zipped
from tests.sim.data.images import layouts

FORMS = ["folder", "deep", "zip", "tar", "tar.xz", "zip in zip in folder"]
OWN_SIZE = {"height": 12, "width": 16}
NAMED: dict[str, Any] = {"labels": ["ground", "car", "tree"], "height": 10, "width": 14}
MADE: dict[str, tuple[layouts.MadeMasks, str, dict[str, Any]]] = {
    "camvid": (layouts.camvid(), "camvid_240x180", {}),
    "voc2012": (layouts.voc(), "VOCtrainval_11-May-2012", OWN_SIZE),
    "mask_folder": (layouts.masked_images(), "own", NAMED),
}
TABLE = classes_table({**{number: number for number in range(21)}, 255: 255})


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Path]]:
    return {
        name: forms(made.files, tmp_path_factory.mktemp(name), archive) for name, (made, archive, _) in MADE.items()
    }


def same(images: LabelledImages, made: layouts.MadeMasks) -> None:
    assert np.array_equal(images.x, made.x)
    assert np.array_equal(images.y, made.masks)
    assert images.y.dtype == np.uint8
    assert np.array_equal(images.train, made.train)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MADE)
def test_each_set_reads_what_was_written(sources: Mapping[str, Mapping[str, Path]], name: str, form: str) -> None:
    made, _, options = MADE[name]
    images = IMAGE_SETS[name].read(sources[name][form], options)
    same(images, made)
    assert images.shape == IMAGE_SETS[name].shape(IMAGE_SETS[name].options(options))


def mask_of(content: bytes, frame: Frame) -> np.ndarray:
    return read_mask(io.BytesIO(content), "mask.png", frame, TABLE)[0]


def test_palette_and_grey_masks_hold_the_same_numbers() -> None:
    numbers = np.where(layouts.noise(0, 9, 7) % 4 == 0, 255, layouts.noise(1, 9, 7) % 21)
    for content in (layouts.palette_png(numbers), layouts.grey_png(numbers)):
        assert np.array_equal(mask_of(content, Frame(9, 7)), numbers)


@pytest.mark.parametrize("bits", [1, 2, 4, 16])
def test_grey_masks_of_any_depth_are_read_exactly(bits: int) -> None:
    numbers = layouts.noise(2, 6, 8) % min(2**bits, 21)
    rows = numbers.astype(">u2").view(np.uint8).reshape(6, -1) if bits == 16 else None
    if rows is None:
        places = (numbers[..., None] >> np.arange(bits - 1, -1, -1)) & 1
        rows = np.packbits(places.reshape(6, -1).astype(np.uint8), axis=1)
    pixels = b"".join(b"\0" + row.tobytes() for row in rows)
    header = (8).to_bytes(4, "big") + (6).to_bytes(4, "big") + bytes([bits, 0, 0, 0, 0])
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(pixels)), (b"IEND", b""))
    chunks = (len(d).to_bytes(4, "big") + k + d + zlib.crc32(k + d).to_bytes(4, "big") for k, d in parts)
    assert np.array_equal(mask_of(b"\x89PNG\r\n\x1a\n" + b"".join(chunks), Frame(6, 8)), numbers)


@pytest.mark.parametrize("size", [(5, 4), (18, 30), (9, 7)])
def test_masks_are_resized_to_the_nearest_pixel(size: tuple[int, int]) -> None:
    numbers = layouts.noise(3, 9, 7) % 21
    found = mask_of(layouts.grey_png(numbers), Frame(*size))
    pillow = Image.fromarray(numbers.astype(np.uint8)).resize(size[::-1], Image.Resampling.NEAREST)
    assert np.array_equal(found, np.asarray(pillow))
    assert np.array_equal(found, nearest(torch.from_numpy(numbers)[None], torch.Size(size))[0].numpy())


def test_an_image_and_its_mask_keep_their_shape_together() -> None:
    """A wide image in a square: the object lies at the same place in both, and what is beside it has no class."""
    numbers = np.zeros((20, 40), np.uint8)
    numbers[4:12, 10:30] = 7
    colour = np.where(numbers == 7, 250, 10).astype(np.uint8)
    frame = Frame(16, 16, "pad")
    mask = mask_of(layouts.grey_png(numbers), frame)
    x, size = read_image_and_size(io.BytesIO(layouts.image_bytes(np.stack([colour] * 3))), "x.png", frame)
    assert size == (20, 40)
    assert (mask[:4] == 255).all()
    assert (mask[12:] == 255).all()
    assert (mask[4:12] != 255).all()
    inner = mask[4:12] == 7
    assert inner.any()
    assert np.array_equal(x[0, 4:12] > 125, inner)
    assert (x[:, :4] == 128).all()


def test_camvid_has_drives_as_clients_and_its_parts() -> None:
    made, _, _ = MADE["camvid"]
    images = IMAGE_SETS["camvid"].read(_root(made.files))
    assert images.client is not None
    assert images.validation is not None
    assert images.client.tolist() == ["Seq05VD"] * 2 + ["0001TP", "0016E5"] * 2
    assert images.validation.tolist() == [False] * 4 + [True] * 2
    assert len(images.labels) == 11
    assert images.targets_for_partition(Segmentation()).labels == images.labels


def test_camvid_is_dealt_by_what_an_image_has_more_of_than_others() -> None:
    """Everywhere is mostly road; one image has a little more of cars than the other five, one of sky."""
    made, _, _ = MADE["camvid"]
    masks = np.full_like(made.masks, 3)
    masks[:, :20], masks[:, 20:24] = 8, 0
    masks[2, :40], masks[3, 20:60] = 8, 0
    names = sorted(name for name in made.files if "annot/" in name)
    files = {**made.files, **{name: layouts.grey_png(mask) for name, mask in zip(names, masks, strict=True)}}
    largest, distinctive = (
        IMAGE_SETS["camvid"].read(_root(files), {"deal_by": kind}).targets_for_partition(Segmentation()).y
        for kind in ("largest", "distinctive")
    )
    assert largest.tolist() == [3] * 6
    assert distinctive.tolist() == [3, 3, 8, 0, 3, 3]


def test_camvids_void_can_be_a_class_and_drives_can_be_dealt_by() -> None:
    made, _, _ = MADE["camvid"]
    images = IMAGE_SETS["camvid"].read(_root(made.files), {"void": "class", "deal_by": "drive"})
    assert images.labels[-1] == "void"
    assert np.array_equal(images.y == 11, made.masks == 255)
    assert images.partition_targets is not None
    assert images.partition_targets.labels == ("0001TP", "0016E5", "Seq05VD")
    assert images.partition_targets.y.tolist() == [2, 2, 0, 1, 0, 1]


def test_voc_deals_by_the_largest_object() -> None:
    images = IMAGE_SETS["voc2012"].read(_root(layouts.voc().files), OWN_SIZE)
    by = images.targets_for_partition(Segmentation())
    assert [by.labels[each] for each in by.y] == ["person", "tvmonitor", "aeroplane"]
    assert len(images.labels) == 21


def test_voc_augmented_reads_its_own_masks_and_list() -> None:
    made = layouts.voc(augmented=True)
    images = IMAGE_SETS["voc2012"].read(_root(made.files), {**OWN_SIZE, "masks": "augmented"})
    same(images, made)


def test_vocs_additional_masks_may_be_their_published_zip() -> None:
    made = layouts.voc(augmented=True)
    base = "VOCdevkit/VOC2012/"
    inner = {name.removeprefix(base): each for name, each in made.files.items() if "SegmentationClassAug/" in name}
    rest = {name: each for name, each in made.files.items() if "SegmentationClassAug/" not in name}
    root = _root({**rest, f"{base}SegmentationClassAug.zip": zipped(inner)})
    same(IMAGE_SETS["voc2012"].read(root, {**OWN_SIZE, "masks": "augmented"}), made)


def test_voc_in_four_classes_and_with_one_object() -> None:
    options = {**OWN_SIZE, "classes": "macro", "one_object": True}
    images = IMAGE_SETS["voc2012"].read(_root(layouts.voc().files), options)
    assert images.labels == ("background", "person", "vehicles", "household", "animals")
    assert len(images) == 2
    assert [sorted(set(mask.ravel().tolist())) for mask in images.y] == [[0, 3, 255], [0, 2, 255]]
    assert images.partition_targets is not None
    assert images.partition_targets.y.tolist() == [3, 2]
    assert np.array_equal(images.x, layouts.voc().x[1:])
    by_macro = IMAGE_SETS["voc2012"].read(_root(layouts.voc().files), {**OWN_SIZE, "deal_by": "macro"})
    assert by_macro.partition_targets is not None
    assert by_macro.partition_targets.y.tolist() == [1, 3, 2]
    assert np.array_equal(by_macro.y, layouts.voc().masks)


def test_voc_without_its_val_part_is_all_to_train_on() -> None:
    made = layouts.voc()
    files = {name: each for name, each in made.files.items() if not name.endswith("Segmentation/val.txt")}
    images = IMAGE_SETS["voc2012"].read(_root(files), {**OWN_SIZE, "val": False})
    assert np.array_equal(images.x, made.x[:2])
    assert images.train.all()
    with pytest.raises(SourceError, match=r"no images listed in val.txt"):
        IMAGE_SETS["voc2012"].read(_root(files), OWN_SIZE)


def test_the_macro_classes_hold_each_class_once() -> None:
    assert sorted(name for each in MACRO.values() for name in each) == sorted(OBJECTS)


def test_a_folder_of_masks_with_everything_set() -> None:
    numbers = layouts.masked_images().masks
    files = {
        f"all/{name}": content
        for k in range(4)
        for name, content in (
            (f"town_{k % 2}/{k}_rgb.png", layouts.image_bytes(layouts.masked_images().x[k])),
            (f"town_{k % 2}/{k}_rgb_ids.png", layouts.palette_png(np.choose(numbers[k], [0, 7, 255]))),
        )
    }
    options = {
        "labels": ["ground", "car"], "values": [0, 7], "background": "ground", "client": "([^/]+)/",
        "images": "all", "masks": "all", "image_suffix": "_rgb", "mask_suffix": "_rgb_ids",
        "height": 10, "width": 14,
    }  # fmt: skip
    images = IMAGE_SETS["mask_folder"].read(_root(files), options)
    order = [0, 2, 1, 3]
    assert np.array_equal(images.y, np.where(numbers == 2, 255, numbers)[order])
    assert np.array_equal(images.x, layouts.masked_images().x[order])
    assert images.client is not None
    assert images.client.tolist() == ["town_0"] * 2 + ["town_1"] * 2
    assert images.partition_targets is not None
    assert images.partition_targets.y.tolist() == [1] * 4
    assert images.train.all()
    assert images.validation is None


def huge() -> bytes:
    claims = bytearray(layouts.grey_png(np.zeros((12, 16))))
    claims[16:24] = (5_000).to_bytes(4, "big") * 2
    claims[29:33] = zlib.crc32(bytes(claims[12:29])).to_bytes(4, "big")
    return bytes(claims)


def _voc(name: str, content: bytes | None) -> Files:
    files = {f"VOCdevkit/VOC2012/{name}": content} if content is not None else {}
    return {each: kept for each, kept in layouts.voc().files.items() if not each.endswith(name)} | files


MASK = "SegmentationClass/2007_000039.png"
LIST = "ImageSets/Segmentation/train.txt"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (_voc(MASK, huge()), r"2007_000039.png claims 5000 × 5000 pixels"),
        (
            _voc(MASK, layouts.grey_png(np.full((12, 16), 21))),
            "0039.png has pixel values 21; expected 0 to 20, 255",
        ),
        (_voc(MASK, layouts.grey_png(np.zeros((12, 15)))), "2007_000039.png has 15 × 12 pixels, its image .*16 × 12"),
        (_voc(MASK, layouts.image_bytes(np.zeros((3, 12, 16), np.uint8))), "is a RGB image; a mask must be a palette"),
        (
            _voc(MASK, layouts.image_bytes(np.zeros((3, 12, 16), np.uint8), "JPEG")),
            "it begins with b'.xff.xd8.*expected a PNG",
        ),
        (_voc(MASK, b""), "2007_000039.png isn't a readable image: it is empty; expected a PNG"),
        (
            _voc(MASK, layouts.grey_png(layouts.noise(4, 12, 16) % 21)[:90]),
            "000039.png isn't a readable image",
        ),
        (_voc(MASK, None), "2007_000039 is listed, but SegmentationClass has no such file"),
        (_voc("JPEGImages/2007_000033.jpg", None), "2007_000033 is listed, but JPEGImages has no such file"),
        (_voc(LIST, None), "no images listed in train.txt"),
        (_voc(LIST, b"2007_000033\n"), "2007_000033.png is listed twice, so it would be trained and tested on"),
        (_voc(LIST, b"../../etc passwd x\n"), "has a line '../../etc passwd x'; expected names"),
    ],
)
def test_what_is_not_voc_is_refused_with_the_files_name(files: Files, words: str) -> None:
    with pytest.raises(SourceError, match=words):
        IMAGE_SETS["voc2012"].read(_root(files), OWN_SIZE)


@pytest.mark.parametrize(
    ("name", "left_out", "words"),
    [
        ("camvid", "trainannot/0001TP_006690.png", "camvid/train/0001TP_006690.png lacks a mask"),
        ("camvid", "train/0001TP_006690.png", "camvid/trainannot/0001TP_006690.png lacks an image"),
        ("mask_folder", "train/masks/bob_1.png", "train/images/bob_1.png has no mask; expected images/NAME.jpg"),
        ("mask_folder", "train/images/bob_1.png", "train/masks/bob_1.png has no image"),
    ],
)
def test_images_and_masks_must_come_in_pairs(name: str, left_out: str, words: str) -> None:
    made, _, options = MADE[name]
    files = {each: content for each, content in made.files.items() if not each.endswith(left_out)}
    with pytest.raises(SourceError, match=words):
        IMAGE_SETS[name].read(_root(files), options)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("camvid", {"void": "no"}, "option void is 'no'; expected ignore or class"),
        ("camvid", {"height": 5000}, "whole number from 1 to 2048"),
        ("camvid", {"fit": "crop"}, "expected pad or stretch"),
        ("voc2012", {"masks": "aug"}, "option masks is 'aug'; expected published or augmented"),
        ("voc2012", {"one_object": "yes"}, "expected true or false"),
        ("voc2012", {"val": 0}, "option val is 0; expected true or false"),
        ("mask_folder", {}, "expected 2 to 254 names of classes"),
        ("mask_folder", {**NAMED, "values": [0, 1]}, "a number in masks for each of 3 labels"),
        ("mask_folder", {**NAMED, "values": [0, 1, 256]}, "expected numbers from 0 to 255"),
        ("mask_folder", {**NAMED, "ignore": [1]}, "option ignore has 1, the number of the class 'car'"),
        ("mask_folder", {**NAMED, "background": "grund"}, "did you mean 'ground'"),
        ("mask_folder", {**NAMED, "client": "("}, "isn't a regular expression"),
        ("mask_folder", {**NAMED, "client": "abc"}, "expected a regular expression with one group"),
        ("mask_folder", {**NAMED, "masks": "images"}, "give the end of the masks' names"),
        ("mask_folder", {**NAMED, "masks": 3}, "expected a text"),
    ],
)
def test_wrong_options_are_told_before_files_are_searched(name: str, options: dict[str, object], words: str) -> None:
    with pytest.raises(GaitwayError, match=words):
        IMAGE_SETS[name].read("/nowhere", options)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _root(files: Files) -> Path:
    return unpacked(files, Path("made"))
