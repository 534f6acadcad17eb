"""Checks of the sensor source: is it alive, is its rate right, is gravity plausible, is the gyroscope zero at rest."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any, NamedTuple

import numpy as np

from edge_agent.config.sensors import SOURCES
from edge_agent.config.settings import Config
from edge_agent.doctor.check_result import CheckResult, failure, ok, warning
from edge_agent.errors import AgentError
from edge_agent.sensors.source import REST_SPREAD
from edge_agent.storage.window_store import FILE_NAME, SKIPPED, WindowStore
from har_pipeline import PipelineError, PipelineSettings, Recording, recordings
from har_pipeline.description import find_files
from har_pipeline.description.sessions import recordings as recordings_of
from har_pipeline.recording import STANDARD_GRAVITY
from har_pipeline.signals.checks import SignalChecks, odd_acceleration
from har_pipeline.streaming.sensor_buffer import bandwidth_hz, is_slow

SECONDS = 2.0
READING_HZ = 50.0
CHUNKS = 8
"""Samples of the first described recording that are checked."""
REFUSED = 5
"""Unreadable files before it that are named."""
STALE_S = 60.0


def check_sensors(config: Config, *, running: bool) -> Iterator[CheckResult]:
    """Check the source that [sensors] names."""
    source = config.sensors.source
    if not {"source", "dataset"} & config.sensors.model_fields_set:
        others = ", ".join(name for name in SOURCES if name != "recording")
        message = "[sensors] source isn't set, so generated recordings would be replayed"
        yield warning("sensors", message, f"set one of {others}, or recording")
    try:
        yield from _noted_findings(config)
        match source:
            case "recording":
                yield _recording(config)
            case "csv":
                yield from _csv(config)
            case "app_export":
                yield from _exports(config)
            case "iio":
                yield from _iio(config)
            case "images":
                yield from _images(config)
            case _:
                yield from _live(config, running=running)
    except (AgentError, PipelineError, OSError) as error:
        yield failure("sensors", str(error), f"set [sensors] for the source {source}; see docs/devices.md")


def _recording(config: Config) -> CheckResult:
    settings, client = config.sensors, config.sensor_client
    first = next(
        iter(recordings(settings.dataset, settings.root, clients=[client], options=settings.options or None)), None
    )
    if first is None:
        todo = "set [sensors] client to one that `python -m har_pipeline info` lists"
        return failure("sensors", f"{settings.dataset} has no client {client!r}", todo)
    return ok("sensors", f"{settings.dataset}, client {client}: recordings found")


def _csv(config: Config) -> Iterator[CheckResult]:
    from edge_agent.sensors.files import description_of, find_file_groups

    path, description = config.sensors.path, description_of(config)
    if path is None or not path.exists():
        todo = "set it to a file, or to a folder with recordings below it"
        yield failure("sensors", f"[sensors] path is {str(path or '')!r}, which doesn't exist", todo)
        return
    count = len(find_files(description, path).matches)
    chunks: dict[str, list[Recording]] = {"acc": [], "gyro": []}
    refused: list[PipelineError] = []
    for visit in find_file_groups(description, path):
        try:
            for chunk in itertools.islice(recordings_of(description, visit.files), CHUNKS):
                chunks[chunk.sensor].append(chunk)
            break
        except PipelineError as error:
            refused.append(error)
    else:
        raise refused[0]
    yield ok("sensors", f"{count} files are described by {config.sensors.description}")
    for reason in refused[:REFUSED]:
        yield warning("sensors", str(reason), "repair the file, or remove it")
    acc, gyro = (
        np.concatenate([np.empty((0, 3)), *(chunk.values for chunk in chunks[name])]) for name in ("acc", "gyro")
    )
    checks = SignalChecks()
    for chunk in (*chunks["acc"], *chunks["gyro"]):
        checks.add(chunk)
    rates_hz = [client_rate for rates in checks.rates_hz().values() for client_rate in rates.values()]
    yield from check_motion(acc, gyro, min(rates_hz, default=None))
    yield from _left_out(config)


def _images(config: Config) -> Iterator[CheckResult]:
    from edge_agent.sensors.images import IMAGES, MASKS, count_by_class, folder_of

    counts = count_by_class(folder_of(config))
    total = sum(counts.values())
    if not total:
        todo = f"put images into folders named after the classes there, or into {IMAGES} with their {MASKS}"
        yield failure("sensors", f"there are no images below {config.sensors.path}", todo)
        return
    if {IMAGES, MASKS} <= counts.keys():
        yield ok("sensors", f"{counts[IMAGES]:,} images and {counts[MASKS]:,} masks below {config.sensors.path}")
    else:
        classes = ", ".join(f"{name or 'in no folder'} {count:,}" for name, count in sorted(counts.items()))
        yield ok("sensors", f"{total:,} images below {config.sensors.path}: {classes}")
    yield from _left_out(config)


def _left_out(config: Config) -> Iterator[CheckResult]:
    """Name the files that the running agent skipped."""
    if (config.agent.data_dir / FILE_NAME).is_file():
        with closing(WindowStore(config.agent.data_dir)) as store:
            skipped = json.loads(store.get(SKIPPED) or "{}")
        for name, reasons in skipped.items():
            for reason in reasons:
                images = config.sensors.source == "images"
                todo = (
                    "change the file" if images else f"change {config.sensors.description}, and start the agent again"
                )
                yield warning("sensors", f"the agent left out part of {name}: {reason}", todo)


def _exports(config: Config) -> Iterator[CheckResult]:
    from edge_agent.sensors.files import export_parts, reader_options
    from har_pipeline.apps.reader import app_recordings

    path = config.sensors.path
    parts = list(export_parts(config, path)) if path and path.exists() else []
    usable = [part for part in parts if not part.problem]
    if not usable:
        why = f"{parts[0].name}: {parts[0].problem}" if parts else f"[sensors] path {path} contains no app's export"
        yield failure("sensors", why, "set it to a file, or a folder of files, as an app exports them; docs/phones.md")
        return
    first = usable[0]
    about = first.source.exports[0].about
    yield ok("sensors", f"{len(usable)} recordings, the first of {first.reader.app}{f' ({about})' if about else ''}")
    options = reader_options(first.reader, config, ())
    seen: dict[str, list[np.ndarray]] = {"acc": [np.empty((0, 3))], "gyro": [np.empty((0, 3))]}
    for recording in app_recordings(first.reader, first.source, None, options, lambda words: None):
        seen[recording.sensor].append(recording.values[np.isfinite(recording.values).all(axis=1)])
        if len(seen["acc"]) > 1 and len(seen["gyro"]) > 1:
            break
    yield from check_motion(np.concatenate(seen["acc"]), np.concatenate(seen["gyro"]), None)


def _iio(config: Config) -> Iterator[CheckResult]:
    from edge_agent.sensors.iio import Reader, find_channel

    acc, gyro = find_channel(config.iio, "acc"), find_channel(config.iio, "gyro")
    with ExitStack() as stack:
        readers = (Reader(acc, stack), Reader(gyro, stack))
        rows, began = [], time.monotonic()
        while time.monotonic() - began < SECONDS:
            rows.append([reader.read() for reader in readers])
            time.sleep(1 / READING_HZ)
    table = np.array(rows, dtype=np.float64)
    where = acc.folder.name if acc.folder == gyro.folder else f"{acc.folder.name} and {gyro.folder.name}"
    yield ok("sensors", f"{where} can be read")
    rates = [device.rate_hz for device in (acc, gyro) if device.rate_hz]
    yield from check_motion(acc.real(table[:, 0]), gyro.real(table[:, 1]), min(rates, default=None))


def _noted_findings(config: Config) -> Iterator[CheckResult]:
    """Report what the agent found odd about its collected samples."""
    if not (config.agent.data_dir / FILE_NAME).is_file():
        return
    with closing(WindowStore(config.agent.data_dir)) as store:
        noted = json.loads(store.get("findings") or "[]")
    todo = "fix [sensors] or the source; delete the earlier windows (`edge_agent windows`)"
    for severity, words in noted:
        if severity == "note":
            yield ok("signals", words)
        else:
            yield (failure if severity == "error" else warning)("signals", words, todo)


def _live(config: Config, *, running: bool) -> Iterator[CheckResult]:
    """Check any other source by the running agent's notes about it."""
    if config.sensors.source == "sensor_logger_http" and config.phone.token is None:
        todo = "python -c 'import secrets; print(secrets.token_urlsafe(16))', and set GAITWAY_EDGE_PHONE_TOKEN"
        yield failure("sensors", "[phone] token is missing, so no phone can connect", todo)
        return
    folder, advice = config.agent.data_dir, _advice(config.sensors.source)
    noted = ""
    if (folder / FILE_NAME).is_file():
        with closing(WindowStore(folder)) as store:
            noted = store.get("health")
    if not noted:
        todo = "wait for the federation's announcement" if running else f"start the agent, then {advice.start}"
        yield warning("sensors", f"no data from the {advice.what} yet", f"{todo}; see {advice.document}")
        return
    yield from from_health(json.loads(noted), running=running)


