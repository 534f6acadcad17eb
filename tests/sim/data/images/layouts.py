"""Small image data sets in exactly the published layouts, with the images and labels that they hold."""

from __future__ import annotations

import gzip
import io
import json
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image

from tests.har_pipeline.layouts import Files

LETTERS_PER_CLASS = 2


class Made(NamedTuple):
    """A data set's files, and what a reader must return: images (n, C, H, W), labels, published training part."""

    files: Files
    x: np.ndarray
    y: np.ndarray
    train: np.ndarray


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def noise(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


DIGITS = (3, 1, 4, 1, 5, 9, 2, 6, 5, 0)


def mnist(packed: bool = True, separator: str = "-", digits: Sequence[int] = DIGITS, training: int = 6) -> Made:
    """Some training images, and others to test on; a download is packed, and some tools write `images.idx3`."""
    x, y = noise(0, len(digits), 28, 28), np.array(digits)
    files = {}
    for part, rows in (("train", slice(0, training)), ("t10k", slice(training, None))):
        for kind, array in (("images{}idx3", x), ("labels{}idx1", y)):
            name = f"{part}-{kind.format(separator)}-ubyte"
            content = idx(array[rows])
            files[name + ".gz" * packed] = gzip.compress(content, mtime=0) if packed else content
    return Made(files, x[:, None], y, np.arange(len(y)) < training)


def letters(each: int = LETTERS_PER_CLASS, tested: int = 1) -> Made:
    """Some of each of 26 letters to train on and to test on, transposed and counted from 1 as published."""
    y = np.concatenate([np.repeat(np.arange(26), each), np.repeat(np.arange(26), tested)])
    x, train = noise(1, len(y), 28, 28), np.arange(len(y)) < 26 * each
    files = {}
    for part, rows in (("train", train), ("test", ~train)):
        images, classes = x[rows].transpose(0, 2, 1), y[rows] + 1
        for kind, content in (("images-idx3", idx(images)), ("labels-idx1", idx(classes))):
            files[f"gzip/emnist-letters-{part}-{kind}-ubyte.gz"] = gzip.compress(content, mtime=0)
    files["gzip/emnist-digits-train-images-idx3-ubyte.gz"] = b"another part of EMNIST"
    return Made(files, x[:, None], y, train)


def cifar10(classes: Sequence[int] = (6, 9, 9, 4, 1, 1, 2, 7, 8, 3, 4, 7, 7, 2, 9, 3, 8), each: int = 3) -> Made:
    """Five batches of some images, the others in the test batch: label, then red, green and blue by rows."""
    y = np.array(classes)
    x = noise(2, len(y), 3, 32, 32)
    records = np.concatenate([y[:, None].astype(np.uint8), x.reshape(len(y), -1)], axis=1)
    batches = {k + 1: records[each * k : each * (k + 1)] for k in range(5)}
    files = {f"cifar-10-batches-bin/data_batch_{k}.bin": batch.tobytes() for k, batch in batches.items()}
    files["cifar-10-batches-bin/test_batch.bin"] = records[5 * each :].tobytes()
    files["cifar-10-batches-bin/batches.meta.txt"] = b"airplane\nautomobile\n"
    return Made(files, x, y, np.arange(len(y)) < 5 * each)


def cifar100(classes: Sequence[int] = (19, 29, 0, 99, 49, 33), training: int = 4) -> Made:
    """Some training records, the others to test on: coarse label, fine label, then the colours."""
    y = np.array(classes)
    x = noise(3, len(y), 3, 32, 32)
    coarse = np.full((len(y), 1), 7, np.uint8)
    records = np.concatenate([coarse, y[:, None].astype(np.uint8), x.reshape(len(y), -1)], axis=1)
    parts = {"train": records[:training], "test": records[training:]}
    files = {f"cifar-100-binary/{part}.bin": some.tobytes() for part, some in parts.items()}
    return Made(files, x, y, np.arange(len(y)) < training)


def image_bytes(image: np.ndarray, kind: str = "PNG") -> bytes:
    """Encode (3, H, W) uint8."""
    stream = io.BytesIO()
    Image.fromarray(image.transpose(1, 2, 0)).save(stream, kind, quality=95)
    return stream.getvalue()


def images(labels: tuple[str, ...] = ("airplane", "cat"), classes: tuple[int, ...] = (0, 3)) -> Made:
    """Two training and one test image of each class, lossless."""
    parts = [("train", 0), ("train", 1), ("test", 0)]
    rows = [(part, c, n) for part in ("train", "test") for c in range(len(labels)) for p, n in parts if p == part]
    x = noise(4, len(rows), 3, 32, 32)
    files = {f"{part}/{labels[c]}/{n:04d}.png": image_bytes(x[k]) for k, (part, c, n) in enumerate(rows)}
    y = np.array([classes[c] for _, c, _ in rows])
    return Made(files, x, y, np.array([part == "train" for part, *_ in rows]))


PEOPLE = (2880, 2937, 2880, 8692, 2880)
SMILES = (1, -1, -1, 1, 1)


def celeba(people: Sequence[int] = PEOPLE, smiles: Sequence[int] = SMILES) -> Made:
    """Even images of 178 × 218 of some people, as JPEG, with both texts beside them."""
    names = [f"{k + 1:06d}.jpg" for k in range(len(people))]
    x = np.stack([np.full((3, 84, 84), (40 * k + 20) % 256, np.uint8) for k in range(len(people))])
    files = {
        f"img_align_celeba/{name}": image_bytes(np.full((3, 218, 178), (40 * k + 20) % 256, np.uint8), "JPEG")
        for k, name in enumerate(names)
    }
    attributes = [f"Attribute{k}" for k in range(39)]
    attributes.insert(31, "Smiling")
    values = [[*["-1"] * 31, str(smile), *["1"] * 8] for smile in smiles]
    rows = ["  ".join([name, *row]) for name, row in zip(names, values, strict=True)]
    files["list_attr_celeba.txt"] = "\n".join([str(len(people)), " ".join(attributes) + " ", *rows, ""]).encode()
    files["identity_CelebA.txt"] = "".join(f"{n} {p}\n" for n, p in zip(names, people, strict=True)).encode()
    return Made(files, x, np.array(smiles) == 1, np.ones(len(people), bool))


def leaf() -> Made:
    """Two writers, three and one training images, one test image each; numbers from 0 to 1."""
    x, y = noise(5, 6, 28, 28), np.array([0, 36, 61, 10, 35, 9])
    rows = {"f0001_00": ([0, 1, 2], [3]), "f0002_41": ([4], [5])}
    files = {}
    for k, part in enumerate(("train", "test")):
        users = {w: {"x": (x[r[k]] / 255).reshape(-1, 784).tolist(), "y": y[r[k]].tolist()} for w, r in rows.items()}
        record = {"users": list(rows), "num_samples": [len(u["y"]) for u in users.values()], "user_data": users}
        files[f"{part}/all_data_0_niid_0_keep_0_{part}_9.json"] = json.dumps(record).encode()
    return Made(files, x[:, None], y, np.array([True, True, True, False, True, False]))


def npz(**changed: np.ndarray) -> bytes:
    """Eight images of two clients, as the npz files have them."""
    arrays = {
        "X": noise(6, 8, 28, 28),
        "y": np.array([0, 1, 2, 3, 4, 5, 6, 9], np.uint8),
        "client": np.array([0, 0, 0, 0, 11, 11, 11, 11], np.uint8),
        "is_test": np.array([0, 0, 0, 1, 0, 0, 1, 1], bool),
    }
    stream = io.BytesIO()
    np.savez_compressed(stream, **{**arrays, **changed})
    return stream.getvalue()


class MadeMasks(NamedTuple):
    """A set of images and masks: its files, and what a reader must return at the images' own size."""

    files: Files
    x: np.ndarray
    masks: np.ndarray
    train: np.ndarray


def palette_png(numbers: np.ndarray) -> bytes:
    """Encode (H, W) class numbers as VOC does: an indexed PNG with the colours of its development kit."""
    image = Image.fromarray(numbers.astype(np.uint8))
    bits = [[(c >> (3 * b + k)) & 1 for b in range(3)] for c in range(256) for k in range(3)]
    image.putpalette([sum(bit << (7 - b) for b, bit in enumerate(each)) for each in bits])
    return _png(image)


def grey_png(numbers: np.ndarray) -> bytes:
    """Encode (H, W) class numbers as grey values."""
    return _png(Image.fromarray(numbers.astype(np.uint8)))


def _png(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def camvid() -> MadeMasks:
    """Two images of each of three drives: to test on, and to train on and validate with."""
    names = [
        *[("test", "Seq05VD_f00030"), ("test", "Seq05VD_f00060")],
        *[("train", "0001TP_006690"), ("train", "0016E5_00390"), ("val", "0001TP_006720"), ("val", "0016E5_00420")],
    ]
    x, masks = noise(7, 6, 3, 180, 240), noise(8, 6, 180, 240) % 12
    files: Files = {}
    for k, (part, name) in enumerate(names):
        files[f"camvid/{part}/{name}.png"] = image_bytes(x[k])
        files[f"camvid/{part}annot/{name}.png"] = grey_png(masks[k])
    masks = np.where(masks == 11, 255, masks)
    return MadeMasks(files, x, masks, np.array([part != "test" for part, _ in names]))


VOC_NAMES = {"train": ["2007_000032", "2007_000039"], "val": ["2007_000033"]}


def voc(augmented: bool = False) -> MadeMasks:
    """Two images to train on and one of `val`, as JPEG of one colour each, with outlines of 255; one has no list.

    2007_000032 has a person and a smaller aeroplane, 2007_000039 a television, 2007_000033 an aeroplane.
    """
    x = np.stack([np.full((3, 12, 16), 60 * k + 30, np.uint8) for k in range(3)])
    masks = np.zeros((3, 12, 16), np.uint8)
    for k, (large, small) in enumerate(((15, 1), (20, 20), (1, 1))):
        masks[k, 2:10, 2:10], masks[k, 3:9, 3:9], masks[k, 0, 12:] = 255, large, small
    names = [*VOC_NAMES["train"], *VOC_NAMES["val"]]
    base, folder = "VOCdevkit/VOC2012/", "SegmentationClassAug" if augmented else "SegmentationClass"
    files: Files = {f"{base}JPEGImages/2011_000001.jpg": image_bytes(x[0], "JPEG"), f"{base}Annotations/a.xml": b"<a/>"}
    for k, name in enumerate(names):
        files[f"{base}JPEGImages/{name}.jpg"] = image_bytes(x[k], "JPEG")
        files[f"{base}{folder}/{name}.png"] = (grey_png if augmented else palette_png)(masks[k])
        files[f"{base}SegmentationObject/{name}.png"] = palette_png(masks[k])
    for part, listed in VOC_NAMES.items():
        lines = [f"/JPEGImages/{name}.jpg /SegmentationClassAug/{name}.png" if augmented else name for name in listed]
        name = "train_aug" if augmented and part == "train" else part
        files[f"{base}ImageSets/Segmentation/{name}.txt"] = "\n".join([*lines, ""]).encode()
        files[f"{base}ImageSets/Main/{part}.txt"] = b"2011_000001\n"
    return MadeMasks(files, x, masks, np.array([True, True, False]))


def voc_squares(count: int, side: int = 32) -> Files:
    """An augmented VOC of images with one bird (3) or one train (19) each, which is what colours their squares."""
    base, random = "VOCdevkit/VOC2012/", np.random.default_rng(0)
    files: Files = {}
    for k in range(count):
        mask, x = np.zeros((side, side), np.uint8), random.integers(0, 90, (3, side, side)).astype(np.uint8)
        mask[6:22, 8:24], x[k % 2, 6:22, 8:24] = (3, 19)[k % 2], 220
        files[f"{base}JPEGImages/{k:04d}.jpg"] = image_bytes(x, "JPEG")
        files[f"{base}SegmentationClassAug/{k:04d}.png"] = grey_png(mask)
    names = "".join(f"{k:04d}\n" for k in range(count))
    files[f"{base}ImageSets/Segmentation/train_aug.txt"] = names.encode()
    return files


def masked_images() -> MadeMasks:
    """Two images to train on, one for validation and one to test on, of two people, below the names of the parts."""
    names = [("test", "ann_3"), ("train", "ann_1"), ("train", "bob_1"), ("val", "ann_2")]
    x, masks = noise(9, 4, 3, 10, 14), noise(10, 4, 10, 14) % 3
    files: Files = {}
    for k, (part, name) in enumerate(names):
        files[f"{part}/images/{name}.png"] = image_bytes(x[k])
        files[f"{part}/masks/{name}.png"] = grey_png(masks[k])
    return MadeMasks(files, x, masks, np.array([False, True, True, True]))
