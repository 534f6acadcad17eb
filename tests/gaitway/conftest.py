"""Packages of others, installed for one test."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gaitway import plugins

Install = Callable[..., None]

TASK = """
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar
import numpy as np
from gaitway.tasks.classification import ClassificationTask
from gaitway.tasks.soundness import Metric

@dataclass(frozen=True, kw_only=True)
class Falls(ClassificationTask):
    name: ClassVar[str] = "NAME"
    trained_by: ClassVar[str] = "gaitway_NAME_torch:Falls"
    metric_kinds: ClassVar[Mapping[str, Metric]] = {"missed": Metric("missed falls", "missed", higher_is_better=False)}
    trivial_answer: ClassVar[str] = "of never calling for help"
    min_gate_examples: ClassVar[int] = 12
    cost: float = 1.0

    def scores(self, statistics):
        matrix = statistics["confusion"]
        return {"missed": float(matrix[1, 0] / matrix[1].sum()) if matrix[1].any() else float("nan")}

    def trivial(self, statistics):
        return 1.0 if statistics["confusion"][1].any() else None
"""
TORCH_HALF = """
from dataclasses import dataclass
from federation.tasks.classification import Classification
from gaitway_NAME import Falls as Definition

@dataclass(frozen=True, kw_only=True)
class Falls(Definition, Classification):
    def loss(self, output, batch):
        return super().loss(output, batch) * (1 + self.cost * (batch.y == 1))
"""


def task_modules(name: str) -> dict[str, str]:
    """Return the two files of a task of that name: of two classes the second is the one not to be missed."""
    return {f"gaitway_{name}": TASK.replace("NAME", name), f"gaitway_{name}_torch": TORCH_HALF.replace("NAME", name)}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a package as pip leaves it: modules, and a folder of metadata with entry points."""
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins.allow(None)  # another test of this process may have read a device's configuration

    def make(package: str, entries: dict[str, str], **modules: str) -> None:
        for name, text in modules.items():
            (tmp_path / f"{name}.py").write_text(text)
        metadata = tmp_path / f"{package.replace('-', '_')}-1.2.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        groups = {key.partition(":")[0] for key in entries}
        lines = []
        for group in sorted(groups):
            lines.append(f"[gaitway.{group}]")
            lines += [f"{key.partition(':')[2]} = {value}" for key, value in entries.items() if key.startswith(group)]
        (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
        plugins.installed.cache_clear()

    yield make
    plugins.allow(None)
    plugins.installed.cache_clear()
    for name in [name for name, module in sys.modules.items() if str(tmp_path) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]
