"""The example page in headless Chromium: loaded from a server, tapped and shaken, without the real ONNX Runtime.

The page, the modules and the model are the real ones; `ort.wasm.min.mjs` is a stand-in whose network answers with the
mean of each channel, and a script dispatches `devicemotion` events as a phone lying on its back would.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.export.test_runtime import model_bytes
from tests.repository.imports import REPOSITORY

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium on this machine"),
]

RUNTIME = """
export class Tensor { constructor(type, data, dims) { this.data = data; this.dims = dims; } }
export const InferenceSession = { create: async () => ({ run: async ({ x }) => {
  const sums = [0, 0, 0, 0, 0, 0];
  x.data.forEach((each, i) => (sums[i % 6] += each / x.dims[1]));
  return { logits: { data: sums.slice(0, 4) } };
} }) };
"""
SHAKEN = """
<script type="module">
  document.getElementById("start").click();
  await new Promise((done) => setTimeout(done, 500));
  for (let i = 0; i < 400; i++) {
    const event = new DeviceMotionEvent("devicemotion", {
      accelerationIncludingGravity: { x: 0.1 * Math.sin(i), y: 0, z: Z },
      rotationRate: { alpha: Math.sin(i), beta: 0, gamma: 0 },
      interval: 16,
    });
    Object.defineProperty(event, "timeStamp", { value: 1000 + i * 16.667 });
    window.dispatchEvent(event);
  }
</script>
"""


class QuietHandler(SimpleHTTPRequestHandler):
    extensions_map = SimpleHTTPRequestHandler.extensions_map | {".mjs": "text/javascript", ".js": "text/javascript"}

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def page(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """The folder of a page as docs/inference.md lays it out, and its address."""
    folder = tmp_path / "page"
    folder.mkdir()
    for file in [REPOSITORY / "docs/examples/phone.html", *(REPOSITORY / "export/web").glob("*.js")]:
        shutil.copy(file, folder)
    (folder / "model.onnx").write_bytes(model_bytes())
    (folder / "ort.wasm.min.mjs").write_text(RUNTIME)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}/phone.html"
    server.shutdown()
    thread.join()
    server.server_close()


def dom_of(address: str, profile: Path, *options: str) -> str:
    command = [
        *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
        *(f"--user-data-dir={profile}", "--virtual-time-budget=10000", *options, "--dump-dom", address),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout


@pytest.mark.ci
@pytest.mark.parametrize(
    ("z", "agent", "label"),
    [(9.81, "", "jog"), (-9.81, "Mozilla/5.0 (iPhone; CPU iPhone OS 26_0 like Mac OS X)", "jog")],
    ids=["android", "iphone"],
)
def test_a_phone_on_its_back_is_recognized(
    page: tuple[Path, str], tmp_path: Path, z: float, agent: str, label: str
) -> None:
    """The largest of the four logits is the mean of acc_z, on Android and, with its other signs, on an iPhone."""
    folder, address = page
    html = (folder / "phone.html").read_text()
    (folder / "phone.html").write_text(html.replace("</body>", SHAKEN.replace("Z }", f"{z} }}") + "</body>"))
    dom = dom_of(address, tmp_path / "profile", *([f"--user-agent={agent}"] if agent else []))
    assert f'aria-live="polite">{label}</output>' in dom, dom[-3000:]
    assert "100 %" in dom
    assert 'role="status"></p>' in dom
