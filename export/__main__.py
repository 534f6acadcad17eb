"""`python -m export`: a checkpoint becomes an ONNX file, if it passes the gates."""

import json
import zipfile
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from export.gates import MIN_EXAMPLES
from export.onnx_export import ExportReport, export_onnx, metadata_of
from export.runtime import ExportError, InputError
from export.sample_examples import generated_examples
from gaitway.input_spec import InputSpec
from models.checkpoint import load_checkpoint
from models.errors import ModelError

app = typer.Typer(add_completion=False)


@app.command()
def export(
    checkpoint: Annotated[Path, typer.Option(help="A .safetensors checkpoint of sim or of the agent.")],
    out: Annotated[Path, typer.Option(help="The ONNX file to write; int8 goes beside it as *.int8.onnx.")],
    int8: Annotated[bool, typer.Option("--int8", help="Also write and gate an int8 version.")] = False,
    examples: Annotated[
        Path | None,
        typer.Option(help="Raw examples for the gates: an .npz with x (n, …) and, if known, y (n,)."),
    ] = None,
    allow_few: Annotated[bool, typer.Option("--allow-few", help=f"Accept fewer than {MIN_EXAMPLES} examples.")] = False,
    report: Annotated[Path | None, typer.Option(help="Also write the report as JSON to this file.")] = None,
) -> None:
    """Export a checkpoint to one self-describing ONNX file.

    The file takes raw examples (windows in m/s² and rad/s, pixels from 0 to 1); normalisation is inside. It appears
    only if ONNX Runtime agrees with torch (|Δ logits| ≤ 1e-4 and the same class on every example) and, with --int8,
    int8 with float32 (99 %).

    Example: python -m export --checkpoint runs/a/global.safetensors --out model.onnx --int8 --examples test.npz
    """
    console = Console()
    try:
        with console.status("exporting, and comparing ONNX Runtime with torch"):
            module, info = load_checkpoint(checkpoint)
            x, y, origin = _examples(examples, info.input)
            result = export_onnx(
                module, out, metadata=metadata_of(info), examples=x, labels=y, examples_from=origin,
                int8=int8, allow_few=allow_few,
            )  # fmt: skip
    except (ExportError, ModelError) as error:
        Console(stderr=True).print(f"export refused: {error}", style="red", markup=False)
        raise typer.Exit(1) from None
    console.print(_table(result))
    if report is not None:
        report.write_text(json.dumps(result.to_json(), indent=2) + "\n")


def _examples(path: Path | None, spec: InputSpec) -> tuple[NDArray[np.float32], NDArray[np.int64] | None, str]:
    if path is None:
        return generated_examples(spec, 2 * MIN_EXAMPLES), None, "generated (none were given)"
    try:
        content = np.load(path, allow_pickle=False)
        if not isinstance(content, np.lib.npyio.NpzFile):
            raise InputError(f"{path}: one array; expected an .npz with x {spec.in_words()}")
        with content as file:
            return file["x"], file.get("y"), str(path)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: expected an .npz with x {spec.in_words()}: {error}") from None


def _table(result: ExportReport) -> Table:
    table = Table(title=f"gates passed on {result.examples} examples, {result.examples_from}", show_header=False)
    for kind, file in (("float32", result.float32), ("int8", result.int8)):
        if file is not None:
            table.add_row(kind, f"{file.path}  {file.bytes / 1e6:.2f} MB  {file.latency_ms:.2f} ms an example")
    table.add_row("torch against ONNX", f"|Δ logits| {result.parity.max_logit_delta:.1e}, the same class on all")
    table.add_row(f"batches {result.batches}", f"|Δ logits| {result.parity.batch_delta:.1e}")
    if result.macro_f1 is not None:
        table.add_row("macro-F1", f"{result.macro_f1:.4f}")
    if result.alp is not None:
        scores = result.alp.macro_f1_row, result.alp.macro_f1_plan
        f1 = "" if None in scores else f"; macro-F1 {scores[0]:.4f} against {scores[1]:.4f}"
        table.add_row("ALP by row against by batch", f"same class on {result.alp.argmax_agreement:.2%}{f1}")
    if result.int8_quality is not None:
        quality = result.int8_quality
        f1 = "" if quality.macro_f1 is None else f"; macro-F1 {quality.macro_f1:.4f}"
        table.add_row("int8 against float32", f"same class on {quality.argmax_agreement:.2%}{f1}")
    return table


if __name__ == "__main__":
    app(prog_name="python -m export")
