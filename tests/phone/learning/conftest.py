"""Scripts beside these tests, run by node with modules of the app."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.phone.test_javascript import why_not

HERE = Path(__file__).parent
ByNode = Callable[[str, Any], Any]


@pytest.fixture(scope="session")
def by_node() -> ByNode:
    """Run a script beside this file with a request on its standard input, and return its answer."""
    if reason := why_not():
        pytest.skip(reason)

    def answer(script: str, request: Any) -> Any:
        command = ["node", "--import", str(HERE.parent / "register.mjs"), str(HERE / script)]
        said = json.dumps(request)
        ran = subprocess.run(command, input=said, capture_output=True, text=True, check=False, timeout=240)
        assert ran.returncode == 0, ran.stderr[-2000:]
        return json.loads(ran.stdout)

    return answer
