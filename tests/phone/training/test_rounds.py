"""A round with a program ends in JavaScript where it does in Python, whole or cut off, and networks answer alike."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggregator_api.web.phone import RUNTIME, files
from export.program.host import DeviceExamples, ProgramRound, RoundIdentity, measure, receive, train
from export.program.parity import as_arrays, generated_examples
from export.program.runtime import Arrays, TrainingProgram
from federation import arrays
from tests.export.program.small_federations import small_program
from tests.phone.test_javascript import by_node

pytestmark = pytest.mark.skipif(RUNTIME not in files(), reason="no ONNX Runtime for the phone's client: make phone")
ROUNDS = (("fedavg", "har_cnn"), ("fedali", "har_cnn_alp"))
OTHER_ROUNDS = (("fedprox", "har_cnn"), ("fedproto", "har_cnn"), ("scaffold", "har_cnn"))
OF_ROUNDING_ALONE = re.compile(r"convolutions\.\d\.0\.bias$")
"""Before a normalization of each channel by itself: their gradients are rounding, which Adam makes steps of."""
IDENTITY = RoundIdentity("phone-1", 1)
EXAMPLES, CLASSES = 11, 3
TOLERANCE = 1e-4


class Case:
    """A program, a broadcast and windows."""

    def __init__(self, method: str, network: str) -> None:
        federation, data = small_program(method, network)
        made = generated_examples(federation, EXAMPLES)
        self.data, self.program = data, TrainingProgram.load(data)
        self.examples = DeviceExamples(made.x.numpy(), made.y.numpy())
        self.broadcast = as_arrays({"broadcast": federation.broadcast})

    def for_node(self) -> dict[str, Any]:
        sent = arrays.encode({name.removeprefix("broadcast/"): value for name, value in self.broadcast.items()})
        packed = {"program": self.data, "broadcast": sent, "x": self.examples.x.astype("<f4").tobytes()}
        said = {name: base64.b64encode(part).decode() for name, part in packed.items()}
        who = {"client": IDENTITY.client_id, "round": IDENTITY.round_number, "rounds": 4}
        return {**said, **who, "y": self.examples.y.tolist()}

    def answers(self, client: Arrays) -> np.ndarray:
        served = self.program.run("serving", client)
        served |= {"input/mean": np.zeros(6, np.float32), "input/std": np.ones(6, np.float32)}
        return np.concatenate(
            [self.program.run("model", served | {"x": one[None]})["logits"] for one in self.examples.x]
        )


@pytest.mark.parametrize(
    "rounds", [pytest.param(ROUNDS, marks=pytest.mark.ci), pytest.param(OTHER_ROUNDS, marks=pytest.mark.slow)]
)
def test_a_phones_round_ends_where_a_devices_without_torch_does(rounds: tuple[tuple[str, str], ...]) -> None:
    cases = [Case(*each) for each in rounds]
    ort = str(files()[RUNTIME].parent)
    told = by_node(Path(__file__).parent / "round_of.mjs", {"ort": ort, "cases": [case.for_node() for case in cases]})
    for names, case, found in zip(rounds, cases, told, strict=True):
        program, broadcast, mine = case.program, case.broadcast, case.examples
        expected = train(ProgramRound(program, {}, broadcast, mine, IDENTITY))
        upload = {name.removeprefix("upload/"): value for name, value in expected.upload.items()}
        came = arrays.decode(base64.b64decode(found["upload"]), limit_bytes=1 << 24)
        assert list(came) == list(upload), names
        for name, value in upload.items():
            assert came[name].dtype == value.dtype
            if OF_ROUNDING_ALONE.search(name):
                continue
            np.testing.assert_allclose(came[name], value, atol=TOLERANCE, rtol=0, err_msg=f"{names} {name}")
        assert (found["steps"], found["loss"]) == (expected.steps, pytest.approx(expected.loss, abs=TOLERANCE))
        before = measure(program, receive(program, {}, broadcast, IDENTITY), mine)["confusion"]
        assert (found["before"], found["after"]) == (
            before.tolist(),
            measure(program, expected.client, mine)["confusion"].tolist(),
        )
        assert found["same"], "a round that was cut off after an epoch goes on to the same bits"
        assert found["stopped"] == [1, expected.steps], "after at least one step"
        logits = np.frombuffer(base64.b64decode(found["logits"]), "<f4").reshape(EXAMPLES, CLASSES)
        np.testing.assert_allclose(logits, case.answers(expected.client), atol=1e-3, rtol=0, err_msg=str(names))
