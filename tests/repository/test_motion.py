"""Nothing but `har_pipeline`, the device's sensors and what describes windows knows what motion is measured by."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from tests.repository.imports import all_imports, modules

MOTION = re.compile(
    r"acceleromet|gyroscop|gravity|\bm/s\^?2|m/s²|rad/s|\b(?:acc|gyr|gyro)_[xyz]\b|\b50(?:\.0)? ?Hz", re.I
)
MAY_SAY_IT = {
    "edge_agent.sensors": "where samples come from",
    "edge_agent.doctor": "looks at the sensors",
    "edge_agent.config.sensors": "their settings",
    "edge_agent.teaching": "lessons of motion",
    "edge_agent.serving.heads": "heads that know no axes",
    "edge_agent.training.orientation": "how the device lies",
    "federation.serving_heads": "heads that know no axes",
    "federation.training.rotation": "turns windows of motion",
}
AGNOSTIC = ("aggregator_api", "federation", "edge_agent")
WINDOWS_OF_MOTION = {
    "edge_agent.storage.window_store": "keeps windows, beside images",
    "edge_agent.storage.images": "says which of both a device has",
    "edge_agent.training.local_data": "splits and normalizes both",
    "edge_agent.training.trainer": "cross-validates windows",
    "edge_agent.training.round_budget": "names a checkpoint after the examples",
    "edge_agent.machine.events": "windows that have come",
    "edge_agent.background_tasks": "names the pipeline's errors",
    "edge_agent.training.comparison": "stretches of time have a vote each",
    "edge_agent.serving.classifier": "takes windows, or images, as they come",
    "edge_agent.serving.acceptance": "the holdout",
    "edge_agent.serving.model_runs": "the holdout, and all labelled windows",
    "edge_agent.training.cross_validation": "answers to windows in time",
    "edge_agent.training.folds": "parts in time",
    "edge_agent.page.service": "labels and deletes windows",
}
"""Modules of the device, beside sensors and doctor, that import har_pipeline, and what for."""


def below(module: str, roots: Iterable[str]) -> bool:
    return any(module == root or module.startswith(f"{root}.") for root in roots)


@pytest.mark.parametrize("package", AGNOSTIC)
def test_no_sensor_of_motion_is_named_where_examples_are_learnt_or_combined(package: str) -> None:
    said = [
        f"{name}:{number}: {line.strip()}"
        for name, file in modules().items()
        if below(name, [package]) and not below(name, MAY_SAY_IT)
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if MOTION.search(line)
    ]
    assert said == []


def test_only_known_modules_of_the_device_use_the_pipeline_of_motion() -> None:
    importers = {
        entry.module
        for entry in all_imports()
        if entry.target.partition(".")[0] == "har_pipeline" and below(entry.module, ["edge_agent"])
    }
    assert {name for name in importers if not below(name, MAY_SAY_IT)} == set(WINDOWS_OF_MOTION)


def test_the_server_uses_it_only_to_describe_what_an_exported_model_takes() -> None:
    of_both = [entry for entry in all_imports() if below(entry.module, ["aggregator_api", "federation"])]
    importers = {(entry.module, entry.target) for entry in of_both if below(entry.target, ["har_pipeline"])}
    assert importers == {("aggregator_api.federations.exports", "har_pipeline.settings")}
