"""UCI HAR: 30 subjects, a phone at the waist, six activities, published as windows of 128 samples at 50 Hz.

Anguita, Ghio, Oneto, Parra, Reyes-Ortiz, "A public domain dataset for human activity recognition using smartphones",
ESANN 2013. The windows (filtered at 20 Hz by their makers) are taken as they are; there are no recordings to stream.
Windows that overlap by half form a chain, which is one session; a subject's sessions lie one after another in time.

Acceleration: specific force. total_acc is what an Android phone (Samsung Galaxy S II) measured, in g; flat on a table,
screen up, its z is "0 m/s2 minus the force of gravity, which is -9.81 m/s2" (developer.android.com, Motion sensors). So
it is in the files: of those who lie on their backs the screen, which looks outwards, is up: z > 0 (28 of 30 subjects).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import IO

import numpy as np

from har_pipeline.errors import SettingsError, SourceError
from har_pipeline.readers.archive import Layout, Source
from har_pipeline.readers.reader import Clients, Options, RecordingReader, chosen, require_source
from har_pipeline.recording import STANDARD_GRAVITY, Origin, Recording
from har_pipeline.streaming.windows import ClientWindows

LABELS = ("WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING")
CHANNEL_FILES = tuple(f"{signal}_{axis}" for signal in ("total_acc", "body_gyro") for axis in "xyz")
WINDOW, STEP, RATE_HZ, PAUSE_S = 128, 64, 50.0, 10.0
LAYOUT = Layout(
    files=re.compile(
        r"(?:(?<=/)|^)(?:(train|test)/(?:Inertial Signals/((?:total_acc|body_gyro)_[xyz])|(y|subject))_(?:train|test)"
        r"\.txt|(uci_har_windows)\.npz)$"
    ),
    archives=re.compile(r"uci.?har|human.activity.recognition", re.IGNORECASE),
    expected="{train|test}/Inertial Signals/{total_acc|body_gyro}_{x|y|z}_{train|test}.txt with y_*.txt and "
    "subject_*.txt beside (UCI HAR Dataset), or uci_har_windows.npz",
)


def windows(source: Source | None, clients: Clients, options: Options) -> dict[str, ClientWindows]:
    """Return the windows by client; `s07` is subject 7."""
    x, y, subject, chain = _read(require_source(source, "ucihar"))
    result = {}
    for number in np.unique(subject):
        client = f"s{number:02d}"
        if chosen(client, clients):
            rows = np.flatnonzero(subject == number)
            session, start_s = _clock(chain[rows])
            result[client] = ClientWindows(client, x[rows], y[rows], start_s, session)
    return result


def recordings(source: Source | None, clients: Clients, options: Options) -> Iterator[Recording]:
    """Raise SettingsError: the set is published as windows."""
    raise SettingsError("ucihar is published as windows and has no recordings; use prepare()")


def _clock(chain: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number the chains (n,) of one subject and lay their windows on one clock, with a pause between chains."""
    begins = np.concatenate([[False], np.diff(chain) != 0])
    advance = np.where(begins, WINDOW / RATE_HZ + PAUSE_S, STEP / RATE_HZ)
    advance[0] = 0.0
    return np.cumsum(begins), np.cumsum(advance)


def _read(source: Source) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Read x (n, 128, 6) float32 in m/s² and rad/s, y, subject and chain (n,)."""
    texts: dict[tuple[str, str], np.ndarray] = {}
    for match, member in source.members():
        with member.open() as stream:
            if match[4]:
                return _read_npz(stream, member.name)
            texts[match[1], match[2] or match[3]] = _read_text(stream, member.name)
    parts = [_assemble(texts, part, source) for part in ("train", "test") if any(key[0] == part for key in texts)]
    x, y, subject = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    # A chain goes on where the second half of a window is the first half of the next.
    joined = (x[:-1, STEP:] == x[1:, :STEP]).all(axis=(1, 2)) & (subject[:-1] == subject[1:])
    return x, y, subject, np.concatenate([[0], np.cumsum(~joined)])


def _read_npz(stream: IO[bytes], name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    try:
        with np.load(stream, allow_pickle=False) as packed:
            channels = packed["channels"].tolist()
            x = packed["X"][:, [channels.index(channel) for channel in CHANNEL_FILES]]
            order = np.array([LABELS.index(activity) for activity in packed["activities"].tolist()])
            y, subject, chain = order[packed["y"]], packed["subject"], packed["segment"]
    except (KeyError, ValueError, OSError) as error:
        raise SourceError(f"{name}: expected X, y, subject, segment, channels and activities: {error}") from error
    return _units(x.transpose(0, 2, 1)), y.astype(np.int64), subject.astype(np.int64), chain.astype(np.int64)


def _read_text(stream: IO[bytes], name: str) -> np.ndarray:
    try:
        return np.loadtxt(stream, dtype=np.float32, ndmin=2)
    except ValueError as error:
        raise SourceError(f"{name}: not a table of numbers: {error}") from error


def _assemble(
    texts: dict[tuple[str, str], np.ndarray], part: str, source: Source
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    missing = [name for name in (*CHANNEL_FILES, "y", "subject") if (part, name) not in texts]
    if missing:
        raise SourceError(f"{source.root}: {part} lacks {missing}; expected {LAYOUT.expected}")
    channels = [texts[part, name] for name in CHANNEL_FILES]
    y, subject = texts[part, "y"][:, 0].astype(np.int64) - 1, texts[part, "subject"][:, 0].astype(np.int64)
    shapes = {channel.shape for channel in channels}
    if shapes != {(len(y), WINDOW)} or len(subject) != len(y) or not ((y >= 0) & (y < len(LABELS))).all():
        raise SourceError(
            f"{source.root}: {part} has signals {sorted(shapes)}, {len(y)} labels and {len(subject)} subjects; "
            f"expected {WINDOW} columns, equal rows and labels from 1 to {len(LABELS)}"
        )
    return _units(np.stack(channels, axis=2)), y, subject


def _units(x: np.ndarray) -> np.ndarray:
    """Convert acceleration from g to m/s² in x (n, 128, 6)."""
    scale = np.array([STANDARD_GRAVITY] * 3 + [1.0] * 3, dtype=np.float32)
    return np.ascontiguousarray(x * scale, dtype=np.float32)


READER = RecordingReader(
    name="ucihar",
    summary="UCI HAR: 30 subjects, phone at the waist, 6 activities, published as windows",
    labels=lambda options: LABELS,
    layouts=lambda options: (LAYOUT,),
    recordings=recordings,
    acceleration="specific force",
    origin=lambda client: Origin("ucihar", client, "galaxy_s2", "waist"),
    windows=windows,
)
