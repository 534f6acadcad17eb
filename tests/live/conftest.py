"""What the tests of enrolled devices share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live.enrolled_world import World
from tests.live.real_parts import mosquitto


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A Mosquitto and a server to which devices enrol."""
    with mosquitto(tmp_path_factory.mktemp("broker")) as broker:
        made = World(broker, tmp_path_factory.mktemp("server"))
        yield made
        made.stop()
