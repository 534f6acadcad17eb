"""Checkpoints: a round trip over the whole table, and files that must be refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gaitway.input_spec import InputSpec
from models import MODELS, CheckpointError, build
from models.checkpoint import CheckpointInfo, load_checkpoint, save_checkpoint
from tests.models.small_models import SMALL

SIZES: dict[str, dict[str, Any]] = SMALL | {"har_cnn": {"channels": [8, 8]}, "har_cnn_alp": {"prototypes": [8]}}


def info(name: str) -> CheckpointInfo:
    labels, task = ("walk", "sit", "läuft"), {"name": MODELS[name].learnt_tasks()[0]}
    return CheckpointInfo(
        name, SIZES[name], labels, spec_of(name), method="fedali", round=3, scores={"macro_f1": 0.5}, task=task
    )


def spec_of(name: str) -> InputSpec:
    shape, kind = build(name, classes=3, **SIZES[name]).input_shape, MODELS[name].input_kinds[0]
    if kind == "window":
        return InputSpec.windows((0.5,) * 6, (2.0,) * 6)
    return (InputSpec.images(shape, (0.5,) * shape[0], (2.0,) * shape[0]) if kind == "image"
            else InputSpec.vectors((0.5,) * shape[0], (2.0,) * shape[0]))  # fmt: skip


WINDOWS = json.loads(json.dumps(spec_of("har_cnn").to_json()))
IMAGES = json.loads(json.dumps(InputSpec.images((3, 8, 8), (0.0,) * 3, (1.0,) * 3).to_json()))


def saved(folder: Path, name: str = "har_cnn_alp") -> Path:
    path = folder / "deep" / "model.safetensors"
    save_checkpoint(path, build(name, classes=3, **SIZES[name]), info(name))
    return path


def rewrite(path: Path, tensors: dict[str, torch.Tensor] | None = None, **changes: Any) -> None:
    values = json.loads(info("har_cnn_alp").to_json()) | changes
    save_file(tensors or load_file(path), path, metadata={"gaitway": json.dumps(values)})


def test_how_images_were_fitted_is_kept_and_was_stretched_in_files_that_do_not_say() -> None:
    padded = InputSpec.images((3, 8, 8), (0.0,) * 3, (1.0,) * 3, "pad")
    assert InputSpec.from_json(json.loads(json.dumps(padded.to_json()))) == padded
    old = {name: value for name, value in IMAGES.items() if name != "fit"}
    assert InputSpec.from_json(old) == replace(padded, fit="stretch")
    assert "fit" not in WINDOWS
    assert InputSpec.from_json(WINDOWS).fit is None


@pytest.mark.parametrize("name", MODELS)
def test_round_trip(tmp_path: Path, name: str) -> None:
    model = build(name, classes=3, **SIZES[name]).eval()
    path = tmp_path / "model.safetensors"
    save_checkpoint(path, model, info(name))
    again, read = load_checkpoint(path)
    assert read == replace(info(name), options=model.options)
    assert set(model.options) >= set(SIZES[name])
    x = torch.randn(4, *model.input_shape)
    # not bit for bit: oneDNN chooses a kernel by where its memory lies
    torch.testing.assert_close(again(x).logits, model(x).logits)
    assert all(torch.equal(t, again.state_dict()[n]) for n, t in model.state_dict().items())
    assert all(p.requires_grad for p in again.parameters())
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_plain_state_is_checked_before_it_is_written(tmp_path: Path) -> None:
    state = build("har_cnn", classes=3).state_dict()
    described = replace(info("har_cnn"), options={})
    save_checkpoint(tmp_path / "a", dict(state), described)
    state.pop("head.0.bias")
    with pytest.raises(CheckpointError, match=r"head\.0\.bias"):
        save_checkpoint(tmp_path / "b", state, described)
    assert not (tmp_path / "b").exists()


def test_a_wrong_shape_or_type_names_the_tensor(tmp_path: Path) -> None:
    path = saved(tmp_path)
    tensors = load_file(path)
    rewrite(path, tensors | {"head.0.weight": torch.zeros(2, 3)})
    with pytest.raises(CheckpointError, match=r"'head\.0\.weight' is \(2, 3\).*expected \(128, 192\)"):
        load_checkpoint(path)
    rewrite(path, tensors | {"head.0.bias": torch.zeros(128, dtype=torch.float64)})
    with pytest.raises(CheckpointError, match=r"'head\.0\.bias'.*float64"):
        load_checkpoint(path)
    rewrite(path, tensors | {"extra": torch.zeros(1)})
    with pytest.raises(CheckpointError, match=r"not of this model: \['extra'\]"):
        load_checkpoint(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 1}, "schema 2"),
        ({"classes": 4}, "one name for each class"),
        ({"labels": "abc"}, "labels"),
        ({"input": "x"}, "input"),
        ({"input": {**WINDOWS, "mean": [0.0] * 5}}, "mean"),
        ({"input": IMAGES}, r"image \(3, 8, 8\).* takes window"),
        ({"input": {**WINDOWS, "std": [0.0] * 6}}, "std"),
        ({"input": {**WINDOWS, "std": [float("nan")] * 6}}, "std"),
        ({"input": {**WINDOWS, "fit": "pad"}}, "fit"),
        ({"input": {**IMAGES, "fit": "crop"}}, "fit"),
        ({"input": {**IMAGES, "fit": None}}, "fit"),
        ({"model": "rnn"}, "rnn"),
        ({"options": {"chanels": [8, 8]}}, "did you mean 'channels'"),
        ({"options": {"prototypes": "ab"}}, "cannot build"),
        ({"surprise": 1}, "surprise"),
        # Sizes that would not fit into memory are refused by their shapes, before any storage.
        ({"options": {"prototypes": [10**12]}}, "local_prototypes"),
    ],
)
def test_foreign_metadata_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = saved(tmp_path)
    rewrite(path, **changes)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(path)


def test_windows_of_another_length_are_for_the_cnn_alone(tmp_path: Path) -> None:
    short = InputSpec.windows((0.0,) * 6, (1.0,) * 6, window=64)
    for name in ("har_cnn", "har_cnn_alp"):
        model = build(name, classes=3, **SIZES[name]).eval()
        save_checkpoint(tmp_path / name, model, replace(info(name), input=short))
        again, read = load_checkpoint(tmp_path / name)
        assert read.input == short
        assert again(torch.randn(2, *short.shape)).logits.shape == (2, 3)
    with pytest.raises(CheckpointError, match=r"window \(64, 6\); 'hart' takes window \(128, 6\)$"):
        save_checkpoint(tmp_path / "h", build("hart", classes=3, **SIZES["hart"]), replace(info("hart"), input=short))


@pytest.mark.parametrize("name", ["hart_alp", "vit_tiny_alp"])
def test_the_earlier_placement_of_alp_is_refused_in_words(tmp_path: Path, name: str) -> None:
    """As version 0.1 wrote it: only the options that were given, none of them the placement, and no factor of β."""
    path = tmp_path / "old.safetensors"
    state = {n: t for n, t in build(name, classes=3, **SIZES[name]).state_dict().items() if "beta_scale" not in n}
    save_file(state, path, metadata={"gaitway": info(name).to_json()})
    message = rf"old\.safetensors: a {name} of an earlier version, which had its ALP layers on the residual stream"
    with pytest.raises(CheckpointError, match=message + r".*Train it again, with m.*placement=residual"):
        load_checkpoint(path)


@pytest.mark.parametrize("placement", ["branch", "residual"])
def test_both_placements_come_back_as_they_were(tmp_path: Path, placement: str) -> None:
    options = SIZES["hart_alp"] | {"placement": placement}
    model = build("hart_alp", classes=3, **options).eval()
    save_checkpoint(tmp_path / "a", model, replace(info("hart_alp"), options=options))
    again, read = load_checkpoint(tmp_path / "a")
    x = torch.randn(4, 128, 6)
    assert read.options["placement"] == placement
    torch.testing.assert_close(again(x).logits, model(x).logits)


def test_files_that_are_no_checkpoints_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with pytest.raises(CheckpointError, match="no such"):
        load_checkpoint(path)
    path.write_bytes(b"\x80\x04pickle?" * 10)
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        load_checkpoint(path)
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(CheckpointError, match="no metadata"):
        load_checkpoint(path)
