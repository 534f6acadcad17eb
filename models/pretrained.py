"""Published weights from a file in torchvision's layout, laid over a network with torchvision's names.

Networks say in `published` what their classifier is called there, and what only they or only the file has.

A safetensors file, or one of `torch.save`, as a zip or as it wrote them before torch 1.6, which is what torchvision's
oldest files still are (mobilenet_v2-b0353104.pth); read with `weights_only=True`: tensors and nothing that runs.
"""

import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

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
_BEFORE_ZIP = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e")
"""How files of `torch.save` begin that are no zip."""


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
    """Return the tensors of a safetensors file or of one of `torch.save` by their names; raises CheckpointError."""
    check_size(path)
    if not is_torch_file(path):
        return _read_safetensors(path)
    try:
        if (unpacked := _unpacked_bytes(path)) > MAX_BYTES:
            raise CheckpointError(f"{path}: {unpacked} bytes unpacked; expected at most {MAX_BYTES}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except Exception as error:  # of a damaged file torch raises whatever it trips over, up to IndexError and struct's
        raise CheckpointError(
            f"{path}: not a torch file of tensors alone ({type(error).__name__}): it is damaged, or holds more than "
            "tensors, which is never loaded; save the network's state_dict() alone"
        ) from None
    if not isinstance(content, dict) or not all(isinstance(tensor, Tensor) for tensor in content.values()):
        kind = f"a dictionary with {list(content)[:3]}" if isinstance(content, dict) else f"a {type(content).__name__}"
        raise CheckpointError(f"{path}: it holds {kind}; expected a dictionary of tensors, a state_dict, alone")
    return {str(name): tensor for name, tensor in content.items()}


def is_torch_file(path: Path) -> bool:
    """Whether `torch.save` wrote a file, or another program a zip."""
    with path.open("rb") as file:
        return _is_zip(path) or file.read(len(_BEFORE_ZIP)) == _BEFORE_ZIP


def _is_zip(path: Path) -> bool:
    try:
        return zipfile.is_zipfile(path)
    except zipfile.BadZipFile:  # a damaged one
        return True


def _unpacked_bytes(path: Path) -> int:
    if not _is_zip(path):
        return path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        return sum(entry.file_size for entry in archive.infolist())


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return read_tensors(path)[0]
    except CheckpointError:
        with path.open("rb") as file:
            begins = file.read(16)
        raise CheckpointError(
            f"{path}: neither a safetensors file nor one of torch.save; it begins with {begins!r}"
        ) from None


def _ours(name: str, published: Published) -> str:
    return HEAD + name.removeprefix(published.classifier) if name.startswith(published.classifier) else name


def _check(own: Mapping[str, Tensor], wanted: set[str], given: Mapping[str, Tensor], path: Path) -> None:
    missing, foreign = sorted(wanted - given.keys()), sorted(given.keys() - wanted)
    if missing or foreign:
        raise CheckpointError(
            f"{path}: tensors missing: {missing[:5]}; not of this model: {foreign[:5]}; "
            "expected torchvision's names, and a model with norm='frozen' (--set model.norm=frozen)"
        )
    for name, tensor in given.items():
        if tensor.shape != own[name].shape or not tensor.is_floating_point():
            raise CheckpointError(
                f"{path}: tensor {name!r} is {tuple(tensor.shape)} {tensor.dtype}; "
                f"expected {tuple(own[name].shape)} of floats, or its prefix in skip"
            )
