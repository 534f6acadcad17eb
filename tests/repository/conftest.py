"""The demo's modules, which import each other as scripts beside each other do."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.repository.imports import REPOSITORY


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(REPOSITORY / "demo"))
    import processes

    return processes


@pytest.fixture
def scenario(processes: ModuleType) -> ModuleType:
    import scenario

    return scenario


@pytest.fixture
def show(processes: ModuleType) -> ModuleType:
    import show

    return show


@pytest.fixture
def phones(processes: ModuleType) -> ModuleType:
    import phones

    return phones


@pytest.fixture
def verdict(processes: ModuleType) -> ModuleType:
    import verdict

    return verdict
