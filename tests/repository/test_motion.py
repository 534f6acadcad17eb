"""Nothing but `har_pipeline`, the device's sensors and what describes windows names what motion is measured by."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from tests.repository.imports import modules

MOTION = re.compile(
    r"acceleromet|gyroscop|gravity|\bm/s\^?2|m/s²|rad/s|\b(?:acc|gyr|gyro)_[xyz]\b|\b50(?:\.0)? ?Hz", re.I
)
MAY_SAY_IT = {
    "edge_agent.sensors": "where samples come from",
    "edge_agent.doctor": "looks at the sensors",
    "edge_agent.config.sensors": "their settings",
    "edge_agent.teaching": "lessons of motion",
    "edge_agent.serving.heads": "heads that know no axes",
    "edge_agent.serving.classifier": "a minute's movement",
    "edge_agent.storage.timeline": "a day's movement",
    "edge_agent.training.runtime": "how the device lies",
    "edge_agent.training.torch_runtime": "how the device lies",
    "edge_agent.training.sums_runtime": "how the device lies",
    "federation.rounds.serving": "heads that know no axes",
    "federation.training.window_changes": "changes windows of motion",
}
AGNOSTIC = ("aggregator_api", "federation", "edge_agent")


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
