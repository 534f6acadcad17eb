"""Networks that segment or classify images: exported, and at work on images of any size without torch."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from export.__main__ import app
from export.gates import check_int8, check_parity, generated_examples
from export.images import ImageRecognizer, read_image
from export.onnx_export import ExportReport, export_onnx, metadata_of
from export.runtime import GateError, InputError, ModelFileError, Session
from federation.tasks.segmentation import Segmentation
from gaitway.images import Frame
from gaitway.input_spec import Fit, InputSpec
from models import CheckpointError, Model, build
from models.checkpoint import CheckpointInfo, load_checkpoint, save_checkpoint
from sim.data.images.image_files import read_image_and_size
from tests.export.test_onnx_export import FixedLogits

SPEC = InputSpec.images((3, 18, 26), (0.2, 0.5, 0.7), (0.1, 0.3, 0.5))
OPTIONS = {"input_shape": [3, 18, 26], "channels": [8, 8, 16, 16], "feature_dim": 8}
LABELS = ("sky", "road", "car")
TASK = {"name": "segmentation", "ignore_index": 11, "background": None}


class Exported:
    """A segmenter's checkpoint, and the file that the exporter made of it with 20 labelled images."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(3)
        self.checkpoint, self.file = folder / "model.safetensors", folder / "model.onnx"
        info = CheckpointInfo("segmenter_small", OPTIONS, LABELS, SPEC, task=TASK)
        save_checkpoint(self.checkpoint, build("segmenter_small", classes=3, **OPTIONS), info)
        self.module: Model = load_checkpoint(self.checkpoint)[0]
        x = generated_examples(SPEC, 20)
        self.targets = np.random.default_rng(1).integers(0, 3, (20, 18, 26))
        self.targets[:, ::5] = 11
        self.report: ExportReport = export_onnx(
            self.module, self.file, metadata=metadata_of(info), examples=x, labels=self.targets, int8=True
        )
        self.x, self.session = x, Session.load(self.file)

    def logits(self, pixels: np.ndarray) -> np.ndarray:
        """Normalize in numpy and run the module by itself: nothing of the exporter is in this path."""
        mean, std = (np.array(numbers)[:, None, None] for numbers in (SPEC.mean, SPEC.std))
        with torch.no_grad():
            return self.module(torch.from_numpy(((pixels - mean) / std).astype(np.float32))).logits.numpy()


pytestmark = pytest.mark.ci  # an export takes seconds


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return Exported(tmp_path_factory.mktemp("segmenter"))


def test_a_segmenter_is_exported_with_its_task_and_gated_by_mean_iou(exported: Exported) -> None:
    described = exported.session.metadata
    assert (described.task, described.labels, described.input) == (TASK, LABELS, SPEC)
    wanted = exported.logits(exported.x)
    assert wanted.std(axis=(0, 2, 3)).min() > 1e-3
    found = exported.session.predict(exported.x)
    np.testing.assert_allclose(found.logits, wanted, atol=1e-4)
    np.testing.assert_allclose(found.probabilities.sum(axis=1), 1, atol=1e-5)
    assert (found.labels, found.classes.shape) == ((), (20, 18, 26))
    assert found.embedding.shape == (20, 8, 5, 7)
    predicted, real = wanted.argmax(axis=1), exported.targets != 11
    ious = []
    for one in range(3):
        ours, theirs = real & (predicted == one), real & (exported.targets == one)
        ious.append((ours & theirs).sum() / (ours | theirs).sum())
    assert exported.report.metric == "mean_iou"
    assert exported.report.score == pytest.approx(np.mean(ious))
    assert exported.report.parity.max_logit_delta <= 1e-4
    assert exported.report.parity.argmax_agreement >= 0.999
    assert exported.report.int8_quality is not None
    assert exported.report.int8_quality.score == pytest.approx(exported.report.score, abs=0.005)


def test_an_image_of_any_size_gets_a_mask_of_its_own_size(exported: Exported) -> None:
    random = np.random.default_rng(0)
    exact = random.integers(0, 256, (18, 26, 3), dtype=np.uint8)
    large = np.asarray(Image.fromarray(exact).resize((52, 36), Image.Resampling.NEAREST))
    images = ImageRecognizer(exported.session)
    one, other = images.predict([exact, large])
    wanted = exported.logits(exact.transpose(2, 0, 1)[None] / 255)[0].argmax(axis=0)
    np.testing.assert_array_equal(one.mask, wanted)
    np.testing.assert_allclose(one.shares, np.bincount(wanted.ravel(), minlength=3) / wanted.size, atol=1e-6)
    resampled = np.asarray(Image.fromarray(large).resize((26, 18), Image.Resampling.LANCZOS))
    small = exported.logits(resampled.transpose(2, 0, 1)[None] / 255)[0].argmax(axis=0)
    assert other.mask is not None
    np.testing.assert_array_equal(other.mask, small.repeat(2, 0).repeat(2, 1))
    assert images.predict([]) == []
    grey = random.integers(0, 256, (9, 7), dtype=np.uint8)
    np.testing.assert_array_equal(
        images.predict([grey])[0].mask, images.predict([np.stack([grey] * 3, axis=2)])[0].mask
    )


