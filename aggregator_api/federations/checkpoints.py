"""Initial weights for federations: uploaded checkpoints, and their validation.

An uploaded checkpoint is used only once everything in it was checked. No row refers to one: it stays as long as a blob
that nobody needs (`gc_grace_s`), in which a federation is created with it. What a federation starts from is in its own
first version.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from aggregator_api.core.errors import BlobError, NotFoundError, TooLargeError, UnprocessableError
from aggregator_api.storage.blobs import BlobStore
from federation.errors import SettingsError
from federation.method import Method
from federation.methods.fedali import GLOBAL, LOCAL
from federation.records import Client, Tensors, Tree
from federation.records.head import is_base
from federation.records.tree import merge

if TYPE_CHECKING:
    from models.checkpoint import CheckpointInfo

MAX_HEADER_BYTES = 1 << 20
"""What names and shapes of tensors, and the description of the model, may take beside the tensors."""
_LENGTH_BYTES = 8


class UploadedCheckpoint(NamedTuple):
    """A checked checkpoint: the name and size of its blob, its model's description, and its tensors."""

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
                raise UnprocessableError(f"{sha256[:12]} isn't a checkpoint: it has {size:,} bytes")
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
            "this isn't a checkpoint: expected a safetensors file written by Gaitway, such as "
            "models/global.safetensors "
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
        raise UnprocessableError(f"{wild[0]!r} has numbers that aren't finite, so no federation can start from it")
    return info, tensors


_ENCODER = "encoder."
"""How a masked autoencoder names its encoder's tensors (`models.mae`); a model of any other task has no such prefix."""


def started_from(client: Client, method: Method, state: Tree) -> Client:
    """Lay the feature extractor of a server's `state`, which `method` made, over a client that has done nothing yet.

    The head, which is the decoder where a task restores its input, stays as it was drawn. Where the method shares
    prototypes of ALP layers, both sets of a client's that has some start from them.

    Raises:
        SettingsError: if the state has no such parameters, naming one.
    """
    given = _plain(state.get("params", {}))
    _require_same(
        given,
        _plain(client.params),
        "a federation of the same model with the same options, whose method shares the model's parameters",
    )
    return _laid_over(client, given, _prototypes(state["prototypes"]) if method.traits.requires_alp else {})


def started_from_model(client: Client, state: Mapping[str, Tensor]) -> Client:
    """Lay the feature extractor of a model's `state` over a client that has done nothing yet, as `started_from` does.

    Raises:
        SettingsError: if the model has other parameters, naming one.
    """
    given = {name: value for name, value in state.items() if is_base(name)}
    prototypes = {name: value for name, value in given.items() if name.endswith((LOCAL, GLOBAL))}
    wanted = _plain(client.params)
    buffers = {_without_prefix(name) for name in client.buffers}
    params = {name: value for name, value in given.items() if name in wanted or name not in buffers}
    _require_same(params, wanted, "a checkpoint of the same model with the same options")
    return _laid_over(client, params, prototypes)


def _require_same(given: Tensors, wanted: Tensors, what: str) -> None:
    names = wanted.keys() | given.keys()
    if differing := sorted(name for name in names if _shape(wanted, name) != _shape(given, name)):
        name = differing[0]
        raise SettingsError(f"its {name} is {_shape(given, name)}, and {_shape(wanted, name)} here; start from {what}")


def _laid_over(client: Client, given: Tensors, prototypes: Tensors) -> Client:
    laid = {name: given[_without_prefix(name)] for name in client.params if is_base(name)}
    moved = {name: prototypes[_without_prefix(name)] for name in client.buffers if _without_prefix(name) in prototypes}
    return client._replace(params=merge(client.params, laid), buffers=merge(client.buffers, moved))


def _plain(params: Tensors) -> Tensors:
    """Return the feature extractor's parameters, named as in the model alone."""
    return {_without_prefix(name): value for name, value in params.items() if is_base(name)}


def _prototypes(blocks: dict[str, Tensor]) -> Tensors:
    return {_without_prefix(block + kind): value for block, value in blocks.items() for kind in (LOCAL, GLOBAL)}


def _without_prefix(name: str) -> str:
    return name.removeprefix(_ENCODER)


def _shape(tensors: dict[str, Any], name: str) -> tuple[int, ...] | None:
    return tuple(tensors[name].shape) if name in tensors else None
