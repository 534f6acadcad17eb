"""What a fresh interpreter loads with each program: the table of imports, seen at work."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.repository.imports import REPOSITORY


@pytest.mark.ci
@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import har_pipeline", "torch pandas"),
        (
            "import gaitway.__main__",
            "torch numpy typer pydantic edge_agent aggregator_api sim har_pipeline",
        ),
        ("import edge_agent", "torch fastapi sqlalchemy aggregator_api sim"),
        ("import edge_agent.supervisor.supervisor", "torch fastapi sqlalchemy aggregator_api sim"),
        ("import edge_agent.__main__", "torch onnx scipy pandas PIL"),
        (
            "import edge_agent.training.program_runtime, edge_agent.training.sums_runtime, edge_agent.training.trainer",
            "torch onnx scipy pandas models",
        ),
        (
            "import aggregator_api.http.app",
            "edge_agent sim har_pipeline pandas federation.training.local_round federation.training.client_round",
        ),
        ("import export.runtime", "torch onnx models federation"),
        ("import export.recognizer", "torch onnx models federation pandas scipy"),
        ("import export.program.host", "torch onnx models safetensors pandas"),
        ("import export.images", "torch onnx models federation pandas scipy"),
        ("import export.__main__", "torch onnx models federation pandas scipy"),
        ("import federation.protocol.messages", "torch paho"),
        ("import federation.methods", "paho fastapi sqlalchemy models har_pipeline"),
        ("import sim", "edge_agent aggregator_api paho fastapi"),
        ("import sim.cli.app, sim.reports.report", "edge_agent aggregator_api scipy pandas onnx"),
    ],
)
def test_what_a_fresh_interpreter_has_loaded(statement: str, absent: str) -> None:
    program = f"import sys, json; {statement}; print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert set(absent.split()) & set(json.loads(run.stdout.splitlines()[-1])) == set()
