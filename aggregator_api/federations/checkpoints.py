"""Checkpoints that an operator uploads, for a federation to start from: believed only once everything was checked.

No row refers to one: it stays as long as a blob that nobody needs (`gc_grace_s`), in which a federation is created with
it. What a federation starts from is in its own first version.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from aggregator_api.core.errors import BlobError, NotFoundError, TooLargeError, UnprocessableError
from aggregator_api.storage.blobs import BlobStore
from federation.records import Tensors

if TYPE_CHECKING:
    from models.checkpoint import CheckpointInfo

MAX_HEADER_BYTES = 1 << 20
"""What names and shapes of tensors, and the description of the model, may take beside the tensors."""
_LENGTH_BYTES = 8


class UploadedCheckpoint(NamedTuple):
    """A checkpoint that was checked: the name and size of its bytes, what it says of its model, and its tensors."""

    sha256: str
    size: int
    info: CheckpointInfo
    tensors: Tensors


class CheckpointService:
    """Takes checkpoints, and gives them back."""

    def __init__(self, blobs: BlobStore, *, max_model_bytes: int, keep_s: float) -> None:
        self._blobs = blobs
        self.max_bytes = max_model_bytes + MAX_HEADER_BYTES
        self.keep_s = keep_s

    def put(self, data: bytes) -> UploadedCheckpoint:
        """Check a checkpoint and keep it.

        Raises:
            TooLargeError: if it is larger than any model may be here.
            UnprocessableError: if it is no checkpoint of Gaitway's, saying what is wrong.
        """
        if len(data) > self.max_bytes:
            raise TooLargeError(f"{len(data):,} bytes; a checkpoint has at most {self.max_bytes:,} (max_model_bytes)")
        info, tensors = _read(data)
        blob = self._blobs.put(data)
        return UploadedCheckpoint(blob.sha256, blob.size, info, tensors)

    def get(self, sha256: str) -> UploadedCheckpoint:
        """Return a checkpoint that was put here.

        Raises:
            NotFoundError: if it is not there, or no longer.
            UnprocessableError: if that is something else.
        """
        try:
            size = self._blobs.size(sha256)
            if size > self.max_bytes:
                raise UnprocessableError(f"{sha256[:12]} is no checkpoint: it has {size:,} bytes")
            data = self._blobs.read(sha256)
        except BlobError as error:
            raise NotFoundError(
                f"there is no checkpoint {sha256[:12]}; one that no federation starts from is kept for "
                f"{self.keep_s / 3600:g} h: upload it again"
            ) from error
        return UploadedCheckpoint(sha256, size, *_read(data))


def _read(data: bytes) -> tuple[CheckpointInfo, Tensors]:
    """Read a checkpoint's bytes as `models.checkpoint` does, within bounds.

    Raises:
        UnprocessableError: saying what is wrong, without a path of this machine.
    """
    from models.checkpoint import load_checkpoint  # only who uploads one needs the networks
    from models.errors import ModelError

    header = int.from_bytes(data[:_LENGTH_BYTES], "little")
    if not 2 <= header <= min(MAX_HEADER_BYTES, len(data) - _LENGTH_BYTES):
        raise UnprocessableError(
            "this is no checkpoint: expected a safetensors file that Gaitway wrote, such as models/global.safetensors "
            f"of a run; its first {_LENGTH_BYTES} bytes say that its header has {header:,} bytes, which is none or "
            f"more than {MAX_HEADER_BYTES:,} or than there are"
        )
    with tempfile.TemporaryDirectory(prefix="gaitway-checkpoint-") as folder:
        path = Path(folder) / "checkpoint"
        path.write_bytes(data)
        try:
            module, info = load_checkpoint(path)
            tensors = {name: value.clone() for name, value in module.state_dict().items()}
        except (ModelError, ValueError, TypeError, RuntimeError, OverflowError) as error:  # options of any kind
            words = " ".join(str(error).replace(str(path), "this checkpoint").split())
            raise UnprocessableError(words[:500]) from error
    wild = [name for name, value in tensors.items() if value.is_floating_point() and not value.isfinite().all()]
    if wild:
        raise UnprocessableError(f"{wild[0]!r} has numbers that are not finite, so nothing can start from it")
    return info, tensors
