"""Published weights from a file in torchvision's layout, laid over a network with torchvision's names.

Networks say in `published` what their classifier is called there, and what only they or only the file has.

A safetensors file, or torch's zip read with `weights_only=True`: tensors and nothing that runs.
"""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor

from gaitway.input_spec import HEAD
from models.checkpoint import MAX_BYTES, check_size, read_tensors
from models.errors import CheckpointError
from models.model import Model, Published
from models.registry import starting_from_published

_COUNTER = "num_batches_tracked"
_NOISE = "noise_state"
"""Of dropout: where its masks come from, which no file has."""


def load_pretrained(model: Model, path: Path | str, *, skip: Sequence[str] | None = None) -> list[str]:
    """Overwrite the model's tensors with the file's and return their names; torchvision's classifier is our `head.`.

    `skip`: prefixes, in the file's names, of what stays as it is; by default the classifier. Tan et al.
    (2022, their code) also keep a fresh stem: ("fc.", "conv1.", "bn1.").
    Raises CheckpointError if the file is no such file, or lacks a tensor or has another one than the model, or if no
    such files are published for the model.
    """
    path, published = Path(path), model.published
    if published is None:
        raise CheckpointError(
            f"{path}: not a checkpoint of Gaitway's, and published weights are only known for "
            f"{', '.join(starting_from_published())}"
        )
    skipped = (published.classifier,) if skip is None else tuple(skip)
    given = {
        _ours(name, published): tensor
        for name, tensor in read_weights(path).items()
        if not name.startswith((*skipped, *published.unused)) and not name.endswith(_COUNTER)
    }
    own = model.state_dict()
    left = tuple(_ours(prefix, published) for prefix in skipped) + published.fresh
    wanted = {name for name in own if not name.startswith(left) and not name.endswith(_NOISE)}
    _check(own, wanted, given, path)
    model.load_state_dict(own | given)
    return sorted(given)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file or of a torch zip by their names."""
    check_size(path)
    if not zipfile.is_zipfile(path):
        return read_tensors(path)[0]
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
    if unpacked > MAX_BYTES:
        raise CheckpointError(f"{path}: {unpacked} bytes unpacked; expected at most {MAX_BYTES}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path}: not a torch file of tensors alone: {error}") from None
    if not isinstance(content, dict) or not all(isinstance(tensor, Tensor) for tensor in content.values()):
        raise CheckpointError(f"{path}: expected a dictionary of tensors, a state_dict")
    return {str(name): tensor for name, tensor in content.items()}


def _ours(name: str, published: Published) -> str:
    return HEAD + name.removeprefix(published.classifier) if name.startswith(published.classifier) else name


def _check(own: Mapping[str, Tensor], wanted: set[str], given: Mapping[str, Tensor], path: Path) -> None:
    missing, foreign = sorted(wanted - given.keys()), sorted(given.keys() - wanted)
    if missing or foreign:
        raise CheckpointError(
            f"{path}: tensors missing: {missing[:5]}; not of this model: {foreign[:5]}; "
            "expected torchvision's names, and a model with norm='frozen'"
        )
    for name, tensor in given.items():
        if tensor.shape != own[name].shape or not tensor.is_floating_point():
            raise CheckpointError(
                f"{path}: tensor {name!r} is {tuple(tensor.shape)} {tensor.dtype}; "
                f"expected {tuple(own[name].shape)} of floats, or its prefix in skip"
            )
