"""A device's figures for Prometheus, on a loopback port, off unless `[agent] metrics_port` is set.

Written by hand: a dozen gauges need no library on a small board.
"""

from __future__ import annotations

import logging
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import NamedTuple

from edge_agent.errors import ConfigError
from edge_agent.machine.state import Agent, status_of
from gaitway.threads import SupervisedThread, thread_failures

log = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_TIMEOUT_S = 5.0
"""A reader that takes longer is left: it would hold up the next one."""
ANSWERS = ("adopted", "kept", "refused", "failed", "undecided")
STATES = ("collecting", "ready", "training", "uploading", "idle", "finished")


class Gauge(NamedTuple):
    """One figure."""

    name: str
    about: str
    value: float
    label: str = ""


def gauges(agent: Agent, data_dir: Path) -> Iterator[Gauge]:
    """Yield what a device's state machine and its machine say now."""
    status = status_of(agent)
    yield Gauge(
        "gaitway_device_connected", "whether the broker, or the server over HTTP, is connected", agent.connected
    )
    yield Gauge("gaitway_device_round", "latest known round", status.round)
    yield Gauge("gaitway_device_examples", "examples to train on", status.examples)
    yield Gauge("gaitway_device_outbox_updates", "updates that the server has not answered", len(agent.outbox))
    yield Gauge("gaitway_device_acknowledged_updates", "updates answered since the start", agent.answered)
    for state in STATES:
        yield Gauge("gaitway_device_state", "1 for what it is doing", status.state == state, f'{{state="{state}"}}')
    answered = status.adoption.answer if status.adoption else ""
    for answer in ANSWERS:
        about = "1 for the outcome of its last candidate model"
        yield Gauge("gaitway_device_adoption", about, answered == answer, f'{{answer="{answer}"}}')
    for thread, count in thread_failures.counts().items():
        about = "unexpected failures of a thread since the start, each followed by a restart"
        yield Gauge("gaitway_device_thread_failures", about, count, f'{{thread="{thread}"}}')
    yield Gauge("gaitway_device_disk_free_bytes", "free where its data lie", shutil.disk_usage(data_dir).free)
    yield Gauge("process_resident_memory_bytes", "memory of the supervisor", _resident_bytes())
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield Gauge("process_cpu_seconds", "processor time of the supervisor", used.ru_utime + used.ru_stime)


def render(figures: Iterator[Gauge]) -> bytes:
    """Write figures in Prometheus's text format."""
    lines: list[str] = []
    described: set[str] = set()
    for figure in figures:
        if figure.name not in described:
            described.add(figure.name)
            lines += [f"# HELP {figure.name} {figure.about}", f"# TYPE {figure.name} gauge"]
        lines.append(f"{figure.name}{figure.label} {float(figure.value)}")
    return ("\n".join(lines) + "\n").encode()


@contextmanager
def exporter(
    port: int | None, read: Callable[[], Agent], data_dir: Path, timeout_s: float = REQUEST_TIMEOUT_S
) -> Iterator[None]:
    """Answer GET /metrics on 127.0.0.1 while the block runs; without a port do nothing.

    Raises:
        ConfigError: if the port is taken.
    """
    if port is None:
        yield
        return

    class Answer(_MetricsHandler):
        timeout = timeout_s
        figures = staticmethod(lambda: render(gauges(read(), data_dir)))

    try:
        server = HTTPServer(("127.0.0.1", port), Answer)
    except OSError as error:
        raise ConfigError(f"[agent] metrics_port {port} cannot be listened on: {error.strerror}") from error
    thread = SupervisedThread("metrics", server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout_s)


class _MetricsHandler(BaseHTTPRequestHandler):
    timeout = REQUEST_TIMEOUT_S
    figures: Callable[[], bytes]

    def do_GET(self) -> None:
        if self.path != "/metrics":
            self.send_error(404)
            return
        try:
            body = self.figures()
        except OSError as error:
            self.send_error(503, explain=str(error))
            return
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        log.debug(format, *args)


def _resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # no /proc: the highest so far
