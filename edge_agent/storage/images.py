"""Stored images, which have no rate and no time: bytes of one shape, and a class or a mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gaitway.input_spec import Fit, InputSpec
from har_pipeline import PipelineSettings

Bytes = npt.NDArray[np.uint8]
JSON_KEY = "images"


class ImageExample(NamedTuple):
    """An image (channels, height, width) and its class, or the classes of its pixels (height, width)."""

    x: Bytes
    label: str  # "" for none; of one with a mask the class of most of its pixels
    mask: Bytes | None
    name: str  # of its file


@dataclass(frozen=True)
class ImagePreparation:
    """How images become examples: a `shape` (channels, height, width) and `fit`, with or without a mask each."""

    shape: tuple[int, int, int]
    masks: bool = False
    fit: Fit = "stretch"

    @property
    def key(self) -> str:
        """Name what images must agree in to be trained on together."""
        padded = " padded" if self.fit == "pad" else ""
        return f"{'masked ' if self.masks else ''}images {'x'.join(map(str, self.shape))}{padded}"

    def to_json(self) -> dict[str, Any]:
        """Return what `preparation_from_json` reads."""
        return {JSON_KEY: {"shape": list(self.shape), "masks": self.masks, "fit": self.fit}}

    def input_spec(self, mean: tuple[float, ...], std: tuple[float, ...]) -> InputSpec:
        """Describe them to a model."""
        return InputSpec.images(self.shape, mean, std, self.fit)


Preparation = PipelineSettings | ImagePreparation
"""How a device's raw data become examples: windows of motion sensors, or images."""


def preparation_from_json(record: dict[str, Any]) -> Preparation:
    """Read what either has written; raises har_pipeline's SettingsError."""
    if JSON_KEY in record:
        text = record[JSON_KEY]
        return ImagePreparation(tuple(text["shape"]), bool(text["masks"]), text.get("fit", "stretch"))
    return PipelineSettings.from_json(record)
