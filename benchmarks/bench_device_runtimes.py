"""A device's training process with torch and without: start, processor time and memory of one whole round each.

Run: python benchmarks/bench_device_runtimes.py [--minutes 8]
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from edge_agent.config.sensors import SensorsSection
from edge_agent.config.settings import AgentSection, Config, ServerSection
from edge_agent.config.training import TrainingSection
from edge_agent.machine.commands import StartJob
from edge_agent.machine.events import DataReady, Event
from edge_agent.sensors import open_source
from edge_agent.training.job import Job, make_job
from export.program.exporter import export_program, federation_of
from federation import wire
from federation.plan import ModelSpec, Plan, TrainingConfig
from federation.protocol.messages import BlobPointer, Runtime
from har_pipeline import dataset_labels

DEVICE = "s00_phone100-waist"
IMPORTS = {
    "torch": "import edge_agent.training.trainer, edge_agent.training.torch_runtime",
    "onnx": "import edge_agent.training.trainer, edge_agent.training.program_runtime",
    "supervisor": "import edge_agent.supervisor.supervisor",
}


def a_plan() -> Plan:
    labels = dataset_labels("synthetic")
    training = TrainingConfig(classes=len(labels), epochs=3, batch_size=64, seed=1)
    return Plan(labels=labels, model=ModelSpec(name="har_cnn"), method={"name": "fedavg"}, training=training)


def config_of(folder: Path, minutes: float, runtime: Runtime) -> Config:
    options = {"subjects": 1, "phones": ["phone100"], "places": ["waist"], "minutes": minutes}
    return Config(
        agent=AgentSection(device=DEVICE, federation="bench", data_dir=folder),
        server=ServerSection(url="http://127.0.0.1:9"),
        sensors=SensorsSection(options=options),
        training=TrainingSection(runtime=runtime, nice=0),
    )


def fill(folder: Path, minutes: float) -> None:
    posted: queue.SimpleQueue[Event] = queue.SimpleQueue()
    source = open_source(config_of(folder, minutes, "torch"), posted.put)
    source.start(a_plan())
    while not isinstance(posted.get(timeout=120), DataReady):
        pass
    source.stop(5.0)


def a_job(folder: Path, minutes: float, runtime: Runtime, program: Path) -> Job:
    federation = federation_of(a_plan())
    data = wire.encode(federation.broadcast)
    blob = folder / wire.digest(data)
    blob.write_bytes(data)
    model = BlobPointer(sha256=blob.name, size=len(data), url="/")
    command = StartJob("train", 1, model, a_plan(), 131_072)
    job = make_job(config_of(folder, minutes, runtime), command, blob, "", program if runtime == "onnx" else None)
    job.out.mkdir(parents=True, exist_ok=True)
    (job.out / "job.json").write_text(job.model_dump_json())
    return job


WITH_PEAK = """
import sys
try:
    {}
finally:
    peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print("peak", peak, file=sys.stderr, flush=True)
"""


def measured(statement: str, *arguments: str) -> dict[str, float]:
    """Run a statement in a fresh interpreter; its wall clock, processor time and largest memory."""
    begun = time.monotonic()
    command = [sys.executable, "-c", WITH_PEAK.format(statement), *arguments]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said)
        # the peak that the kernel counts for a child begins with its parent's, so the child says its own
        _, status, usage = os.wait4(process.pid, 0)
        said.seek(0)
        words = said.read()
    assert status == 0, words
    peak_kb = int(words.rsplit("peak ", 1)[1].split()[0])
    processor_s = usage.ru_utime + usage.ru_stime
    return {"wall_s": time.monotonic() - begun, "processor_s": processor_s, "peak_mb": peak_kb / 1024}


def main() -> None:
    """Print one JSON line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=8.0)
    asked = parser.parse_args()
    for name, statement in IMPORTS.items():
        print(json.dumps({"import": name} | measured(statement)), flush=True)
    with tempfile.TemporaryDirectory() as where:
        folder = Path(where)
        fill(folder, asked.minutes)
        data = export_program(federation_of(a_plan()))
        program = folder / wire.digest(data)
        program.write_bytes(data)
        for runtime in ("torch", "onnx"):
            job = a_job(folder, asked.minutes, runtime, program)
            run = "import runpy; runpy.run_module('edge_agent.training.entrypoint', run_name='__main__')"
            found = measured(run, str(job.out / "job.json"))
            result = json.loads((job.out / "result.json").read_bytes())
            print(
                json.dumps(
                    {"round": runtime, "examples": result["examples"], "steps": result["steps"], **found}
                    | {"macro_f1_after": result["metrics"].get("macro_f1_after"), "program_kb": len(data) / 1e3}
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
