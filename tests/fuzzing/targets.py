"""Every target, and its share of the cases: more where a case is worth more than its time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.fuzzing.phone_target import Endpoint
from tests.fuzzing.play import Target
from tests.fuzzing.recordings_target import Recordings
from tests.fuzzing.wire_targets import Messages, TopicsAndChunks, Trees, UploadSender

TARGETS: dict[str, Callable[[Path], Target]] = {
    "trees": Trees,
    "uploads": UploadSender,
    "messages": Messages,
    "topics": TopicsAndChunks,
    "sensor_logger": Endpoint,
    "recordings": Recordings,
}
SHARES = {"trees": 0.3, "uploads": 0.1, "messages": 0.34, "topics": 0.1, "sensor_logger": 0.15, "recordings": 0.01}
