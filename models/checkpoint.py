"""Checkpoints (one safetensors file with every parameter and buffer, and the model's options), and published weights.

The file's `__metadata__` has one key, `gaitway`, whose value is the JSON of `CheckpointInfo`.

Published weights come from a file in torchvision's layout, for networks with torchvision's names. A network's
`published` says how its classifier is called there, and which tensors only one side has.

They are safetensors files or files of `torch.save`, in the zip format or the one before torch 1.6, which torchvision's
oldest files have (mobilenet_v2-b0353104.pth). The latter are read with `weights_only=True`: tensors, no code.
"""

from __future__ import annotations

import json
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from gaitway.files import write_file
from gaitway.input_spec import HEAD, InputSpec, InputSpecError
from gaitway.plain_text import MAX_LABEL, checked_values
from gaitway.tasks import DEFAULT_TASK
from models.errors import CheckpointError, ModelError
from models.model import Model, Published
from models.registry import build, starting_from_published

SCHEMA = 2
_KEY = "gaitway"
# A hundred times the largest model of the table; a file beyond it is not one of ours.
MAX_BYTES = 1 << 30


@dataclass(frozen=True)
class CheckpointInfo:
    """What a checkpoint says about its model, the examples that it takes, and the task (`federation.tasks`) learnt."""

    model: str
    options: dict[str, Any]
    labels: tuple[str, ...]
    input: InputSpec
    method: str = ""
    round: int = 0
    federation: str = ""
    parent_sha256: str = ""
    scores: dict[str, float] = field(default_factory=dict)
    task: dict[str, Any] = field(default_factory=lambda: {"name": DEFAULT_TASK.name})
    fresh_head: bool = False
    """Whether nobody has trained the head: of an encoder that was pretrained without labels."""
    normalization: str = ""
    """Whose statistics the windows were normalized with, as a plan says it; empty where a file does not tell."""

    @property
    def classes(self) -> int:
        return len(self.labels)

    def to_json(self) -> str:
        """Return the metadata's JSON."""
        values = {"schema": SCHEMA, "classes": self.classes} | asdict(self) | {"input": self.input.to_json()}
        for later in ("fresh_head", "normalization"):  # as all files were before there were others
            if not values[later]:
                del values[later]
        return json.dumps(values)

    @classmethod
    def from_json(cls, text: str) -> CheckpointInfo:
        """Read and check the metadata's JSON; raises CheckpointError."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"metadata {_KEY!r} is not JSON: {error}") from None
        if not isinstance(values, dict) or values.pop("schema", None) != SCHEMA:
            raise CheckpointError(f"metadata {_KEY!r}: expected an object with schema {SCHEMA}")
        classes = values.pop("classes", None)
        try:
            values = checked_values(values)
        except ValueError as error:
            raise CheckpointError(f"metadata {_KEY!r}: {error}") from None
        _check_fields(values)
        try:
            taken = InputSpec.from_json(values["input"])
        except InputSpecError as error:
            raise CheckpointError(f"metadata {_KEY!r}: {error}") from None
        info = cls(**(values | {"labels": tuple(values["labels"]), "input": taken}))
        _check_values(info, classes)
        return info


def save_checkpoint(path: Path | str, module_or_state: nn.Module | Mapping[str, Tensor], info: CheckpointInfo) -> None:
    """Write parameters and buffers under their names, whole or not at all.

    The file names every option of the model, so that another default in a later version does not change what it is.
    Raises CheckpointError where a tensor is missing, superfluous or of another shape than `info.model` has.
    """
    state = module_or_state.state_dict() if isinstance(module_or_state, nn.Module) else module_or_state
    path = Path(path)
    CheckpointInfo.from_json(info.to_json())
    skeleton = _skeleton(info)
    info = replace(info, options=skeleton.options)
    _check_state(skeleton.state_dict(), state, path)
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, save(tensors, metadata={_KEY: info.to_json()}))


def load_checkpoint(path: Path | str) -> tuple[Model, CheckpointInfo]:
    """Rebuild the model on the CPU, in evaluation mode; raises CheckpointError, which names the tensor at fault."""
    path = Path(path)
    check_size(path)
    tensors, metadata = read_tensors(path)
    text = metadata.get(_KEY)
    if text is None:
        raise CheckpointError(f"{path}: no metadata {_KEY!r}; expected a checkpoint that Gaitway wrote")
    info = CheckpointInfo.from_json(text)
    module = _skeleton(info)
    _check_placement(info, module, path)
    _check_state(module.state_dict(), tensors, path)
    module.load_state_dict(tensors, assign=True)
    return module.eval(), info


def read_info(path: Path) -> CheckpointInfo | None:
    """Return what a file says of itself, without its tensors; None for one that Gaitway did not write."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            text = (file.metadata() or {}).get(_KEY)
    except (SafetensorError, OSError):
        return None
    return None if text is None else CheckpointInfo.from_json(text)


