"""The server's connection to its broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from aggregator_api.core.settings import Settings
from aggregator_api.transport.mqtt.client import MqttDriver
from tests.aggregator_api.bench import wait_for
from tests.ports import free_port


def test_a_broker_that_does_not_answer_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    driver = MqttDriver(Settings(data_dir=tmp_path, broker_port=port), lambda _: None, lambda: None)
    driver.start()
    try:
        wait_for(lambda: "broker unreachable" in caplog.text)
    finally:
        driver.stop()
    assert f"broker unreachable host=127.0.0.1 port={port}; trying again until it answers" in caplog.text
    assert not driver.is_up
