"""A status over HTTP that is none is refused in words; at a broker, where nobody is answered, it is logged."""

from __future__ import annotations

from pathlib import Path

from federation.protocol import topics
from tests.aggregator_api.bench import HttpBench
from tests.aggregator_api.generated_devices import FEDERATION, tiny_plan

WRONG = (b"", b"{", b"[]", b'{"state": "flying"}', b'{"state": "ready", "examples": -1}', b"\xff\xfe", b"NaN")


def test_what_is_no_status_is_said(tmp_path: Path) -> None:
    bench = HttpBench(tmp_path, tiny_plan())
    for n, body in enumerate(WRONG, start=1):
        bench.send(topics.status(FEDERATION, "a"), body)
        assert len(bench.problems) == n, body
        assert bench.problems[-1].startswith("this is not a DeviceStatus: ")
    bench.say("a", "ready")
    assert len(bench.problems) == len(WRONG)
    bench.stop()
