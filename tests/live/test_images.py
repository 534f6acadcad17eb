"""A federation of images, from folders to adopted ONNX models, through a broker, the server and two agents."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edge_agent.config.settings import SensorsSection
from edge_agent.machine.commands import Evaluate, StartJob
from edge_agent.serving.acceptance import evaluate_job
from edge_agent.training import trainer
from edge_agent.training.job import CHECKPOINT, make_job
from edge_agent.training.torch_files import export_candidates
from export.runtime import Session
from federation.plan import Plan
from gaitway.images import decode_image
from tests.aggregator_api.bench import Bench, wait_for
from tests.live import shapes
from tests.live.fleet import Fleet, embedded, fleet
from tests.live.in_memory import Device

DEVICES = {"kitchen": 1, "porch": 2}
"""The devices, and the seeds of their images."""
SHAPE = (3, 16, 16)
PLAN = {
    "labels": list(shapes.LABELS),
    "model": {
        "name": "mnist_cnn",
        "options": {
            "input_shape": list(SHAPE), "channels": [16, 32], "hidden": 32, "map_dropout": 0.0, "dropout": 0.0,
        },
    },
    "method": {"name": "fedavg"},
    "training": {"classes": 3, "feature_dim": 32, "epochs": 5, "batch_size": 16, "lr": 3e-3},
    "rounds": {"rounds": 2, "minimum_clients": 2},
    "data": {"input": {"kind": "image", "shape": list(SHAPE)}},
}  # fmt: skip


def config_of(folder: Path, device: str, here: Fleet) -> Path:
    path = folder / f"{device}.toml"
    path.write_text(
        f'[agent]\ndevice = "{device}"\nfederation = "live"\ndata_dir = "{device}"\n'
        f'[server]\nurl = "{here.url}"\n[broker]\nhost = "127.0.0.1"\nport = {here.mqtt}\n'
        f'[sensors]\nsource = "images"\npath = "{device}-images"\n'
    )
    return path


def said(config: Path, *words: str) -> str:
    command = [sys.executable, "-m", "edge_agent", *words, "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def adopted(folder: Path) -> bool:
    """Whether a device uses a model of the last round."""
    path = folder / "summary.json"
    model = json.loads(path.read_text())["model"] if path.is_file() else None
    return model is not None and model["round"] == 2


@pytest.mark.slow  # minutes; masks, which CI watches, take the same way
@pytest.mark.service
def test_two_devices_learn_their_images_together(tmp_path: Path) -> None:
    with fleet(tmp_path, broker=embedded) as here:
        here.get("/v1/federations", {"name": "live", "plan": PLAN})
        configs = []
        for device, seed in DEVICES.items():
            shapes.write_classes(tmp_path / f"{device}-images", 60, seed)
            configs.append(config_of(tmp_path, device, here))
            here.add_device(configs[-1])
        (tmp_path / "kitchen-images" / "disc" / "torn.png").write_bytes(b"\x89PNG nothing")
        here.wait_for(lambda: all(adopted(tmp_path / one) for one in DEVICES), "a device adopts no model")
        score = here.get("/v1/federations/live/models/2")["score"]
        doctor = said(configs[0], "doctor")
    assert "181 images below" in doctor
    assert "torn.png isn't a readable image" in doctor
    assert score["metric"] == "macro_f1"
    assert score["value"] > 0.8 > 0.5 > score["trivial"]
    for device, config in zip(DEVICES, configs, strict=True):
        summary = json.loads((tmp_path / device / "summary.json").read_text())
        model = summary["model"]
        assert (model["metric"], model["windows"]) == ("macro_f1", 36)
        assert model["score"] > 0.8
        assert "holdout images of 3 classes" in " ".join(summary["adoption"])
        text = said(config, "status")
        assert "It keeps 180 labelled images." in text
        session = Session.load(model["path"])
        assert (session.metadata.input.shape, session.metadata.labels) == (SHAPE, shapes.LABELS)
        other = shapes.write_classes(tmp_path / f"{device}-other", 20, DEVICES[device] + 30)
        files = [path for name in shapes.LABELS for path in sorted((other / name).iterdir())]
        x = np.stack([decode_image(path.read_bytes(), path.name, SHAPE) / np.float32(255) for path in files])
        answers = session.predict(x).labels
        assert np.mean([answer == path.parent.name for answer, path in zip(answers, files, strict=True)]) > 0.8


MASKED = {
    "labels": ["none", *shapes.LABELS],
    "task": {"name": "segmentation", "background": 0},
    "model": {
        "name": "segmenter_small",
        "options": {"input_shape": [3, 24, 24], "channels": [16, 16, 32, 32], "feature_dim": 16},
    },
    "method": {"name": "fedavg"},
    "training": {"classes": 4, "feature_dim": 16, "epochs": 8, "batch_size": 16, "lr": 3e-3},
    "rounds": {"rounds": 2, "minimum_clients": 2},
    "data": {"input": {"kind": "image", "shape": [3, 24, 24]}},
}


@pytest.mark.ci
def test_masks_are_learnt_exported_and_judged_by_their_overlap(tmp_path: Path) -> None:
    server = Bench(tmp_path / "server", Plan.model_validate(MASKED))
    devices = []
    for name, seed in DEVICES.items():
        path = shapes.write_masks(tmp_path / f"{name}-images", 120, seed)
        config = Device.named(name, tmp_path, {}).config
        devices.append(Device(config.model_copy(update={"sensors": SensorsSection(source="images", path=path)})))
    for device in devices:
        server.say(device.name, "ready", examples=device.collect(server.now().plan))
    uploads = []
    for number in (1, 2):
        wait_for(lambda number=number: server.collects(number))
        wait_for(lambda number=number: all(server.wires.invitations(one)[-1].round == number for one in DEVICES))
        uploads += [device.take_part(server) for device in devices]
    wait_for(lambda: server.now().state == "finished")
    assert uploads[-1].class_counts is not None
    assert sum(uploads[-1].class_counts) == uploads[-1].examples * 24 * 24
    assert uploads[-1].metrics["mean_iou_after"] > uploads[0].metrics["mean_iou_before"] + 0.2
    model = server.now().model
    assert model is not None
    assert model.score is not None
    assert (model.score.metric, model.score.is_sound) == ("mean_iou", True)
    server.runtime.stop()

    command = StartJob("train", 2, server.wires.invitations("kitchen")[-1].model, server.now().plan, 4096)
    job = make_job(devices[0].config, command, devices[0].folder / "blobs" / command.model.sha256, "")
    export_candidates(job, trainer.read_data(job)[1], {job.out: job.out / CHECKPOINT})
    verdict = evaluate_job(devices[0].config, job.plan, Evaluate(2, "train"))
    assert verdict.answer == "adopted", verdict.reason
    assert "24 holdout images of 4 classes" in verdict.reason
    assert verdict.model is not None
    assert verdict.model["score"] == pytest.approx(uploads[-2].metrics["mean_iou_after"], abs=1e-4)
