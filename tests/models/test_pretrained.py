"""Weights in torchvision's layout: ResNet18 against its definition, and files that must be refused."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.func import functional_call

from models import CheckpointError, Model, build
from models.checkpoint import load_pretrained, read_weights
from models.layers.normalization import FrozenBatchNorm

State = dict[str, Tensor]
STAGES = ((1, 16, 1), (2, 32, 2), (3, 64, 2), (4, 128, 2))


def network(**options: Any) -> Model:
    return build("resnet18", classes=5, **({"width": 16, "norm": "frozen"} | options))


def torchvision_state(classes: int = 1000) -> State:
    """Return random tensors under torchvision's names, of a ResNet18 of width 16."""
    state: State = {}

    def conv(name: str, out: int, channels: int, kernel: int, norm: str) -> None:
        state[f"{name}.weight"] = torch.randn(out, channels, kernel, kernel) * (2 / (channels * kernel**2)) ** 0.5
        for tensor in ("weight", "running_var"):
            state[f"{norm}.{tensor}"] = torch.rand(out) + 0.5
        for tensor in ("bias", "running_mean"):
            state[f"{norm}.{tensor}"] = 0.3 * torch.randn(out)
        state[f"{norm}.num_batches_tracked"] = torch.tensor(9)

    conv("conv1", 16, 3, 7, "bn1")
    channels = 16
    for stage, out, stride in STAGES:
        for block in range(2):
            name = f"layer{stage}.{block}"
            conv(f"{name}.conv1", out, channels, 3, f"{name}.bn1")
            conv(f"{name}.conv2", out, out, 3, f"{name}.bn2")
            if block == 0 and stride == 2:
                conv(f"{name}.downsample.0", out, channels, 1, f"{name}.downsample.1")
            channels = out
    return state | {"fc.weight": torch.randn(classes, 128), "fc.bias": torch.randn(classes)}


def reference(state: State, x: Tensor, strides: tuple[int, int]) -> Tensor:
    """Return the features by torch's functions, with BatchNorm in evaluation."""

    def layer(name: str, norm: str, x: Tensor, stride: int, padding: int) -> Tensor:
        x = F.conv2d(x, state[f"{name}.weight"].double(), None, stride, padding)
        mean, var, weight, bias = (
            state[f"{norm}.{t}"].double() for t in ("running_mean", "running_var", "weight", "bias")
        )
        return F.batch_norm(x, mean, var, weight, bias)

    x = F.max_pool2d(F.relu(layer("conv1", "bn1", x, strides[0], 3)), 3, strides[1], 1)
    for stage, _, stride in STAGES:
        for block in range(2):
            name, step = f"layer{stage}.{block}", stride if block == 0 else 1
            inner = F.relu(layer(f"{name}.conv1", f"{name}.bn1", x, step, 1))
            inner = layer(f"{name}.conv2", f"{name}.bn2", inner, 1, 1)
            short = layer(f"{name}.downsample.0", f"{name}.downsample.1", x, step, 0) if step == 2 else x
            x = F.relu(inner + short)
    return F.adaptive_avg_pool2d(x, 1).flatten(1)


def written(path: Path, state: State, kind: str) -> Path:
    if kind == "safetensors":
        save_file(state, path)
    else:
        torch.save(state, path, _use_new_zipfile_serialization=kind == "torch")
    return path


@pytest.mark.parametrize("strides", [(2, 2), (1, 4)])
@pytest.mark.parametrize("kind", ["safetensors", "torch", "torch before 1.6"])
def test_the_files_weights_make_torchvisions_network(tmp_path: Path, kind: str, strides: tuple[int, int]) -> None:
    model, state = network(stem_strides=strides), torchvision_state()
    head = model.head.state_dict()
    names = load_pretrained(model, written(tmp_path / "weights", state, kind))
    assert set(names) == {n for n in model.state_dict() if not n.startswith("head.")}
    assert all(torch.equal(t, head[n]) for n, t in model.head.state_dict().items())
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    for training in (False, True):
        features = model.double().train(training)(x).features
        torch.testing.assert_close(features, reference(state, x, strides), rtol=1e-10, atol=1e-10)


def test_the_classifier_is_taken_where_nothing_is_skipped(tmp_path: Path) -> None:
    model, state = network(), torchvision_state(classes=5)
    load_pretrained(model, written(tmp_path / "weights", state, "torch"), skip=())
    assert torch.equal(model.state_dict()["head.weight"], state["fc.weight"])


def test_a_fresh_stem_as_in_tan_et_als_code(tmp_path: Path) -> None:
    model, state = network(input_shape=[1, 28, 28]), torchvision_state()
    kept = model.state_dict()["conv1.weight"].clone()
    load_pretrained(model, written(tmp_path / "weights", state, "torch"), skip=("fc.", "conv1.", "bn1."))
    assert torch.equal(model.state_dict()["conv1.weight"], kept)
    assert torch.equal(model.state_dict()["layer1.0.conv1.weight"], state["layer1.0.conv1.weight"])


