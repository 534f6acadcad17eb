"""A round with a program ends in JavaScript where it does in Python, whole or cut off, and networks answer alike."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from aggregator_api.core.settings import Settings
from aggregator_api.http.app import create_app
from aggregator_api.http.web.phone import RUNTIME, files, version
from export.program.archive import read_program, write_program
from export.program.host import DeviceExamples, ProgramRound, RoundIdentity, global_model, measure, receive, train
from export.program.manifest import TensorType
from export.program.parity import as_arrays, generated_examples
from export.program.runtime import Arrays, TrainingProgram
from federation.protocol import arrays
from federation.training.window_changes import ChannelScale
from tests.aggregator_api.generated_devices import Wires
from tests.aggregator_api.sockets import served
from tests.browser import needs_browser
from tests.export.program.small_federations import small_program
from tests.phone.test_javascript import by_node

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(RUNTIME not in files(), reason="no ONNX Runtime for the phone's client: make phone")
ROUNDS = (
    ("fedavg", "har_cnn"),
    ("fedali", "har_cnn_alp"),
    ("fedavg", "har_cnn", "rotation=0.6,degrees=50,sensor_loss=0.4"),
)
SCALE = ChannelScale((0.1, 9.0, -2.0, 0.0, 0.3, 0.1), (1.0, 2.0, 3.0, 0.5, 0.7, 0.2))
"""Where windows are changed, these are what they were normalized by."""
OTHER_ROUNDS = (("fedprox", "har_cnn"), ("fedproto", "har_cnn"), ("scaffold", "har_cnn"))
OF_ROUNDING_ALONE = re.compile(r"convolutions\.\d\.0\.bias$")
"""Before a normalization of each channel by itself: their gradients are rounding, which Adam makes steps of."""
IDENTITY = RoundIdentity("phone-1", 1)
EXAMPLES, CLASSES = 11, 3
TOLERANCE = 1e-4


class Case:
    """A program, a broadcast and windows."""

    def __init__(self, method: str, network: str, augmentation: str = "none") -> None:
        federation, data = small_program(method, network, augmentation)
        self.scale = None if augmentation == "none" else SCALE
        made = generated_examples(federation, EXAMPLES)
        self.names = method, network
        self.data, self.program = data, TrainingProgram.load(data)
        self.examples = DeviceExamples(made.x.numpy(), made.y.numpy())
        begun = as_arrays({"broadcast": federation.broadcast})
        # of a model that somebody has trained
        self.broadcast = {name: value + 0.01 if value.dtype == np.float32 else value for name, value in begun.items()}

    def unusable(self) -> dict[str, bytes]:
        """Return broadcasts that no device can use, by what is wrong with them."""
        name, weights = next((name, value) for name, value in self.broadcast.items() if value.dtype == np.float32)
        nan, huge = weights.copy(), weights.copy()
        nan.flat[0] = np.nan
        huge[:] = 3e38
        return {
            "not safetensors": b"model",
            "holds NaN or infinity": encoded(self.broadcast | {name: nan}),
            "is missing or another tensor": encoded(self.broadcast | {name: weights[:-1]}),
            "training from the server's model diverges": encoded(self.broadcast | {name: huge}),
        }

    def for_node(self) -> dict[str, Any]:
        sent = encoded(self.broadcast)
        packed = {"program": self.data, "broadcast": sent, "x": self.examples.x.astype("<f4").tobytes()}
        said = {name: base64.b64encode(part).decode() for name, part in packed.items()}
        who = {"client": IDENTITY.client_id, "round": IDENTITY.round_number, "rounds": 4}
        unusable = [base64.b64encode(model).decode() for model in self.unusable().values()]
        return {
            **said,
            **who,
            "unusable": unusable,
            "y": self.examples.y.tolist(),
            "scale": self.scale and self.scale._asdict(),
        }

    def answers(self, served: Arrays) -> np.ndarray:
        served = served | {"input/mean": np.zeros(6, np.float32), "input/std": np.ones(6, np.float32)}
        return np.concatenate(
            [self.program.run("model", served | {"x": one[None]})["logits"] for one in self.examples.x]
        )


def encoded(broadcast: Arrays) -> bytes:
    return arrays.encode({name.removeprefix("broadcast/"): value for name, value in broadcast.items()})


@pytest.mark.parametrize(
    "rounds", [pytest.param(ROUNDS, marks=pytest.mark.ci), pytest.param(OTHER_ROUNDS, marks=pytest.mark.slow)]
)
def test_a_phones_round_ends_where_a_devices_without_torch_does(rounds: tuple[tuple[str, ...], ...]) -> None:
    cases = [Case(*each) for each in rounds]
    ort = str(files()[RUNTIME].parent)
    request = {"ort": ort, "cases": [case.for_node() for case in cases]}
    require_equal(cases, by_node(HERE / "round_of.mjs", request))


@pytest.mark.ci
def test_a_phone_refuses_what_is_no_program_or_another_one_than_it_says() -> None:
    _, data = small_program(*ROUNDS[0])
    file = read_program(data)
    step = file.manifest.graphs["step"]
    huge = TensorType(dtype="float32", shape=(1 << 20, 1 << 20))

    def with_step(graph: bytes, **changes: Any) -> bytes:
        found = {**file.manifest.graphs, "step": step.model_copy(update=changes)}
        manifest = file.manifest.model_copy(update={"graphs": found})
        return write_program(manifest, {**file.graphs, "step": graph})

    other = file.graphs["step"].replace(b"MatMul", b"Loop\0\0", 1)
    cases = {
        "": data,
        "no archive": data[:-30],
        "damaged": with_step(file.graphs["step"][:-1] + b"x"),
        "the operator Loop": with_step(other, sha256=hashlib.sha256(other).hexdigest()),
        "other nodes": with_step(file.graphs["step"], nodes=step.nodes + 1),
        "bytes of numbers": with_step(file.graphs["step"], inputs={**step.inputs, "more": huge}),
    }
    told = by_node(HERE / "refusals_of.mjs", [base64.b64encode(case).decode() for case in cases.values()])
    assert told[0] == ""
    assert all(words in said for words, said in zip(cases, told, strict=True)), told


@needs_browser
@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.ci)])
def test_in_chromium_it_does_so_in_a_worker(threads: int, page: Page, tmp_path: Path) -> None:
    """As a phone's with four cores would, whose worker has threads, each in a worker of its own."""
    cases = [Case(*ROUNDS[0])]
    function = (HERE / "outcomes_of.mjs").read_text().replace("export async", "async", 1)
    work = f"""async ({{ version, cases }}) => {{
      if (!crossOriginIsolated) throw new Error("the page may have no threads");
      {function}
      const {{ RemoteHost }} = await import(`/phone/${{version}}/training/remote_host.js`);
      return outcomesOf(new RemoteHost(), cases);
    }}"""

    def with_threads(route: Route) -> None:
        answer = route.fetch()
        source = answer.text()
        assert "trainingThreads())" in source
        route.fulfill(response=answer, body=source.replace("trainingThreads())", f"{threads})"))

    page.route("**/training/worker.js", with_threads)
    with served(create_app(Settings(data_dir=tmp_path, aggregation_process=False), Wires)) as port:
        page.goto(f"http://127.0.0.1:{port}/phone/")
        told = page.evaluate(work, {"version": version(), "cases": [case.for_node() for case in cases]})
        assert sum(worker.url.endswith("/ort-wasm-simd-threaded.mjs") for worker in page.workers) == threads - 1
    require_equal(cases, told)