class _Advice(NamedTuple):
    """Advice on a source: what it is, how to start it, how to switch on a sensor, and where to read more."""

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
OTHER = _Advice("sensor", "check that it delivers data", "check that it delivers both sensors", "docs/devices.md")


def _advice(source: str) -> _Advice:
    return PHONE if source.startswith("sensor_logger_") else OTHER


def from_health(health: dict[str, Any], *, running: bool, now: float | None = None) -> Iterator[CheckResult]:
    """Evaluate a running agent's notes about its live source."""
    advice = _advice(health["source"])
    age_s = (time.time() if now is None else now) - health["heard_at"]
    words = "never" if not health["heard_at"] else f"{age_s:.0f} s ago"
    if health["heard_at"] and age_s < STALE_S and running:
        yield ok("sensors", f"last samples {words}")
    else:
        todo = advice.start if running else f"start the agent, then {advice.start}"
        yield warning("sensors", f"last samples: {words}", f"{todo}; see {advice.document}")
    rates = [rate for rate in health["rate_hz"].values() if rate]
    for name, what in (("acc", "acceleration"), ("gyro", "gyroscope")):
        if not health["samples"][name]:
            yield failure("sensors", f"no data from the {what}", advice.switch_on)
    if health["acceleration"] is not None:
        yield from gravity(health["acceleration"], still=health["at_rest"])
        yield from rotation(health["rotation"], still=health["at_rest"])
        yield rate(min(rates, default=None))
    if advice is PHONE and health["direction"] and health["direction"][2] < -0.8 * STANDARD_GRAVITY:
        todo = "if it lies with its screen up, set [phone] platform; see docs/phones.md"
        yield warning(
            "gravity", "it points into the phone's screen: the phone lies face down, or the signs are wrong", todo
        )
    if left_out := {name: count for name, count in health["left_out"].items() if count}:
        counts = ", ".join(f"{count} {name}" for name, count in sorted(left_out.items()))
        yield warning(
            "samples",
            f"left out so far: {counts}",
            "a few are normal; for many, use a better network or a shorter batch",
        )
    for note in health["notes"]:
        yield warning("sensors", note, "see the agent's log")


