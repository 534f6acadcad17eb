"""The sensor source: is it alive, how fast, is gravity what it should be, does the gyroscope rest at zero."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any, NamedTuple

import numpy as np

from edge_agent.config.settings import Config
from edge_agent.doctor.finding import Finding, failure, ok, warning
from edge_agent.doctor.motion import check_motion, gravity, rate, rotation
from edge_agent.errors import AgentError
from edge_agent.storage.window_store import FILE_NAME, WindowStore
from har_pipeline import PipelineError, recordings
from har_pipeline.recording import STANDARD_GRAVITY

SECONDS = 2.0
READING_HZ = 50.0
STALE_S = 60.0


def check_sensors(config: Config, *, running: bool) -> Iterator[Finding]:
    """Look at the source that [sensors] names."""
    source = config.sensors.source
    try:
        match source:
            case "recording":
                yield _recording(config)
            case "csv":
                yield from _csv(config)
            case "sensor_logger_export":
                yield from _exports(config)
            case "iio":
                yield from _iio(config)
            case _:
                yield from _live(config, running=running)
    except (AgentError, PipelineError, OSError) as error:
        yield failure("sensors", str(error), f"set [sensors] for the source {source}; see docs/edge_agent.md")


def _recording(config: Config) -> Finding:
    settings, client = config.sensors, config.sensor_client
    first = next(
        iter(recordings(settings.dataset, settings.root, clients=[client], options=settings.options or None)), None
    )
    if first is None:
        todo = "set [sensors] client to one that `python -m har_pipeline info` lists"
        return failure("sensors", f"{settings.dataset} has no client {client!r}", todo)
    return ok("sensors", f"{settings.dataset}, client {client}: recordings are there")


def _csv(config: Config) -> Iterator[Finding]:
    from edge_agent.sensors.csv import CsvSource, read_rows

    path = config.sensors.path
    files = CsvSource(config, lambda event: None).files(path) if path and path.exists() else []
    if not files:
        yield failure("sensors", f"[sensors] path {path} holds no CSV file", "set it to a file or a folder")
        return
    rows = next(read_rows(files[0], config.csv), None)
    if rows is None or len(rows.numbers) < 2:
        yield failure("sensors", f"{files[0]} has no rows", "is it the right file?")
        return
    span_s = rows.numbers[-1, 0] - rows.numbers[0, 0]
    yield ok("sensors", f"{len(files)} CSV files")
    yield from check_motion(
        rows.numbers[:, 1:4], rows.numbers[:, 4:7], (len(rows.numbers) - 1) / span_s if span_s > 0 else None
    )


def _exports(config: Config) -> Iterator[Finding]:
    from edge_agent.sensors.sensor_logger.calibration import signed
    from edge_agent.sensors.sensor_logger.export import exports_in, platform_of, rows_of
    from edge_agent.sensors.sensor_logger.message import batch_of

    path = config.sensors.path
    found = exports_in(path) if path and path.exists() else []
    if not found:
        yield failure(
            "sensors", f"[sensors] path {path} holds no export of Sensor Logger", "set it to a zip or JSON file"
        )
        return
    platform = platform_of(found[0]) or config.phone.platform
    with closing(rows_of(found[0])) as rows:
        batch = signed(batch_of(found[0].name, "", None, itertools.islice(rows, 2000)), platform)
    yield ok("sensors", f"{len(found)} exports, the first with the signs of {platform}")
    empty = np.empty((0, 3))
    pull = batch.motion.get("gravity") or batch.motion.get("totalacceleration")
    gyro = batch.motion.get("gyroscope")
    yield from check_motion(pull.values if pull else empty, gyro.values if gyro else empty, None)


def _iio(config: Config) -> Iterator[Finding]:
    from edge_agent.sensors.iio import Reader, find_channel

    acc, gyro = find_channel(config.iio, "acc"), find_channel(config.iio, "gyro")
    with ExitStack() as stack:
        readers = (Reader(acc, stack), Reader(gyro, stack))
        rows, began = [], time.monotonic()
        while time.monotonic() - began < SECONDS:
            rows.append([each.read() for each in readers])
            time.sleep(1 / READING_HZ)
    table = np.array(rows, dtype=np.float64)
    where = acc.folder.name if acc.folder == gyro.folder else f"{acc.folder.name} and {gyro.folder.name}"
    yield ok("sensors", f"{where} can be read")
    rates = [each.rate_hz for each in (acc, gyro) if each.rate_hz]
    yield from check_motion(acc.real(table[:, 0]), gyro.real(table[:, 1]), min(rates, default=None))


def _live(config: Config, *, running: bool) -> Iterator[Finding]:
    """Judge any source without a check of its own by what a running agent has noted of it."""
    if config.sensors.source == "sensor_logger_http" and config.phone.token is None:
        todo = "python -c 'import secrets; print(secrets.token_urlsafe(16))', and set GAITWAY_EDGE_PHONE_TOKEN"
        yield failure("sensors", "[phone] token is missing, so no phone can be let in", todo)
        return
    folder, advice = config.agent.data_dir, _advice(config.sensors.source)
    noted = ""
    if (folder / FILE_NAME).is_file():
        with closing(WindowStore(folder)) as store:
            noted = store.get("health")
    if not noted:
        todo = "wait for the agent to hear of its federation" if running else f"start the agent, then {advice.start}"
        yield warning("sensors", f"no {advice.what} has been heard yet", f"{todo}; see {advice.document}")
        return
    yield from from_health(json.loads(noted), running=running)


class _Advice(NamedTuple):
    """What a source is, how its samples are started, how a sensor is switched on, and where to read on."""

    what: str
    start: str
    switch_on: str
    document: str


PHONE = _Advice(
    "phone",
    "start a recording in the app",
    "switch Accelerometer, Gravity and Gyroscope on in the app",
    "docs/phones.md",
)
OTHER = _Advice("sensor", "see that it delivers", "see that it delivers both sensors", "docs/edge_agent.md")


def _advice(source: str) -> _Advice:
    return PHONE if source.startswith("sensor_logger_") else OTHER


def from_health(health: dict[str, Any], *, running: bool, now: float | None = None) -> Iterator[Finding]:
    """Judge what a running agent has noted of its live source."""
    advice = _advice(health["source"])
    age_s = (time.time() if now is None else now) - health["heard_at"]
    words = "never" if not health["heard_at"] else f"{age_s:.0f} s ago"
    if health["heard_at"] and age_s < STALE_S and running:
        yield ok("sensors", f"samples came {words}")
    else:
        todo = advice.start if running else f"start the agent, then {advice.start}"
        yield warning("sensors", f"samples last came: {words}", f"{todo}; see {advice.document}")
    rates = [rate for rate in health["rate_hz"].values() if rate]
    for name, what in (("acc", "acceleration"), ("gyro", "gyroscope")):
        if not health["samples"][name]:
            yield failure("sensors", f"no {what} has come", advice.switch_on)
    if health["acceleration"] is not None:
        yield from gravity(health["acceleration"], still=health["at_rest"])
        yield from rotation(health["rotation"], still=health["at_rest"])
        yield rate(min(rates, default=None))
    if advice is PHONE and health["direction"] and health["direction"][2] < -0.8 * STANDARD_GRAVITY:
        todo = "if it lies with its screen up, set [phone] platform; see docs/phones.md"
        yield warning(
            "gravity", "it points into the phone's screen: the phone lies on its face, or the signs are wrong", todo
        )
    if left_out := {name: count for name, count in health["left_out"].items() if count}:
        counts = ", ".join(f"{count} {name}" for name, count in sorted(left_out.items()))
        yield warning(
            "samples", f"left out so far: {counts}", "a few are usual; many: a better network, a shorter batch"
        )
    for note in health["notes"]:
        yield warning("sensors", note, "see the agent's log")