def require_equal(cases: list[Case], told: list[dict[str, Any]]) -> None:
    for case, found in zip(cases, told, strict=True):
        program, broadcast, mine = case.program, case.broadcast, case.examples
        expected = train(ProgramRound(program, {}, broadcast, mine._replace(scale=case.scale), IDENTITY))
        upload = {name.removeprefix("upload/"): value for name, value in expected.upload.items()}
        came = arrays.decode(base64.b64decode(found["upload"]), limit_bytes=1 << 24)
        assert list(came) == list(upload), case.names
        for name, value in upload.items():
            assert came[name].dtype == value.dtype
            if OF_ROUNDING_ALONE.search(name):
                continue
            np.testing.assert_allclose(came[name], value, atol=TOLERANCE, rtol=0, err_msg=f"{case.names} {name}")
        assert (found["steps"], found["loss"]) == (expected.steps, pytest.approx(expected.loss, abs=TOLERANCE))
        before = measure(program, receive(program, {}, broadcast, IDENTITY), mine)["confusion"]
        after = measure(program, expected.client, mine)["confusion"]
        assert (found["before"], found["after"]) == (before.tolist(), after.tolist())
        assert found["same"], "a round that was cut off after an epoch goes on to the same bits"
        assert found["stopped"] == [1, expected.steps], "after at least one step"
        for (error, message), reason in zip(found["blamed"], case.unusable(), strict=True):
            assert (error, reason in message) == ("UnusableModelError", True), (case.names, reason, error, message)
        require_answers(case, found["logits"], program.run("serving", expected.client))
        if program.manifest.has_global_model:  # the one that it began with, of a client as it was then
            require_answers(case, found["shared"], global_model(program, {}, broadcast))


def require_answers(case: Case, found: str, served: Arrays) -> None:
    logits = np.frombuffer(base64.b64decode(found), "<f4").reshape(EXAMPLES, CLASSES)
    np.testing.assert_allclose(logits, case.answers(served), atol=1e-3, rtol=0, err_msg=str(case.names))
