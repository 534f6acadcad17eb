"""Finished runs of two clients, each method's run once a session, with what their rounds recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sim.data.federated_data import FederatedData
from sim.reports.analysis import attention, embedding
from sim.reports.analysis.finished import FinishedRun, open_run
from sim.results.run_directory import RunDirectory
from sim.run import load_data, resolve, run
from tests.sim.small_runs import settings_for

Finished = Callable[..., FinishedRun]


@pytest.fixture(scope="session", autouse=True)
def few_dots() -> Iterator[None]:
    """Keep t-SNE, which takes longer the more there is to place, short."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((embedding, "MAX_DOTS"), (attention, "MAX_TOKENS"), (attention, "MAX_LOCAL")):
            patch.setattr(module, name, 40)
        yield


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def data(cache: Path) -> FederatedData:
    return load_data(resolve(settings_for()), None, cache, None)


@pytest.fixture(scope="session")
def finished(data: FederatedData, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Return the finished run of a method, on the plain CNN unless another model is named, with other options."""
    folder, made = tmp_path_factory.mktemp("runs"), {}

    def get(method: str, model: str = "har_cnn", **options: Any) -> FinishedRun:
        name = "-".join([method, model, *(f"{key}={value}" for key, value in options.items())])
        if name not in made:
            settings = settings_for(method, model=model, **options)
            run(settings, folder / name, data=data)
            made[name] = FinishedRun(RunDirectory(folder / name), settings, data)
        return made[name]

    return get


@pytest.fixture(scope="session")
def reopened(finished: Finished, cache: Path) -> FinishedRun:
    """A run opened from its directory alone."""
    return open_run(finished("fedavg").directory.path, None, cache)
