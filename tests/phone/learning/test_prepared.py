"""A phone's training and holdout windows are those that a native device has of the same recordings."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from edge_agent.storage.window_store import one_after_another
from edge_agent.training.local_data import LocalData, local_data
from federation.plan import DataSpec
from har_pipeline import ChannelStatistics, ClientWindows, PipelineSettings
from tests.phone.learning.conftest import ByNode

CASES = 24
LABELS = ("walk", "run", "sit", "stand")
SETTINGS = PipelineSettings()


class Recorded:
    """Random windows of a phone whose clock was set back now and then; some have no label, or another plan's."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        count = int(random.choice([0, 1, 2, 7, 40]))
        names = np.array([*LABELS, "", "swim"])
        self.label = names[random.choice(len(names), count, p=[0.3, 0.2, 0.2, 0.1, 0.1, 0.1]).repeat(4)[:count]]
        self.session = np.sort(random.integers(0, 4, count))
        hops = random.choice([1280, 1280, 2560, 5000], count)
        set_back = random.random() < 0.5
        start = np.cumsum(hops) - (40_000 * self.session if set_back else 0)
        self.start_ms = 1_790_000_000_000 + start
        # a store gives windows by their begin, whatever session they are of
        order = np.argsort(self.start_ms, kind="stable")
        self.label, self.session, self.start_ms = (each[order] for each in (self.label, self.session, self.start_ms))
        scale, offset = np.array([2, 3, 1, 0.5, 0.1, 1]), np.array([0.1, 9.81, -1, 0, 0.02, 0])
        self.x = (random.standard_normal((count, 128, 6)) * scale + offset).astype(np.float32)
        self.x[..., 4] *= random.choice([0, 1])
        normalization = str(random.choice(["client", "federated"]))
        sums = ChannelStatistics.of(random.standard_normal((9, 6))).to_json()
        share = float(random.choice([0.2, 0.25, 0.5]))
        self.data = DataSpec.model_validate({"normalization": normalization, "statistics": sums, "test_share": share})

    def for_node(self) -> dict[str, Any]:
        rows = zip(self.start_ms, self.label, self.session, strict=True)
        return {
            "plan": {"labels": LABELS, "data": self.data.model_dump(mode="json")},
            "windows": [
                {"id": i, "startMs": int(start), "label": str(label) or None, "session": f"session {session}"}
                for i, (start, label, session) in enumerate(rows)
            ],
            "x": base64.b64encode(self.x.astype("<f4").tobytes()).decode(),
        }

    def by_python(self) -> LocalData:
        kept = np.isin(self.label, LABELS)
        y = np.array([LABELS.index(label) for label in self.label[kept]], np.int64)
        # a native device numbers sessions as they come
        names, first = np.unique(self.session[kept], return_index=True)
        numbers = {name: number for number, name in enumerate(names[np.argsort(first)])}
        session = np.array([numbers[each] for each in self.session[kept]], np.int64)
        start_s = one_after_another(self.start_ms[kept] / 1000, session)
        return local_data(ClientWindows("phone", self.x[kept], y, start_s, session), self.data, SETTINGS)


def test_windows_are_split_and_normalized_as_on_a_native_device(by_node: ByNode) -> None:
    cases = [Recorded(seed) for seed in range(CASES)]
    answers = by_node("prepared_of.mjs", [case.for_node() for case in cases])
    overlapping = 0
    for case, found in zip(cases, answers, strict=True):
        expected = case.by_python()
        own = case.data.normalization == "client"
        for part in ("train", "holdout"):
            windows: ClientWindows = getattr(expected, part)
            assert found[part]["y"] == windows.y.tolist()
            assert found[part]["session"] == windows.session.tolist()
            assert found[part]["startS"] == pytest.approx(windows.start_s.tolist(), abs=1e-6)
            x = np.frombuffer(base64.b64decode(found[part]["x"]), "<f4").reshape(windows.x.shape)
            # of federated normalization the model itself takes care
            given = expected.normalized(windows) if own else windows.x
            np.testing.assert_allclose(x, given, rtol=1e-6, atol=1e-6)
        assert found["mean"] == pytest.approx(expected.mean if own else [], rel=1e-6, abs=1e-6)
        assert found["std"] == pytest.approx(expected.std if own else [], rel=1e-6)
        overlapping += bool(np.any(np.diff(case.session) < 0))
    assert overlapping >= 3
