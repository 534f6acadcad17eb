"""What a device reports of its models' gains: in the manifest of an update, or among the numbers of a secure sum."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edge_agent.supervisor.persistence import manifest_of
from edge_agent.training import trainer
from edge_agent.training.job import RESULT, UPDATE
from federation.plan import Plan, SecureSettings
from tests.edge_agent.factories import INSTANCE, PLANS
from tests.edge_agent.reference import a_job
from tests.edge_agent.training.test_folds import later

CLEAR = PLANS["fedavg"]
SECURE = CLEAR.model_copy(update={"secure": SecureSettings(mode="masked")})


def trained(device: Path, plan: Plan) -> tuple[trainer.Job, dict[str, object]]:
    job = a_job(device, plan, round_number=2, broadcast=later())
    trainer.train(trainer.build_context(job))
    return job, json.loads((job.out / RESULT).read_bytes())


def test_the_manifest_has_the_gains_of_the_round(device: Path) -> None:
    job, result = trained(device, CLEAR)
    manifest = manifest_of(job, result, job.out / UPDATE, INSTANCE)
    assert set(manifest.gains) == {"personalized", "midway"}
    assert {name: list(report) for name, report in manifest.gains.items()} == result["gains"]


def test_a_secure_sum_has_them_behind_the_models_numbers(device: Path) -> None:
    job, result = trained(device, SECURE)
    gains = result["gains"]
    assert isinstance(gains, dict)
    numbers = np.frombuffer((job.out / UPDATE).read_bytes(), "<i8")
    assert numbers[-30:].tolist() == gains["personalized"] + gains["midway"]
    assert numbers[-31] == result["examples"]


def test_a_federation_of_very_many_classes_has_no_gains(device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "MAX_CLASSES", 5)
    job, result = trained(device, CLEAR)
    assert manifest_of(job, result, job.out / UPDATE, INSTANCE).gains == {}
