"""One window on one thread: ONNX Runtime in float32 and int8 against torch eager, interleaved in one process.

    python benchmarks/bench_inference.py --repeats 400 --out inference.json

Load time and resident memory are those of a process of its own each, which has loaded the file and classified one
window. Networks have random weights: time does not depend on them, so the exporter's gates are left out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from measure import Timing, interleaved, matmul_rate, report, resident_mb, torch_threads

MODELS: dict[str, dict[str, Any]] = {"hart": {}, "hart_alp": {}, "har_cnn": {}}
LABELS = ("sit", "stand", "walk", "stairsup", "stairsdown", "bike")
CLOCKS = {"wall": time.perf_counter, "process": time.process_time}


def deployed(name: str, options: dict[str, Any]) -> Any:
    """Build what is exported: the network with the normalization inside, in evaluation."""
    import torch

    from export.graph import ExportModule
    from models import build

    torch.manual_seed(0)
    return ExportModule(build(name, classes=len(LABELS), **options), metadata(name))


def metadata(name: str) -> Any:
    """Describe the file."""
    from export.runtime import ModelMetadata
    from gaitway.input_spec import InputSpec

    return ModelMetadata(LABELS, InputSpec.windows((0.0,) * 6, (1.0,) * 6), model=name)


def files(name: str, module: Any, folder: Path) -> dict[str, Path]:
    """Write the network as ONNX in float32 and int8, and as torch saves it."""
    import torch

    from export.graph import float32_graph, int8_graph

    graph = float32_graph(module, metadata(name))
    paths = {kind: folder / f"{name}.{kind}.onnx" for kind in ("float32", "int8")}
    paths["float32"].write_bytes(graph.SerializeToString())
    paths["int8"].write_bytes(int8_graph(graph).SerializeToString())
    paths["torch"] = folder / f"{name}.pt"
    torch.save(module.module.state_dict(), paths["torch"])
    return paths


def flops(module: Any) -> int:
    """Count the operations of one window's matmuls and convolutions, as torch counts them."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        module(torch.zeros(1, 128, 6))
    return int(counter.get_total_flops())


def measure(name: str, options: dict[str, Any], repeats: int, clock: Callable[[], float]) -> list[dict[str, Any]]:
    """Time a window with torch and with both files in turn, then load each in a process of its own."""
    import torch

    from export.gates import generated_windows
    from export.runtime import Session

    module, windows = deployed(name, options), generated_windows(64)
    x = torch.from_numpy(windows[:1].copy())

    def eager() -> object:
        with torch.inference_mode():
            return module(x)[0].softmax(dim=1).numpy()

    with tempfile.TemporaryDirectory() as folder:
        paths = files(name, module, Path(folder))
        sessions = {kind: Session.load(paths[kind]) for kind in ("float32", "int8")}
        functions: dict[str, Callable[[], object]] = {"torch eager": eager}
        functions |= {f"ONNX {kind}": partial(each.predict, windows[:1]) for kind, each in sessions.items()}
        timings = interleaved(functions, repeats, warmups=20, clock=clock, collect=False)
        alone = {kind: _alone(name, options, path) for kind, path in paths.items()}
    reference = timings["torch eager"]
    work = flops(module)
    rows = []
    for label, kind in (("torch eager", "torch"), ("ONNX float32", "float32"), ("ONNX int8", "int8")):
        rows.append(_row(name, label, timings[label], reference, work) | alone[kind])
    return rows


def _row(name: str, label: str, timing: Timing, reference: Timing, work: int) -> dict[str, Any]:
    percents = {f"p{each} ms": 1e3 * timing.percentile_s(each) for each in (50, 95, 99)}
    times = reference.median_s / timing.median_s
    return {"model": name, "by": label, **percents, "× torch": times, "GFLOP/s": work / timing.median_s / 1e9}


def _alone(name: str, options: dict[str, Any], path: Path) -> dict[str, float]:
    """Load the file in processes of their own; return median load time and resident memory."""
    command = [sys.executable, __file__, "--alone", json.dumps([name, options, str(path)])]
    found = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(3)]
    load, resident = (sorted(each[n] for each in found)[1] for n in range(2))
    return {"load ms": 1e3 * load, "resident MB": resident}


def alone(name: str, options: dict[str, Any], path: str) -> None:
    """Load one file, classify one window, and print how long the load took and what is resident then."""
    from export.gates import generated_windows

    window = generated_windows(1)
    if path.endswith(".onnx"):
        from export.runtime import Session

        start = time.process_time()
        Session.load(path).predict(window)
    else:
        import torch

        from models import build  # not the exporter, which brings ONNX with it

        torch.set_num_threads(1)
        start = time.process_time()
        module = build(name, classes=len(LABELS), **options).eval()
        module.load_state_dict(torch.load(path, weights_only=True))
        with torch.inference_mode():
            module(torch.from_numpy(window))
    print(json.dumps([time.process_time() - start, resident_mb()]))


def main() -> None:
    """Measure, print a table, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=400, help="windows of each")
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=list(MODELS))
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="process", help="wall only where nothing else runs")
    parser.add_argument("--out", type=Path, help="where the figures are written as JSON")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        alone(*json.loads(given.alone))
        return
    with torch_threads(1):
        rows = [row for name in given.models for row in measure(name, MODELS[name], given.repeats, CLOCKS[given.clock])]
    rate = matmul_rate(1, clock=time.process_time)
    report(
        f"One window, one thread, {given.clock} time",
        [row | {"of matmul": 1e9 * row["GFLOP/s"] / rate} for row in rows],
        out=given.out,
        packages=("torch", "onnx", "onnxruntime"),
        more={"GFLOP/s of a float32 matmul on one thread": rate / 1e9},
    )


if __name__ == "__main__":
    main()