@pytest.mark.parametrize("fit", ["pad", "stretch"])
def test_an_image_comes_to_the_model_as_those_of_its_training(exported: Exported, fit: Fit) -> None:
    graph = onnx.load(exported.file)
    as_trained = replace(exported.session.metadata, input=replace(SPEC, fit=fit))
    onnx.helper.set_model_props(graph, as_trained.to_properties())
    image = np.random.default_rng(4).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(image).save(file, format="PNG")
    file.seek(0)
    read, size = read_image_and_size(file, "a.png", Frame(18, 26, fit))
    assert size == (40, 30)
    if fit == "pad":
        assert (read[:, :, :6] == 128).all()
        assert (read[:, :, 20:] == 128).all()
    found = exported.logits(read[None] / 255)[0].argmax(axis=0).astype(np.uint8)
    # 40 × 30 in 18 × 26: 18 × 14 of them, six columns of grey on either side
    within = found[:, 6:20] if fit == "pad" else found
    wanted = Image.fromarray(within).resize((30, 40), Image.Resampling.NEAREST)
    (answer,) = ImageRecognizer(Session.load(graph.SerializeToString())).predict([image])
    np.testing.assert_array_equal(answer.mask, np.asarray(wanted))


def run(*words: Path | str) -> tuple[int, str]:
    done = CliRunner().invoke(app, [*map(str, words)], env={"COLUMNS": "300"})
    return done.exit_code, done.output


def test_predict_writes_masks_whose_indices_are_classes(tmp_path: Path, exported: Exported) -> None:
    image = np.random.default_rng(5).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    Image.fromarray(image).save(tmp_path / "street.png")
    code, said = run("predict", exported.file, tmp_path / "street.png", "--masks", tmp_path / "masks", "--json")
    assert code == 0, said
    answer = json.loads(said)
    assert sum(answer["shares"].values()) == pytest.approx(1, abs=1e-5)
    wanted = ImageRecognizer(exported.session).predict([image])[0].mask
    with Image.open(tmp_path / "masks" / "street.png") as written:
        assert written.mode == "P"
        np.testing.assert_array_equal(np.asarray(written), wanted)
    code, said = run("predict", exported.file, tmp_path / "street.png")
    assert code == 0
    assert any(f"{label} " in said for label in LABELS)


def test_no_mask_takes_the_place_of_another_or_of_an_image(tmp_path: Path, exported: Exported) -> None:
    files = [tmp_path / each for each in ("day/street.png", "night/street.jpg")]
    for file in files:
        file.parent.mkdir()
        Image.fromarray(np.zeros((4, 5, 3), np.uint8)).save(file)
    before = files[0].read_bytes()
    code, said = run("predict", exported.file, *files, "--masks", tmp_path / "masks")
    assert code == 2
    assert "would both write their mask to" in said
    code, said = run("predict", exported.file, files[0], "--masks", tmp_path / "day")
    assert code == 2
    assert "would overwrite the image" in said
    assert files[0].read_bytes() == before
    assert not (tmp_path / "masks").exists()


