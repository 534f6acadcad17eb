"""`python -m edge_agent doctor`: checks everything that could keep a device from taking part."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from edge_agent.config.settings import Config, load
from edge_agent.config.training import resolve_runtime
from edge_agent.doctor import machine, network
from edge_agent.doctor.check_result import CheckResult, Level, failure
from edge_agent.doctor.sensors import check_sensors
from edge_agent.errors import ConfigError, StoreError
from edge_agent.storage.data_folder import is_locked
from edge_agent.storage.state_store import FILE_NAME, StateStore


def examine(path: Path) -> Iterator[CheckResult]:
    """Run every check on a config file's device, reporting each as soon as it is done."""
    try:
        config = load(path)
    except ConfigError as error:
        yield failure("config", str(error), "python -m edge_agent example-config shows every setting")
        return
    yield machine.config_file(path, config)
    running = _is_running(config)
    yield machine.clock()
    yield from machine.folder_and_disk(config)
    yield from machine.databases(config)
    yield from machine.server_epoch(config)
    yield machine.memory()
    yield from network.check_server(config)
    yield from network.check_messages(config, running=running)
    yield from check_sensors(config, running=running)
    yield machine.training_process(resolve_runtime(config.training.runtime), config.training.device)


def _is_running(config: Config) -> bool:
    if not (config.agent.data_dir / FILE_NAME).is_file():
        return False
    try:
        with closing(StateStore(config.agent.data_dir)) as store:
            return is_locked(store)
    except (StoreError, OSError):
        return False


__all__ = ["CheckResult", "Level", "examine"]
