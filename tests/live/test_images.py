"""A federation of images, from folders of images and masks to an exported model that is judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge_agent.config.settings import SensorsSection
from edge_agent.machine.commands import Evaluate, StartJob
from edge_agent.serving.acceptance import evaluate_job
from edge_agent.training import trainer
from edge_agent.training.job import CHECKPOINT, make_job
from edge_agent.training.torch_files import export_candidates
from federation.plan import Plan
from tests.aggregator_api.bench import Bench, wait_for
from tests.live import shapes
from tests.live.in_memory import Device

DEVICES = {"kitchen": 1, "porch": 2}
"""The devices, and the seeds of their images."""


def adopted(folder: Path) -> bool:
    """Whether a device uses a model of the last round."""
    path = folder / "summary.json"
    model = json.loads(path.read_text())["model"] if path.is_file() else None
    return model is not None and model["round"] == 2


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