def check_size(path: Path) -> None:
    """Raise CheckpointError if there is no such file, or one that is larger than any of ours."""
    if not path.is_file():
        raise CheckpointError(f"{path}: no such checkpoint")
    if path.stat().st_size > MAX_BYTES:
        raise CheckpointError(f"{path}: {path.stat().st_size} bytes; expected at most {MAX_BYTES}")


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a safetensors file and its metadata; raises CheckpointError."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            names = file.keys()  # it is no mapping: it cannot be iterated
            return {name: file.get_tensor(name) for name in names}, dict(file.metadata() or {})
    except SafetensorError as error:
        raise CheckpointError(f"{path}: not a safetensors file: {error}") from None


def _skeleton(info: CheckpointInfo) -> Model:
    """Build the model without storage, so that absurd sizes in a foreign file cost nothing before the check."""
    try:
        with torch.device("meta"):
            model = build(info.model, classes=info.classes, **info.options)
    except (ModelError, TypeError) as error:
        raise CheckpointError(f"cannot build the checkpoint's model: {error}") from error
    if not model.accepts(info.input):
        raise CheckpointError(
            f"the input is a {info.input.kind} {info.input.shape}; {info.model!r} takes "
            f"{' or '.join(model.input_kinds)} {model.input_shape}{' of any length' if model.any_length else ''}"
        )
    if not model.learns(str(info.task.get("name"))):
        raise CheckpointError(
            f"the task is {info.task.get('name')!r}; {info.model!r} learns {' or '.join(model.learnt_tasks())}"
        )
    return model


def _check_placement(info: CheckpointInfo, module: Model, path: Path) -> None:
    if "placement" in module.options and "placement" not in info.options:
        raise CheckpointError(
            f"{path}: a {info.model} of an earlier version, which had its ALP layers on the residual stream; now they "
            f"come before the branches, as in the authors' code, where its weights would give wrong answers. Train it "
            f"again, with model.placement=residual for a network like the old one"
        )


def _check_state(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor], path: Path) -> None:
    missing, foreign = sorted(wanted.keys() - given.keys()), sorted(given.keys() - wanted.keys())
    if missing or foreign:
        raise CheckpointError(f"{path}: tensors missing: {missing[:5]}; not of this model: {foreign[:5]}")
    for name, tensor in wanted.items():
        found = given[name]
        if found.shape != tensor.shape or found.dtype != tensor.dtype:
            raise CheckpointError(
                f"{path}: tensor {name!r} is {tuple(found.shape)} {found.dtype}; "
                f"expected {tuple(tensor.shape)} {tensor.dtype}"
            )


def _check_fields(values: dict[str, Any]) -> None:
    known = {f.name for f in fields(CheckpointInfo)}
    required = {"model", "options", "labels", "input"}
    if not required <= values.keys() <= known:
        wrong = sorted((required - values.keys()) | (values.keys() - known))
        raise CheckpointError(f"metadata {_KEY!r}: missing or unknown: {', '.join(wrong)}")
    kinds: dict[str, type] = {
        "labels": list, "input": dict, "options": dict, "scores": dict, "task": dict, "model": str, "round": int,
        "fresh_head": bool, "normalization": str,
    }  # fmt: skip
    for name, kind in kinds.items():
        if name in values and (not isinstance(values[name], kind) or (kind is int and isinstance(values[name], bool))):
            raise CheckpointError(f"metadata {_KEY!r}: {name} is {values[name]!r}; expected {kind}")


def _check_values(info: CheckpointInfo, classes: object) -> None:
    if classes != info.classes or not all(isinstance(label, str) for label in info.labels):
        raise CheckpointError(f"{classes} classes and labels {info.labels}: expected one name for each class")
    if wrong := [label for label in info.labels if not 0 < len(label) <= MAX_LABEL]:
        raise CheckpointError(
            f"label {wrong[0][:40]!r} has {len(wrong[0]):,} characters; expected a name of 1 to {MAX_LABEL}"
        )


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
            f"{path}: not a Gaitway checkpoint, and published weights are only known for "
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
            f"{path}: not a torch file of tensors alone ({type(error).__name__}): it is damaged, or contains more "
            f"than tensors, which is never loaded; save only the network's state_dict()"
        ) from None
    if not isinstance(content, dict) or not all(isinstance(tensor, Tensor) for tensor in content.values()):
        kind = f"a dictionary with {list(content)[:3]}" if isinstance(content, dict) else f"a {type(content).__name__}"
        raise CheckpointError(f"{path}: it contains {kind}; expected only a dictionary of tensors, a state_dict")
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
