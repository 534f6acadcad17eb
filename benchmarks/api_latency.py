"""How long REST takes to answer while a round is aggregated: k-means over many prototypes, in a worker or in a thread.

`python -m benchmarks.api_latency` and the same with `--thread`

A child process is the server (uvicorn, with a list in memory for a broker) and is handed the updates of as many
devices; this process asks it for the federation, one request after the other: for a while before the last update, and
from the aggregation's start to its end. Prototypes are random, so k-means does not settle: it makes as many iterations
as it may, which say how long it takes.
"""

from __future__ import annotations

import argparse
import http.client
import logging
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any

IDLE_S = 20.0
REQUESTS = ("/v1/federations/walk", "/v1/federations/walk/rounds", "/healthz")


def serve(folder: Path, port: int, devices: int, iterations: int, aggregation_process: bool) -> None:
    """Be the server and its devices; say on the output when the aggregation begins and ends."""
    import uvicorn

    from aggregator_api.core.settings import Settings
    from aggregator_api.federations.service import NewFederation
    from aggregator_api.http.app import create_app
    from federation.plan import Plan
    from tests.aggregator_api.generated_devices import FEDERATION, Wires

    logging.disable(logging.CRITICAL)
    settings = Settings(
        data_dir=folder,
        port=port,
        chunk_bytes=1 << 20,
        aggregation_process=aggregation_process,
    )
    app = create_app(settings, Wires)
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None, access_log=False))
    running = threading.Thread(target=server.run, daemon=True)
    running.start()
    while not server.started:
        time.sleep(0.05)
    model = {"name": "har_cnn_alp", "options": {}}
    plan = Plan.model_validate(
        {
            "labels": ["still", "walking"],
            "model": model,
            "method": {"name": "fedali", "kmeans_iterations": iterations, "kmeans_tolerance": 0.0},
            "training": {"classes": 2},
            "rounds": {"rounds": 1, "minimum_clients": devices, "norm_factor": None},
        }
    )
    app.state.runtime.federations.create(NewFederation(name=FEDERATION, plan=plan))
    play(app.state.runtime, devices)
    server.should_exit = True
    running.join()
    print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime, flush=True)


def play(runtime: Any, devices: int) -> None:
    """Let the devices report, and wait for the model."""
    from aggregator_api.rounds.announcements import announcement
    from aggregator_api.runtime import use_one_torch_thread
    from aggregator_api.storage.db import repositories
    from federation.protocol import topics
    from tests.aggregator_api.generated_devices import FEDERATION, generated, status

    def now() -> Any:
        with runtime.database.read() as session:
            row = repositories.find_federation(session, FEDERATION)
            assert row is not None
            return announcement(session, row, chunk_bytes=1 << 20)

    use_one_torch_thread()  # as the thread that handles messages does, in whose place this one is
    names = [f"device-{n:05}" for n in range(devices)]
    for name in names:
        runtime.ingest.handle(topics.status(FEDERATION, name), status("ready"))
    announced = now()
    broadcast = runtime.blobs.read(announced.model.sha256)
    for n, name in enumerate(names):
        parcel = generated(announced, broadcast, name, chunk_bytes=1 << 20)
        runtime.ingest.handle(parcel.topic("begin"), parcel.manifest.model_dump_json().encode())
        for chunk, data in enumerate(parcel.chunks()):
            runtime.ingest.handle(parcel.topic("chunk", chunk), data)
        if n == devices - 1:
            print("idle", flush=True)
            time.sleep(IDLE_S)
            print("aggregating", flush=True)
        runtime.ingest.handle(parcel.topic("end"), b"")
    while now().state != "finished":
        time.sleep(0.2)
    print("done", flush=True)
    time.sleep(2)  # the last request is answered


def asked(port: int, ended: threading.Event) -> list[float]:
    """Ask until the end; return the seconds of every answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    seconds = []
    while not ended.is_set():
        for path in REQUESTS:
            start = time.perf_counter()
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            seconds.append(time.perf_counter() - start)
            if answer.status != http.client.OK:
                raise RuntimeError(f"GET {path} was answered with {answer.status}")
        time.sleep(0.005)
    return seconds


def main() -> None:
    """Print the percentiles."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--devices", type=int, default=40)
    parser.add_argument("--iterations", type=int, default=20, help="of k-means")
    parser.add_argument("--thread", action="store_true", help="aggregate in a thread of the server instead")
    parser.add_argument("--serve", nargs=2, metavar=("FOLDER", "PORT"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(Path(given.serve[0]), int(given.serve[1]), given.devices, given.iterations, not given.thread)
        return
    with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        report(folder, port, given.devices, given.iterations, given.thread)


def report(folder: str, port: int, devices: int, iterations: int, thread: bool) -> None:
    """Start the server, ask while it rests and while it aggregates, and print what that took."""
    command = [sys.executable, "-m", "benchmarks.api_latency", "--devices", str(devices)]
    command += ["--iterations", str(iterations), "--serve", folder, str(port), *(["--thread"] if thread else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        said = child.stdout
        assert said.readline() == "idle\n"
        where = "thread" if thread else "worker"
        print(f"{where}, {devices} devices, {iterations} iterations")
        print(f"  at rest: {summary(*asked_until(port, said))}")
        print(f"  aggregating: {summary(*asked_until(port, said))}")
        print(f"  processor time of the server's children: {float(said.readline()):.1f} s")


def asked_until(port: int, said: IO[str]) -> tuple[list[float], float]:
    """Ask until the server says its next word; return the seconds of every answer, and of all."""
    ended = threading.Event()
    threading.Thread(target=lambda: (said.readline(), ended.set())).start()
    start = time.perf_counter()
    return sorted(asked(port, ended)), time.perf_counter() - start


def summary(seconds: list[float], took: float) -> str:
    """Say how long answers took."""
    p50, p99 = (1000 * seconds[int(share * (len(seconds) - 1))] for share in (0.5, 0.99))
    mean, longest = 1000 * statistics.mean(seconds), 1000 * seconds[-1]
    return (
        f"{len(seconds)} answers in {took:.1f} s; mean {mean:.1f} ms, p50 {p50:.1f} ms, p99 {p99:.1f} ms,"
        f" longest {longest:.1f} ms"
    )


if __name__ == "__main__":
    main()