def test_the_documents_lines_on_images_run_as_they_are(
    tmp_path: Path, exported: Exported, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (Path(__file__).parents[2] / "docs" / "inference.md").read_text()
    (block,) = [each for each in re.findall(r"```python\n(.*?)```", text, re.S) if "export.images" in each]
    monkeypatch.chdir(tmp_path)
    Path("segmenter.onnx").write_bytes(exported.file.read_bytes())
    Image.fromarray(np.zeros((12, 34, 3), np.uint8)).save("street.jpg")
    exec(block, {})
    assert "(12, 34)" in capsys.readouterr().out


def test_a_classifier_says_the_class_of_each_image(tmp_path: Path) -> None:
    torch.manual_seed(1)
    spec = InputSpec.images((1, 12, 10), (0.4,), (0.3,))
    options = {"input_shape": [1, 12, 10], "channels": [4, 8], "hidden": 12}
    save_checkpoint(
        tmp_path / "m", build("public_cnn", classes=3, **options), CheckpointInfo("public_cnn", options, LABELS, spec)
    )
    code, said = run("onnx", "--checkpoint", tmp_path / "m", "--out", tmp_path / "m.onnx")
    assert code == 0, said
    image = np.random.default_rng(2).integers(0, 256, (12, 10), dtype=np.uint8)
    Image.fromarray(image).save(tmp_path / "a.png")
    (answer,) = ImageRecognizer(Session.load(tmp_path / "m.onnx")).predict([image])
    with torch.no_grad():
        x = torch.from_numpy((image[None, None] / 255 - 0.4).astype(np.float32) / np.float32(0.3))
        wanted = load_checkpoint(tmp_path / "m")[0](x).logits.softmax(1).numpy()[0]
    np.testing.assert_allclose(answer.probabilities, wanted, atol=1e-5)
    assert (answer.label, answer.mask) == (LABELS[int(wanted.argmax())], None)
    code, said = run("predict", tmp_path / "m.onnx", tmp_path / "a.png")
    assert f"a.png: {answer.label} {wanted.max():.0%}" in said
    code, said = run("predict", tmp_path / "m.onnx", tmp_path / "a.png", "--masks", tmp_path)
    assert code == 2
    assert "classifies whole images" in said


def test_what_is_no_image_is_refused_in_words(tmp_path: Path, exported: Exported) -> None:
    with pytest.raises(InputError, match=r"\(4, 4, 3\) of float64; expected uint8"):
        ImageRecognizer(exported.session).predict([np.zeros((4, 4, 3))])
    with pytest.raises(InputError, match=r"\(4, 4, 2\) of uint8"):
        ImageRecognizer(exported.session).predict([np.zeros((4, 4, 2), np.uint8)])
    (tmp_path / "a.png").write_bytes(b"no image")
    code, said = run("predict", exported.file, tmp_path / "a.png")
    assert code == 2
    assert "a.png isn't a readable image: it begins with b'no image'; expected one of JPEG" in said
    with pytest.raises(InputError, match="a readable image"):
        read_image(tmp_path / "none.png")
    with pytest.raises(InputError, match=r"labels \(16,\): expected \(16, 18, 26\)"):
        export_onnx(
            exported.module, tmp_path / "m.onnx", metadata=exported.session.metadata,
            examples=exported.x[:16], labels=np.zeros(16),
        )  # fmt: skip
    with pytest.raises(GateError, match=r"15 examples .* at least 16"):
        export_onnx(exported.module, tmp_path / "m.onnx", metadata=exported.session.metadata, examples=exported.x[:15])


def test_a_file_must_answer_as_its_task_says(exported: Exported) -> None:
    graph = onnx.load(exported.file)
    for task, words in (
        ({"name": "classification"}, r"expected logits \[batch, 3\]"),
        ({"name": "masked_reconstruction"}, "metadata task"),
    ):
        onnx.helper.set_model_props(graph, replace(exported.session.metadata, task=task).to_properties())
        with pytest.raises(ModelFileError, match=words):
            Session.load(graph.SerializeToString())


def test_a_checkpoint_of_another_task_is_refused(tmp_path: Path) -> None:
    info = CheckpointInfo("segmenter_small", OPTIONS, LABELS, SPEC)
    with pytest.raises(CheckpointError, match="the task is 'classification'; 'segmenter_small' learns segmentation"):
        save_checkpoint(tmp_path / "m", build("segmenter_small", classes=3, **OPTIONS), info)


def test_gates_count_pixels() -> None:
    truth = np.arange(8 * 10 * 100).reshape(8, 10, 100) % 3
    exact = np.eye(3, dtype=np.float32)[truth].transpose(0, 3, 1, 2)
    x = np.zeros((8, 3, 10, 100), np.float32)
    near = exact * np.float32(1e-5)
    tied = near.copy()
    tied[7, :, 0, :3] = tied[7, ::-1, 0, :3]  # at most 3 of 8000 pixels have another class, all within 1e-4
    assert check_parity(FixedLogits(tied), x, near, Segmentation()).argmax_agreement >= 0.999
    tied[:, :, :, 50:] = tied[:, ::-1, :, 50:]
    with pytest.raises(GateError, match=r"expected 99\.9% of pixels"):
        check_parity(FixedLogits(tied), x, near, Segmentation())
    worse = exact.copy()
    worse[:, :, 0, :9] = np.eye(3, dtype=np.float32)[(truth[:, 0, :9] + 1) % 3].transpose(0, 2, 1)
    assert check_int8(FixedLogits(worse), FixedLogits(exact), x, None, Segmentation()).argmax_agreement == 0.991
    with pytest.raises(GateError, match=r"int8 mIoU 0\.98.* against 1\.0000"):
        check_int8(FixedLogits(worse), FixedLogits(exact), x, truth, Segmentation())