REST_ROTATION = 0.1
"""rad/s; a gyroscope further from zero at rest has a large bias."""
MOVE = "lay the device still for ten seconds, and look again"


def check_motion(acc: np.ndarray, gyro: np.ndarray, rate_hz: float | None) -> Iterator[CheckResult]:
    """Judge acceleration (n, 3) in m/s² and rotation (n, 3) in rad/s."""
    size = np.linalg.norm(acc, axis=1)
    size = size[np.isfinite(size)]
    gyro = gyro[np.isfinite(gyro).all(axis=1)]
    if not len(size) or not len(gyro):
        yield failure(
            "sensors",
            "the accelerometer or gyroscope delivers nothing",
            "check that both sensors exist and the columns are right",
        )
        return
    still = float(size.std()) < REST_SPREAD
    yield from gravity(float(np.median(size)), still=still)
    if len(gyro) > 1 and (gyro == gyro[0]).all():
        todo = "check that it exists and the right column is read; models trained with a gyroscope need it"
        yield warning("gyroscope", f"it reads the same in all of {len(gyro)} samples", todo)
    else:
        yield from rotation(float(np.linalg.norm(gyro.mean(axis=0))), still=still)
    yield rate(rate_hz)


def gravity(size: float, *, still: bool) -> Iterator[CheckResult]:
    """Check the length of the acceleration in m/s²; in motion it is arbitrary."""
    words = f"acceleration is {size:.2f} m/s²{' at rest' if still else ''}"
    odd = odd_acceleration(size, still=still)
    if odd is None:
        yield ok("gravity", words)
    elif still or odd:
        todo = odd or "check the unit, the scale, and that gravity is included"
        yield failure("gravity", f"{words}; expected {STANDARD_GRAVITY:.2f}", todo)
    else:
        yield warning("gravity", f"{words}, in motion", MOVE)


def rotation(size: float | None, *, still: bool) -> Iterator[CheckResult]:
    """Check the mean rotation in rad/s; None: no data."""
    if size is None:
        return
    if not still:
        yield ok("gyroscope", f"{size:.2f} rad/s on average, in motion")
    elif size > REST_ROTATION:
        todo = "check the unit (rad/s, not °/s), or calibrate the gyroscope"
        yield warning("gyroscope", f"{size:.2f} rad/s at rest; expected near 0", todo)
    else:
        yield ok("gyroscope", f"{size:.3f} rad/s at rest")


def rate(rate_hz: float | None) -> CheckResult:
    """Check the rate of the slower sensor; None: unknown."""
    if rate_hz is None:
        return ok("rate", "not known")
    usual = PipelineSettings()
    if is_slow(rate_hz, usual):
        words = f"{rate_hz:.0f} Hz captures movement only up to {bandwidth_hz(rate_hz, usual):.0f} Hz"
        todo = (
            f"{usual.rate_hz:.0f} Hz or more captures up to {bandwidth_hz(usual.rate_hz, usual):.0f} Hz; 100 Hz is a "
            f"good choice"
        )
        return warning("rate", words, todo)
    return ok("rate", f"{rate_hz:.0f} Hz")
