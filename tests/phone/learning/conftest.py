"""Scripts beside these tests, run by node with modules of the app."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.phone import test_javascript

HERE = Path(__file__).parent
ByNode = Callable[[str, Any], Any]


@pytest.fixture(scope="session")
def by_node() -> ByNode:
    """Run a script beside this file with a request on its standard input, and return its answer."""
    return lambda script, request: test_javascript.by_node(HERE / script, request)
