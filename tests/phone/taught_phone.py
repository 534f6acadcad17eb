"""The view Teach me with its real parts, but for a server: a federation lies in the page's store, motion is replayed.

Motion comes as the browser's own events, at the times of the recording, so that a busy machine tears no gap.
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from aggregator_api.http.web import phone as web
from tests.teaching_world import TeachingWorld

if TYPE_CHECKING:
    from playwright.sync_api import Page

MOUNT = """async ({ version, plan, broadcast, network, sha256 }) => {
  const part = (name) => import(`/phone/${version}/${name}.js`);
  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const { Store } = await part("collection/store");
  const { Recorder } = await part("collection/recorder");
  const { Models } = await part("models");
  const { Recognition } = await part("recognition");
  const { LateEmbedder } = await part("runtime");
  const { Learner } = await part("learning/learner");
  const { Teacher } = await part("teaching/teacher");
  const teach = await part("ui/teach");
  const recognize = await part("ui/recognize");
  const store = await Store.open();
  await store.setAll({
    broadcast: { sha256: sha256.broadcast, version: 1, file: bytes(broadcast) },
    feature_model: { sha256: sha256.network, file: bytes(network) },
  });
  const state = { plan, model: null, name: "ready" };
  const participation = { state, membership: { approved: true }, agent: null, watchers: new Set() };
  const recorder = new Recorder(store);
  const models = new Models(store, new LateEmbedder(), new Learner(), null, participation);
  const teacher = new Teacher(store, recorder, models);
  await teacher.begin();
  const app = { store, recorder, models, participation, teacher, labels: () => plan.labels, marks: [] };
  app.recognition = new Recognition(recorder, models, teacher);
  app.activities = () => teacher.activities;
  app.device = new (await part("device")).PhoneDevice(app);
  let leave = () => {};
  const open = (view) => {
    leave();
    document.querySelectorAll("#views a").forEach((link) =>
      link.toggleAttribute("aria-current", link.textContent === view.title));
    leave = view.show(document.getElementById("main"), app);
  };
  open(teach);
  window.teach = () => open(teach);
  window.recognize = () => {
    state.model = { head: "shared", ...teacher.taught.shared, version: 1, sha256: sha256.network };
    open(recognize);
  };
  window.taught = teacher;
  window.longest = 0;
  new PerformanceObserver((list) => {
    for (const { duration } of list.getEntries()) window.longest = Math.max(window.longest, duration);
  }).observe({ type: "longtask" });
}"""
PLAY = """(rows) => {
  clearInterval(window.playing);
  const began = performance.now();
  let at = 0;
  window.playing = setInterval(() => {
    for (; at < rows.length && 1000 * rows[at][0] <= performance.now() - began; at++) {
      const [s, x, y, z, alpha, beta, gamma] = rows[at];
      const rotationRate = { alpha, beta, gamma };
      const event = new DeviceMotionEvent("devicemotion", {
        accelerationIncludingGravity: { x, y, z }, rotationRate, interval: 20,
      });
      Object.defineProperty(event, "timeStamp", { value: began + 1000 * s });
      dispatchEvent(event);
    }
  }, 20);
}"""


def mount(page: Page, address: str, world: TeachingWorld) -> None:
    """Open the app, and show Teach me for a federation that this phone is in."""
    page.goto(f"{address}/phone/#join")
    page.get_by_role("heading", level=1).wait_for()
    page.evaluate(
        MOUNT,
        {
            "version": web.version(),
            "plan": world.plan.model_dump(mode="json"),
            "broadcast": base64.b64encode(world.broadcast).decode(),
            "network": base64.b64encode(world.network).decode(),
            "sha256": {
                "broadcast": hashlib.sha256(world.broadcast).hexdigest(),
                "network": hashlib.sha256(world.network).hexdigest(),
            },
        },
    )


def play(page: Page, world: TeachingWorld, activity: str, from_s: float = 0.0, seconds: float = 30.0) -> None:
    """Have the phone moved as the person was recorded, from now on."""
    move(page, world.recordings[activity], from_s, seconds)


def move(page: Page, recording: npt.NDArray[np.float64], from_s: float = 0.0, seconds: float = 30.0) -> None:
    """Have the phone moved as in a recording (n, 7) of s, m/s² and rad/s, from now on."""
    rows = recording[(recording[:, 0] >= from_s) & (recording[:, 0] < from_s + seconds)] - [from_s, 0, 0, 0, 0, 0, 0]
    rows[:, 4:] *= 57.29577951308232  # browsers say degrees a second
    page.evaluate(PLAY, rows.round(5).tolist())
