"""What tests of the simulation share: two small clients, and figures of few pixels, which are painted sooner."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sim.data.federated_data import FederatedData
from sim.run import load_data, resolve
from tests.sim.small_runs import first, settings_for


@pytest.fixture(scope="session", autouse=True)
def small_figures() -> Iterator[None]:
    """Paint at 40 dots an inch; what is laid out, and where, does not depend on it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sim.reports.figures.style.DPI", 40)
        yield


@pytest.fixture(scope="session")
def few(tmp_path_factory: pytest.TempPathFactory) -> FederatedData:
    """Two clients with few examples, unlike in number."""
    data = load_data(resolve(settings_for()), None, tmp_path_factory.mktemp("cache"), None)
    return first(data, {"ada": 20, "bob": 12})
