"""Every fault that is put into clean recordings is found, and clean recordings raise nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from typer.testing import CliRunner

from har_pipeline import Origin, Recording, SignalError, prepare, recordings
from har_pipeline.cli import app
from har_pipeline.readers import READERS
from har_pipeline.readers.reader import RecordingReader
from har_pipeline.signals.checks import Finding, SignalChecks, grouped, plain
from tests.har_pipeline.streams import cut, record

G = 9.80665
Fault = Callable[[Recording], Recording]


@pytest.fixture(scope="module")
def clean() -> list[Recording]:
    """Three minutes of one synthetic person's phone, in motion and at rest, as one recording a sensor."""
    chunks = list(recordings("synthetic", None, options={"subjects": 1, "phones": 1, "minutes": 3.0}))
    whole = []
    for sensor in ("acc", "gyro"):
        mine = [each for each in chunks if each.sensor == sensor]
        parts = [np.concatenate([getattr(each, name) for each in mine]) for name in ("activity", "times_s", "values")]
        whole.append(mine[0]._replace(activity=parts[0], times_s=parts[1], values=parts[2], number=None))
    return whole


def findings(read: list[Recording], declared_hz: dict[str, float] | None = None) -> list[Finding]:
    checks = SignalChecks(declared_hz)
    for each in read:
        checks.add(each)
    return list(checks.findings())


def times(change: Callable[[np.ndarray], np.ndarray]) -> Fault:
    return lambda each: each._replace(times_s=change(each.times_s))


def values_of(sensor: str, change: Callable[[np.ndarray], np.ndarray]) -> Fault:
    return lambda each: each._replace(values=change(np.array(each.values, float))) if each.sensor == sensor else each


def rows(keep: Callable[[int], np.ndarray]) -> Fault:
    def change(each: Recording) -> Recording:
        index = keep(len(each.times_s))
        activity = np.asarray(each.activity)[index]
        return each._replace(activity=activity, times_s=each.times_s[index], values=np.asarray(each.values)[index])

    return change


def without_gravity(values: np.ndarray) -> np.ndarray:
    kernel = np.ones(101) / 101
    return values - np.stack([np.convolve(column, kernel, mode="same") for column in values.T], axis=1)


def column(target: int, source: int | None, number: float = 0.0) -> Callable[[np.ndarray], np.ndarray]:
    def change(values: np.ndarray) -> np.ndarray:
        values[:, target] = number if source is None else values[:, source]
        return values

    return change


def some_nan(values: np.ndarray) -> np.ndarray:
    values[100:110, 1] = np.nan
    return values


def held(each: Recording) -> Recording:
    """Every second sample repeats the one before, at a time of its own."""
    values = np.repeat(np.asarray(each.values)[::2], 2, axis=0)[: len(each.times_s)]
    return each._replace(values=values)


def lost(count: int) -> np.ndarray:
    return np.flatnonzero(np.random.default_rng(1).random(count) > 0.3)


def zero_for(share: float) -> Fault:
    return values_of("gyro", lambda values: values * (np.arange(len(values)) % 1000 >= 1000 * share)[:, None])


def rows_of_two(each: Recording) -> Recording:
    """Between two samples one of another phone, which is held otherwise."""
    step = np.median(np.diff(each.times_s)) / 2
    times_s = np.stack([each.times_s, each.times_s + step], axis=1).ravel()
    values = np.stack([np.asarray(each.values), np.roll(each.values, 1, axis=1)[::-1]], axis=1).reshape(-1, 3)
    return each._replace(activity=np.repeat(np.asarray(each.activity), 2), times_s=times_s, values=values, number=None)


