"""A device's figures: read as Prometheus reads them, on loopback, only where a port is set."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from edge_agent.errors import ConfigError
from edge_agent.machine.state import Agent
from edge_agent.supervisor.metrics import exporter
from tests.ports import free_port


def test_the_figures_are_those_of_the_state_machine(tmp_path: Path) -> None:
    port = free_port()
    agent = Agent(connected=True, examples=12, outbox=("u1", "u2"))
    with exporter(port, lambda: agent, tmp_path):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/else", timeout=60)
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["gaitway_device_connected",] == 1
    assert found["gaitway_device_examples",] == 12
    assert found["gaitway_device_outbox_updates",] == 2
    assert found["gaitway_device_state", "uploading"] == 1
    assert sum(value for key, value in found.items() if key[0] == "gaitway_device_state") == 1
    assert found["process_resident_memory_bytes",] > 1e6
    with pytest.raises(urllib.error.URLError):  # it ended with the block
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60)


def test_a_silent_reader_holds_up_nobody_for_long(tmp_path: Path) -> None:
    port = free_port()
    address = f"http://127.0.0.1:{port}/metrics"
    with exporter(port, Agent, tmp_path, timeout_s=0.2), socket.create_connection(("127.0.0.1", port)):
        assert urllib.request.urlopen(address, timeout=60).read().startswith(b"# HELP")


def test_a_taken_port_is_a_setting_to_change(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="metrics_port"), exporter(taken.getsockname()[1], Agent, tmp_path):
            pass


def test_without_a_port_nothing_is_opened(tmp_path: Path) -> None:
    with exporter(None, Agent, tmp_path):
        pass
