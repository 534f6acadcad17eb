"""One sensor of one session as readers yield it: the only form in which raw samples enter the pipeline.

`Origin` says where a client's windows come from, so that clients can be grouped by user, device or body place. An id is
`user` or `user_suffix`, where the suffix is what a user wore several of: a device or a place on the body. Only the
reader knows which of the two it is, and what is the same for the whole set; so each reader states it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from gaitway.input_spec import SENSOR_CHANNELS
from gaitway.plain_text import cleaned

CHANNELS = SENSOR_CHANNELS
STANDARD_GRAVITY = 9.80665
MAX_VALUE = 1e6
"""No sensor of a body measures more m/s² or rad/s; as float32, far larger ones would be infinite."""
UNLABELLED = frozenset({"", "null"})

Sensor = Literal["acc", "gyro"]


@dataclass(frozen=True, eq=False)
class Categorical:
    """Words (n,) as they repeat in long recordings: the distinct `names` (k,) str, and for each word its index (n,).

    A hundredth of the memory and time of an array of strings; np.asarray gives that array.
    """

    names: np.ndarray
    codes: np.ndarray

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, part: slice) -> Categorical:
        return Categorical(self.names, self.codes[part])

    def __array__(self, dtype: np.dtype[np.generic] | None = None, copy: bool | None = None) -> np.ndarray:
        words: np.ndarray = self.names[self.codes]
        return words if dtype is None else words.astype(dtype)

    @classmethod
    def of(cls, words: np.ndarray) -> Categorical:
        """Code an array (n,) of words."""
        return cls(*np.unique(words, return_inverse=True))

    def coded(self, code_of: dict[str, int], unknown: int) -> np.ndarray:
        """Return the code (n,) int64 of each word, `unknown` where it has none."""
        table = np.array([_code(name, code_of, unknown) for name in self.names.tolist()], dtype=np.int64)
        coded: np.ndarray = table[self.codes]
        return coded


def _code(name: str, code_of: dict[str, int], unknown: int) -> int:
    """Return a word's code; files of other systems may have its letters in another form (NFD)."""
    return code_of.get(name, code_of.get(cleaned(name), unknown))


class Recording(NamedTuple):
    """A stretch of one sensor: a whole session or a chunk of it.

    times_s (n,) float64 in seconds on the client's clock; values (n, 3) float, specific force in m/s² (at rest, face
    up, +9.81 on z; what readers themselves yield has the convention that they declare) or angular rate in rad/s.
    activity is one name or one per sample; "" and "null" mean unlabelled. number (n,) is what a regression learns, in
    the unit of the data set, NaN where it is not known; only that of the accelerometer counts. source and line (of the
    first sample) are there for error messages.
    """

    client: str
    session: str
    activity: str | np.ndarray | Categorical
    sensor: Sensor
    times_s: np.ndarray
    values: np.ndarray
    source: str = ""
    line: int = 0
    number: np.ndarray | None = None

    def where(self, index: int = 0) -> str:
        """Say which file and line sample `index` came from."""
        place = self.source or f"client {self.client}, session {self.session}, {self.sensor}"
        return f"{place}, line {self.line + index}" if self.line else f"{place}, sample {index}"


def known_numbers(numbers: np.ndarray) -> np.ndarray | None:
    """Return numbers (n,) as a recording has them: None where none is known."""
    return None if np.isnan(numbers).all() else numbers


def subject_of(client: str) -> str:
    """Read the subject from a client's id: all before its last `_`, or all of it, e.g. "s07" of "s07_sw" and "s07"."""
    head, separator, _ = client.rpartition("_")
    return head if separator else client


def device_of(client: str) -> str:
    """Read the device, or body place, from a client's id: all after its last `_`, or ""; `origin` tells which it is."""
    _, separator, tail = client.rpartition("_")
    return tail if separator else ""


Key = Literal["dataset", "user", "device", "place"]


class Origin(NamedTuple):
    """Data set, user, device and body place of a client; "" where unknown.

    `user` is the subject as the client's id names it, so it differs between data sets that are combined. Devices and
    places are named alike in every data set.
    """

    dataset: str
    user: str
    device: str = ""
    place: str = ""