HUGE = "rows_without_numbers", "acc", "1 rows"
FAULTS: dict[str, tuple[Fault, str, str, str]] = {
    "g": (values_of("acc", lambda v: v / G), "gravity", "acc", "looks like g"),
    "mg": (values_of("acc", lambda v: v / G * 1000), "gravity", "acc", "looks like mg"),
    "multiplied twice": (values_of("acc", lambda v: v * G), "gravity", "acc", "9.8 times too large"),
    "divided twice": (values_of("acc", lambda v: v / G**2), "gravity", "acc", "once too often"),
    "counts": (values_of("acc", lambda v: v * 1671), "gravity", "acc", "check unit and scale"),
    "no gravity": (values_of("acc", without_gravity), "no_gravity", "acc", "gravity seems to be removed"),
    "no gravity in g": (values_of("acc", lambda v: without_gravity(v) / G), "no_gravity", "acc", "removed"),
    "degrees": (values_of("gyro", np.degrees), "rotation", "gyro", "looks like degrees"),
    "radians as degrees": (values_of("gyro", np.radians), "rotation", "gyro", "set its unit to rad/s"),
    "seconds as milliseconds": (times(lambda t: t / 1000), "rate", "acc", "times in seconds"),
    "milliseconds as seconds": (times(lambda t: t * 1000), "rate", "acc", "milliseconds taken for seconds"),
    "nanoseconds as seconds": (times(lambda t: t * 1e9), "rate", "acc", "nanoseconds taken for seconds"),
    "rounded times": (times(lambda t: np.round(t, 1)), "equal_times", "gyro", "times were rounded"),
    "rows twice": (rows(lambda n: np.repeat(np.arange(n), 2)), "equal_times", "acc", "carry the time"),
    "two in one": (
        rows(lambda n: np.arange(n // 2 * 2).reshape(2, -1).T.ravel()),
        "unsorted_times",
        "acc",
        "backwards",
    ),
    "lost": (rows(lost), "lost_samples", "acc", "are missing"),
    "held": (held, "repeated_samples", "acc", "repeat the one before"),
    "constant": (values_of("acc", column(2, None, 0.5)), "constant_channel", "acc", "z never changes"),
    "dead axis": (values_of("gyro", column(0, None)), "constant_channel", "gyro", "x never changes"),
    "twin axes": (values_of("gyro", column(1, 2)), "identical_channels", "gyro", "y and z are the same"),
    "dies midway": (
        lambda each: rows(lambda n: np.arange(n // 2))(each) if each.sensor == "gyro" else each,
        "silent",
        "gyro",
        "it stopped",
    ),
    "held from midway": (
        values_of("gyro", lambda v: v[np.minimum(np.arange(len(v)), len(v) // 2)]),
        "frozen",
        "gyro",
        "50%",
    ),
    "zero from midway": (zero_for(0.5), "zeros", "gyro", "50% of the time all three numbers are 0"),
    "zero here and there": (zero_for(0.17), "zeros", "gyro", "17% of the time all three numbers are 0"),
    "two phones are mixed": (rows_of_two, "mixed", "acc", "two phones are mixed"),
    "nan": (values_of("acc", some_nan), "rows_without_numbers", "acc", "10 rows"),
    "huge": (values_of("acc", lambda v: np.where(np.arange(len(v))[:, None] == 9, 1e308, v)), *HUGE),
    "spikes": (
        values_of("acc", lambda v: np.where(np.arange(len(v))[:, None] % 500 == 9, 3e5, v)),
        "spikes",
        "acc",
        "reach 300,000 m/s²",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_found_and_told_in_words_whatever_the_chunks(clean, name):
    fault, code, sensor, words = FAULTS[name]
    broken = [fault(each) for each in clean]
    found = [each for each in findings(broken) if (each.code, each.sensor) == (code, sensor)]
    assert len(found) == 1
    assert words in found[0].message
    assert found[0].severity == ("error" if code == "rate" else "warning")
    pieces = [piece for each in broken for piece in cut(each._replace(activity=""), range(50, len(each.times_s), 77))]
    assert (code, sensor) in {(each.code, each.sensor) for each in findings(pieces)}


@pytest.mark.parametrize("size", [9.4, 9.8, 10.1])
@pytest.mark.parametrize("motion", ["turning", "jogging"])
def test_gravity_of_a_device_that_turns_or_jogs_is_not_taken_out(size, motion):
    """A second's acceleration keeps little of its direction here: 0.1 and 0.5, as jogging with MotionSense."""
    random, t = np.random.default_rng(0), np.arange(6000) / 50
    if motion == "turning":
        sizes = size * (1 + 0.15 * np.sin(17 * t))
        acc = sizes[:, None] * np.stack([np.sin(7 * t), np.cos(7 * t), 0.1 * np.sin(t)], axis=1)
    else:
        acc = np.stack([6 * np.sin(17 * t), 6 * np.cos(17 * t), size + 19 * np.sin(17 * t)], axis=1)
    (reading,) = [Recording("a", "s", "walk", "acc", t, acc + random.normal(0, 0.2, acc.shape))]
    assert not [each for each in findings([reading]) if "gravity" in each.code]


def test_clean_recordings_raise_nothing_at_any_rate_of_theirs(clean):
    assert findings(clean) == []
    assert findings([rows(lambda n: np.arange(0, n, 4))(each) for each in clean]) == []
    synthetic = list(recordings("synthetic", None, options={"subjects": 3, "phones": 2, "minutes": 2.0}))
    assert findings(synthetic) == []


def test_a_gyroscope_is_not_judged_by_an_accelerometer_in_another_unit(clean):
    """Shaking in g is ten times smaller, and turning by 8 rad/s no more likely to be in degrees for that."""
    turning = values_of("gyro", lambda v: v / np.quantile(np.linalg.norm(v, axis=1), 0.95) * 8)
    in_g = values_of("acc", lambda v: v / G)
    assert [each.code for each in findings([in_g(turning(each)) for each in clean])] == ["gravity"]
    in_counts = values_of("acc", lambda v: v * 1671)
    assert [each.code for each in findings([in_counts(each) for each in clean])] == ["gravity"]


def test_the_accelerometers_numbers_in_the_gyroscopes_place_are_noticed(clean):
    acc = [each for each in clean if each.sensor == "acc"]
    twice = [each._replace(sensor=sensor) for each in acc for sensor in ("acc", "gyro")]
    assert ("identical_channels", "gyro") in {(each.code, each.sensor) for each in findings(twice)}


def test_a_masked_gyroscope_is_a_note_once_and_no_warning(clean):
    masked = [values_of("gyro", np.zeros_like)(each) for each in clean]
    assert [(each.severity, each.code, each.sensor) for each in findings(masked)] == [("note", "masked", "gyro")]


@pytest.mark.parametrize(("step", "factor"), [(0.1, 0.3), (np.deg2rad(1), 0.05)])
def test_a_gyroscope_that_rounds_is_zero_at_rest_and_has_not_dropped_out(clean, step, factor):
    rounded = [values_of("gyro", lambda values: np.round(factor * values / step) * step)(each) for each in clean]
    at_rest = np.concatenate([each.values for each in rounded if each.sensor == "gyro"])
    assert (at_rest == 0).all(axis=1).mean() > 0.05
    found = next(each for each in findings(rounded) if each.code == "rounded")
    assert (found.severity, found.sensor) == ("note", "gyro")
    assert not {"zeros", "frozen", "repeated_samples"} & {each.code for each in findings(rounded)}
    assert f"rounded to {plain(step)} rad/s" in found.message


def test_half_of_the_declared_rate_is_said_and_pauses_between_and_within_sessions_do_not_count():
    at = np.concatenate([np.arange(2000) / 50, 500 + np.arange(2000) / 50])
    wave = np.random.default_rng(0).normal((0, 0, G), 0.05, (4000, 3))
    read = [record(at, wave), record(at - 9000, wave, session="1")]
    assert findings(read, {"acc": 50.0}) == findings(read) == []
    (found,) = findings(read, {"acc": 100.0})
    assert found.code == "declared_rate"
    assert "measured 50 samples per second, about half of it, declared 100 Hz" in found.message


def test_rows_that_a_reader_skipped_are_counted(clean):
    checks = SignalChecks()
    for each in clean:
        checks.add(each)
    checks.skipped(clean[0].client, "acc", 12)
    (found,) = checks.findings()
    assert "12 rows" in found.message


def test_findings_that_all_clients_have_are_one_line():
    same = [Finding("warning", "gravity", f"s{i}", "acc", "1 at rest") for i in range(24)]
    one = Finding("error", "rate", "s3", "gyro", "25000")
    assert grouped([*same, one], 24) == [
        ("error", "s3, gyroscope", "25000"),
        ("warning", "all 24 clients, accelerometer", "1 at rest"),
    ]
    assert grouped(same[:2], 2)[0][1] == "both clients, accelerometer"
    assert grouped(same[:2], 24) == [("warning", "2 clients, such as s0, accelerometer", "1 at rest")]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda read: [each for each in read if each.sensor == "acc"], "the gyroscope has no samples"),
        (lambda read: [times(lambda t: t / 1000)(each) for each in read], "times in seconds"),
        (lambda read: [times(np.floor)(each) for each in read], "omit the column of times and give rate_hz"),
        (lambda read: [rows(lambda n: np.arange(1))(each) for each in read], "don't overlap in time"),
        (
            lambda read: [each._replace(times_s=each.times_s + 1e6 * (each.sensor == "gyro")) for each in read],
            "don't overlap in time",
        ),
        (lambda read: [rows(lambda n: np.arange(100))(each) for each in read], "together last"),
        (lambda read: [each._replace(activity="") for each in read], "without a gap of more than 0.1 s"),
    ],
)
def test_no_windows_are_explained(clean, change, reason):
    checks = SignalChecks()
    for each in change(clean):
        checks.add(each)
    found = checks.no_windows(clean[0].client, 2.56, 0.1)
    assert (found.severity, found.code) == ("error", "no_windows")
    assert reason in found.message


@pytest.fixture
def mine(monkeypatch, clean) -> Callable[..., None]:
    """Make the data set "mine" of three clients, each of whose recordings a fault is put into."""

    def make(*faults: Fault) -> None:
        def read(source, clients, options):
            for client in ("a", "b", "c"):
                for each in clean:
                    for fault in faults:
                        each = fault(each)
                    yield each._replace(client=client)

        labels = prepare("synthetic", None, options={"subjects": 1, "phones": 1, "minutes": 0.5}).labels
        reader = RecordingReader(
            name="mine", summary="", labels=lambda options: labels, layouts=lambda options: (), recordings=read,
            acceleration="specific force",
            origin=lambda client: Origin("mine", client),
        )  # fmt: skip
        monkeypatch.setitem(READERS, "mine", reader)

    return make


def test_findings_and_rates_are_prepared_with_the_windows_and_stay_in_the_cache(mine, tmp_path):
    mine(FAULTS["g"][0], rows(lambda n: np.arange(0, n, 8)))
    built = prepare("mine", None, cache_dir=tmp_path)
    assert {(each.code, each.client) for each in built.findings} == {("gravity", client) for client in "abc"}
    again = prepare("mine", None, cache_dir=tmp_path, progress=lambda *call: pytest.fail("read again"))
    assert again.findings == built.findings
    native = again.rates_hz["a"]["acc"]
    assert native == pytest.approx(12.5, rel=0.01)  # an eighth of 100 Hz
    assert again.bandwidth_hz("a") == pytest.approx(0.4 * 12.5, rel=0.02)


def test_no_window_at_all_is_an_error_that_names_the_unit_of_time(mine):
    mine(times(lambda t: t / 1000))
    with pytest.raises(
        SignalError, match=r"gives no window at all; a, 1 of 3: .* Hz|samples a second; .*times in seconds"
    ):
        prepare("mine", None)
    mine(times(lambda t: t * 1000))
    with pytest.raises(SignalError, match="were times in milliseconds taken for seconds"):
        prepare("mine", None)


def test_prepare_prints_what_all_clients_have_in_one_row(mine, tmp_path, monkeypatch):
    mine(FAULTS["degrees"][0])
    said = CliRunner().invoke(
        app, ["prepare", "mine", "--cache", str(tmp_path)], env={"COLUMNS": "250", "TERM": "dumb"}
    )
    assert said.exit_code == 0, said.output
    text = " ".join(said.output.replace("│", " ").split())
    assert "all 3 clients, gyroscope" in text
    assert text.count("deg/s") == 1


@pytest.mark.parametrize("level", [0.3, 9.8])
def test_what_is_declared_without_gravity_is_said_once_whatever_its_size(level):
    random = np.random.default_rng(0)
    checks = SignalChecks(acceleration="without gravity")
    values = random.normal((0, 0, level), 0.01, (3000, 3))
    checks.add(Recording("a", "", "", "acc", np.arange(3000) / 50, values))
    (found,) = checks.findings()
    assert (found.severity, found.code, found.sensor) == ("warning", "no_gravity", "acc")
    assert "declared as without gravity" in found.message


@pytest.mark.parametrize(("late", "found"), [(0.0, False), (0.9, True), (-0.8, True)])
def test_samples_that_are_stamped_late_are_found(late, found):
    times = np.arange(2000) / 20
    times[40::97] += late / 20
    checks = SignalChecks()
    values = np.random.default_rng(0).normal([0, 0, 9.8], 1, (2000, 3))
    checks.add(Recording("p", "", "", "acc", times, values))
    assert ("shifted_times" in {each.code for each in checks.findings()}) == found


@pytest.mark.parametrize(("shift_s", "found"), [(0.0, False), (1.0, False), (20.0, True), (-20.0, True), (1.7e9, True)])
def test_two_clocks_are_found_while_both_sensors_come(shift_s, found):
    times, random, checks = np.arange(1000) / 100, np.random.default_rng(0), SignalChecks()
    for at in range(0, 1000, 50):
        part = times[at : at + 50]
        checks.add(Recording("p", "", "", "acc", part, random.normal([0, 0, 9.8], 1, (50, 3))))
        checks.add(Recording("p", "", "", "gyro", part + shift_s, random.normal(0, 1, (50, 3))))
    clocks = [each.message for each in checks.findings() if each.code == "clocks"]
    assert len(clocks) == found
    assert all("0.000 to 9.990" in words and f"{times[0] + shift_s:.3f}" in words for words in clocks)


def test_a_sensor_that_comes_in_long_pieces_or_ends_early_is_on_no_other_clock():
    times, random, checks = np.arange(3000) / 100, np.random.default_rng(0), SignalChecks()
    for at in range(0, 3000, 1000):
        for sensor, level in (("acc", 9.8), ("gyro", 0.0)):
            part = times[at : at + 1000][: 400 if (at, sensor) == (2000, "gyro") else None]
            checks.add(Recording("p", "", "", sensor, part, random.normal([0, 0, level], 1, (len(part), 3))))
            assert "clocks" not in {each.code for each in checks.findings()}
