"""Generated images of shapes in folders, as a device's camera might leave them; each device has its own colours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

LABELS = ("cross", "disc", "frame")
SIDE = 24


def shape(name: str, draw: np.random.Generator) -> np.ndarray:
    """Return where one shape lies (SIDE, SIDE), of another place and size each time."""
    radius = draw.uniform(5, 9)
    row, column = draw.uniform(radius, SIDE - radius, 2)
    y, x = np.abs(np.mgrid[:SIDE, :SIDE] - np.array([row, column])[:, None, None])
    match name:
        case "cross":
            found = (np.minimum(x, y) < 2) & (np.maximum(x, y) < radius)
        case "disc":
            found = x**2 + y**2 < radius**2
        case _:
            found = (np.maximum(x, y) < radius) & (np.maximum(x, y) > radius - 3)
    return np.asarray(found)


def image(where: np.ndarray, draw: np.random.Generator, hue: int) -> Image.Image:
    """Colour a shape before a darker, noisy background; `hue` is the device's strongest channel."""
    colours = draw.uniform(0.4, 0.7, 3), draw.uniform(0.0, 0.3, 3)
    colours[0][hue] = 1.0
    pixels = np.where(where[..., None], *colours) + draw.normal(0, 0.05, (SIDE, SIDE, 3))
    return Image.fromarray((255 * pixels.clip(0, 1)).astype(np.uint8))


def write_classes(folder: Path, each: int, seed: int) -> Path:
    """Write folder/LABEL/NUMBER.png."""
    draw = np.random.default_rng(seed)
    for name in LABELS:
        (folder / name).mkdir(parents=True)
        for i in range(each):
            image(shape(name, draw), draw, seed % 3).save(folder / name / f"{i:04d}.png")
    return folder


def write_masks(folder: Path, count: int, seed: int) -> Path:
    """Write folder/images/NUMBER.png and folder/masks/NUMBER.png; 0 is the background, shapes are 1 and on."""
    draw = np.random.default_rng(seed)
    for part in ("images", "masks"):
        (folder / part).mkdir(parents=True)
    for i in range(count):
        which = i % len(LABELS)
        where = shape(LABELS[which], draw)
        image(where, draw, seed % 3).save(folder / "images" / f"{i:04d}.png")
        Image.fromarray((where * (which + 1)).astype(np.uint8)).save(folder / "masks" / f"{i:04d}.png")
    return folder
