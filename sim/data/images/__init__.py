"""Image data sets by name: found in a folder or archive as published, read within limits, never unpacked."""

from __future__ import annotations

from sim.data.images import camvid, celeba, cifar, digits, folders, leaf, mask_folder, voc
from sim.data.images.reader import ImageReader, LabelledImages

__all__ = ["IMAGE_SETS", "ImageReader", "LabelledImages"]

IMAGE_SETS: dict[str, ImageReader] = {
    reader.name: reader
    for reader in (
        *(*digits.READERS, leaf.READER, *cifar.READERS, *folders.READERS, celeba.READER),
        *(camvid.READER, voc.READER, mask_folder.READER),
    )
}
