"""Images from a folder: in subfolders named after the classes, or as pairs of images and masks.

    path/apple/0001.jpg          classification: the folder below `path` names the class
    path/images/0001.jpg         segmentation: the mask of the same name, a PNG whose values are numbers of classes
    path/masks/0001.png

The folder is scanned every few seconds: new files are imported, and changed ones replace their earlier import.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

import numpy as np

from edge_agent.config.settings import Config
from edge_agent.errors import DiskFullError, LockedError, SensorError
from edge_agent.machine.events import CollectingPaused, CollectingResumed, DataReady, NewWindows
from edge_agent.sensors.source import ThreadedSource
from edge_agent.storage.images import ImageExample, ImagePreparation
from edge_agent.storage.repair import open_checked
from edge_agent.storage.window_store import SKIPPED, UNLABELLED, WindowStore
from edge_agent.training.local_data import preparation, stored_examples, training_windows, window_keys
from federation.plan import Plan
from gaitway.images import MAX_BYTES, SUFFIXES, ImageError, decode_image, decode_mask, image_size
from gaitway.tasks import task_of
from har_pipeline import Window

log = logging.getLogger(__name__)

IMAGES, MASKS = "images", "masks"
MAX_FILES = 100_000
BATCH = 64
"""Images per transaction, at the most."""
SCAN_INTERVAL_S = 5.0
"""Seconds between two looks at the folder."""
MAX_CLASSIFIED = 16
"""Of images that come at once, so many are classified: the newest."""
_IMPORTED = "images taken"
_NO_TIME = 0.0

Signature = list[int]
"""Size and time of change of an image's file, and of its mask's, by which they are known to be the same."""


class ImageSource(ThreadedSource):
    """Fills the store from a folder; a file that cannot be read is left out and said in `status` and `doctor`."""

    makes = "images"

    def collect(self, plan: Plan, stop: threading.Event) -> None:
        """Look at the folder until `stop`."""
        folder = folder_of(self.config)
        settings = preparation(self.config.sensors, plan)
        if not isinstance(settings, ImagePreparation):
            raise SensorError("the plan asks for windows of motion sensors")
        store, _ = open_checked(self.config.agent.data_dir)
        try:
            store.put(reads="images")
            first, reported = True, None
            while not stop.is_set():
                self._take_new(store, folder, plan, settings, stop, show=not first)
                reported = self._post_ready(store, settings, plan, reported)
                first = False
                stop.wait(SCAN_INTERVAL_S)
        finally:
            store.close()

    def _take_new(
        self,
        store: WindowStore,
        folder: Path,
        plan: Plan,
        settings: ImagePreparation,
        stop: threading.Event,
        *,
        show: bool,
    ) -> None:
        taken: dict[str, list[int]] = json.loads(store.get(_IMPORTED) or "{}").get(settings.key, {})
        skipped: dict[str, list[str]] = json.loads(store.get(SKIPPED) or "{}")
        found = ((path, _signature(folder, path, settings)) for path in files_in(folder, settings))
        new = [(path, signature) for path, signature in found if taken.get(_name(folder, path)) != signature]
        for start in range(0, len(new), BATCH):
            if stop.is_set() or not self._has_room(stop):
                return
            images = []
            for path, signature in new[start : start + BATCH]:
                name = _name(folder, path)
                skipped.pop(name, None)
                taken[name] = signature
                try:
                    images.append(read_image(folder, path, plan, settings))
                except (ImageError, OSError) as error:
                    skipped[name] = [str(error)]
                    log.warning("image skipped file=%s: %s", name, error)
            try:
                store.add_images(images, settings, self.config.windows)
                store.put(**{_IMPORTED: json.dumps({settings.key: taken}), SKIPPED: json.dumps(skipped)})
            except (DiskFullError, LockedError) as error:
                self.post(CollectingPaused(str(error)))
                return
            if show and images and not settings.masks:
                self.post(NewWindows(tuple(_shown(image, plan) for image in images[-MAX_CLASSIFIED:])))

    def _has_room(self, stop: threading.Event) -> bool:
        """Wait until the disk has as much room as is to stay free; False if the source is stopped before."""
        least, paused = self.config.windows.min_free_mb, False
        while (free := shutil.disk_usage(self.config.agent.data_dir).free / 1e6) < least:
            if not paused:
                self.post(CollectingPaused(f"the disk has {free:.0f} MB of free space, less than {least:.0f}"))
            paused = True
            if stop.wait(SCAN_INTERVAL_S):
                return False
        if paused:
            self.post(CollectingResumed())
        return True

    def _post_ready(
        self, store: WindowStore, settings: ImagePreparation, plan: Plan, reported: frozenset[int] | None
    ) -> frozenset[int]:
        outline = stored_examples(store, self.config.sensor_client, settings, plan, samples=False)
        keys = window_keys(training_windows(outline, plan.data, settings))
        if keys != reported:
            self.post(DataReady(len(keys), "images", len(keys) > 0, keys))
        return keys


def folder_of(config: Config) -> Path:
    """Return [sensors] path.

    Raises:
        SensorError: if it is not set, or is no folder.
    """
    path = config.sensors.path
    if path is None or not path.is_dir():
        raise SensorError(f"[sensors] path is {str(path or '')!r}, which isn't a folder; set it to one with images")
    return path


def files_in(folder: Path, settings: ImagePreparation) -> list[Path]:
    """List the images below a folder, by name.

    Raises:
        SensorError: if there are too many.
    """
    root = folder / IMAGES if settings.masks else folder
    found = (path for path in root.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    listed = sorted(islice(found, MAX_FILES + 1))
    if len(listed) > MAX_FILES:
        raise SensorError(f"{folder} holds more than {MAX_FILES:,} images; set [sensors] path to a part of it")
    return listed


def read_image(folder: Path, path: Path, plan: Plan, settings: ImagePreparation) -> ImageExample:
    """Read one image, with its class or its mask.

    Raises:
        ImageError: if it cannot be read, has no class of the plan where one is needed, or no mask.
    """
    name = _name(folder, path)
    content = _content(path, name)
    x = decode_image(content, name, settings.shape, settings.fit)
    if settings.masks:
        mask, label = _mask_of(folder, path, plan, settings, image_size(content, name))
        return ImageExample(x, label, mask, name)
    label = path.relative_to(folder).parts[0] if path.parent != folder else UNLABELLED
    if label not in plan.labels:
        if task_of(plan.task).has_classes:
            known = ", ".join(plan.labels)
            raise ImageError(f"its folder isn't named after a class; the plan has {known}")
        label = UNLABELLED
    return ImageExample(x, label, None, name)


def count_by_class(folder: Path) -> Mapping[str, int]:
    """Count the files below each folder, for `doctor`, whatever the plan is."""
    counts: dict[str, int] = {}
    for path in files_in(folder, ImagePreparation((3, 1, 1))):
        parts = path.relative_to(folder).parts
        counts[parts[0] if len(parts) > 1 else ""] = counts.get(parts[0] if len(parts) > 1 else "", 0) + 1
    return counts


def _mask_of(
    folder: Path, path: Path, plan: Plan, settings: ImagePreparation, size: tuple[int, int]
) -> tuple[np.ndarray, str]:
    """Read the mask of an image of this size (height, width), and name the class of most of its pixels."""
    where = _mask_path(folder, path)
    if not where.is_file():
        raise ImageError(f"there is no mask {_name(folder, where)}")
    name, content, (_, height, width) = _name(folder, where), _content(where, _name(folder, where)), settings.shape
    mask = decode_mask(content, name, height, width, len(plan.labels), settings.fit)
    if (own := image_size(content, name)) != size:
        raise ImageError(
            f"{name} has {own[1]} × {own[0]} pixels, its image {size[1]} × {size[0]}; a mask must be as large as its "
            "image"
        )
    if (own_class := task_of(plan.task).class_of_mask(mask)) is None:
        raise ImageError(f"no pixel of {name} has a class")
    return mask, plan.labels[own_class]


def _mask_path(folder: Path, path: Path) -> Path:
    return folder / MASKS / path.relative_to(folder / IMAGES).with_suffix(".png")


def _content(path: Path, name: str) -> bytes:
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ImageError(f"{name} is larger than {MAX_BYTES:,} bytes")
    return content


def _shown(image: ImageExample, plan: Plan) -> Window:
    y = plan.labels.index(image.label) if image.label in plan.labels else -1
    return Window(image.x.astype(np.float32) / np.float32(255), y, _NO_TIME, 0)


def _name(folder: Path, path: Path) -> str:
    return path.relative_to(folder).as_posix()


def _signature(folder: Path, path: Path, settings: ImagePreparation) -> Signature:
    """Return the signature of an image; of a mask that is not there (yet), or a file that just went, zeros."""
    signature = []
    for file in (path, _mask_path(folder, path)) if settings.masks else (path,):
        try:
            found = file.stat()
        except OSError:
            signature += [0, 0]
        else:
            signature += [found.st_size, found.st_mtime_ns]
    return signature