def test_frozen_norm_is_batch_norms_affine_map_with_its_gradients() -> None:
    frozen, norm = FrozenBatchNorm(4).double(), nn.BatchNorm2d(4).double().eval()
    with torch.no_grad():
        for tensor in norm.state_dict().values():
            if tensor.is_floating_point():
                tensor.uniform_(0.5, 2.0)
    frozen.load_state_dict({n: t for n, t in norm.state_dict().items() if n != "num_batches_tracked"})
    x, y = torch.randn(2, 3, 4, 5, 5, dtype=torch.float64)
    torch.testing.assert_close(frozen.train()(x), norm(x))
    torch.testing.assert_close(frozen(0.3 * x + 0.7 * y), 0.3 * frozen(x) + 0.7 * frozen(y))
    for layer in (frozen, norm):
        (layer(x) * y).sum().backward()
    torch.testing.assert_close(frozen.weight.grad, norm.weight.grad)
    torch.testing.assert_close(frozen.bias.grad, norm.bias.grad)
    before = {n: b.clone() for n, b in frozen.named_buffers()}
    functional_call(frozen.train(), dict(frozen.named_parameters()), (x,))
    assert all(torch.equal(b, before[n]) for n, b in frozen.named_buffers())
    fresh = FrozenBatchNorm(4, eps=0.0).double()
    torch.testing.assert_close(fresh(x), x)


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    state, path = torchvision_state(), tmp_path / "weights"
    written(path, state, "safetensors")
    with pytest.raises(CheckpointError, match=r"bn1\.running_mean.*norm='frozen'"):
        load_pretrained(network(norm="group"), path)
    with pytest.raises(CheckpointError, match=r"'conv1\.weight' is \(16, 3, 7, 7\).*expected \(16, 1, 7, 7\)"):
        load_pretrained(network(input_shape=[1, 28, 28]), path)
    written(path, {n: t for n, t in state.items() if n != "layer4.1.conv2.weight"}, "torch")
    with pytest.raises(CheckpointError, match=r"missing: \['layer4\.1\.conv2\.weight'\]"):
        load_pretrained(network(), path)


class Runs:
    """An object whose unpickling would run a function."""

    def __reduce__(self) -> Any:
        return print, ("unpickled",)


def test_files_that_are_more_or_less_than_tensors_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "weights"
    with pytest.raises(CheckpointError, match="no such"):
        load_pretrained(network(), path)
    torch.save(Runs(), path)
    with pytest.raises(CheckpointError, match="not a torch file of tensors alone"):
        load_pretrained(network(), path)
    torch.save(Runs(), path, _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointError, match="contains more than tensors, which is never loaded"):
        load_pretrained(network(), path)
    torch.save([torch.zeros(1)], path)
    with pytest.raises(
        CheckpointError, match="it contains a list; expected only a dictionary of tensors, a state_dict"
    ):
        load_pretrained(network(), path)
    torch.save({"state_dict": {"conv1.weight": torch.zeros(1)}}, path)
    with pytest.raises(CheckpointError, match=r"it contains a dictionary with \['state_dict'\]; expected"):
        load_pretrained(network(), path)
    path.write_text("no weights")
    with pytest.raises(CheckpointError, match=r"neither a safetensors file nor one of torch\.save; .*b'no weights'"):
        load_pretrained(network(), path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("readme", "no weights" * 100)
    with pytest.raises(CheckpointError, match="not a torch file"):
        load_pretrained(network(), path)
    monkeypatch.setattr("models.checkpoint.MAX_BYTES", 500)
    with pytest.raises(CheckpointError, match="unpacked; expected at most 500"):
        load_pretrained(network(), path)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("kind", ["torch", "torch before 1.6"])
def test_damaged_files_are_refused_in_words(tmp_path: Path, kind: str) -> None:
    """Of such files torch raises errors of any kind, of a list's index as of a struct's length."""
    whole = written(tmp_path / "weights", {"fc.weight": torch.zeros(2, 3)}, kind).read_bytes()
    random, refused = np.random.default_rng(0), []
    for _ in range(300):
        damaged = bytearray(whole[: random.integers(30, len(whole))] if random.random() < 0.3 else whole)
        for place in random.integers(20, len(damaged), 2):
            damaged[place] = random.integers(256)
        (tmp_path / "damaged").write_bytes(damaged)
        try:
            read_weights(tmp_path / "damaged")
        except CheckpointError as error:
            refused.append(str(error))
    assert len(refused) > 100
    assert all(each.startswith(f"{tmp_path / 'damaged'}: ") for each in refused)


def test_a_false_size_takes_no_memory(tmp_path: Path) -> None:
    """A file of before zips says itself how large its tensors are: here a terabyte, of which it has 24 bytes."""
    content = written(tmp_path / "weights", {"fc.weight": torch.zeros(2, 3)}, "torch before 1.6").read_bytes()
    claimed, begins = b"\x8a\x05" + (1 << 38).to_bytes(5, "little"), content.index(b"cpuq")
    size = content.index(b"K\x06", begins)
    (tmp_path / "weights").write_bytes(content[:size] + claimed + content[size + 2 :])
    with pytest.raises(CheckpointError, match="not a torch file"):
        read_weights(tmp_path / "weights")
