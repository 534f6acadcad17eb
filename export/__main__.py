"""`python -m export`: exports checkpoints to ONNX if they pass the gates, and runs ONNX files on data.

Torch is imported only by the commands that need it: `recognize` and `predict` work without it.
"""

from __future__ import annotations

from gaitway.interrupts import begin_loading, run_program
from gaitway.own_packages import exit_if_hidden

if __name__ == "__main__":
    begin_loading()
    exit_if_hidden("har_pipeline", "models", "federation")

import importlib.util
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from rich.table import Table

from export.recognizer import Recognizer, Timeline
from export.recording_files import CsvColumns, read_recordings
from export.runtime import GateError, InputError, ModelMetadata, Session
from gaitway.command_line import CommandLine
from gaitway.errors import ExitCode, GaitwayError
from gaitway.own_packages import install_command
from gaitway.terminal import Console, print_error, working
from har_pipeline import Recording
from har_pipeline.description import read_description
from har_pipeline.units import ACC_UNITS, GYRO_UNITS, TIME_UNITS

if TYPE_CHECKING:
    from export.onnx_export import ExportReport

app = CommandLine(help="Turn a trained model into one self-describing ONNX file, and use such a file without torch.")


@app.command("onnx")
def onnx_command(
    checkpoint: Annotated[Path, typer.Option(help="A .safetensors checkpoint of sim or of the agent.")],
    out: Annotated[Path, typer.Option(help="The ONNX file to write; int8 is written next to it as *.int8.onnx.")],
    int8: Annotated[bool, typer.Option("--int8", help="Also write and gate an int8 version.")] = False,
    fixed_shapes: Annotated[
        bool,
        typer.Option(
            "--fixed-shapes",
            help="Also write and gate *.fixed.onnx, for phones' accelerators: one example at a time.",
        ),
    ] = False,
    examples: Annotated[
        Path | None,
        typer.Option(
            help="Raw examples for the gates: an .npz with x (n, …) and, if known, y (n,), or (n, height, width) "
            "where pixels have classes (default: generated)."
        ),
    ] = None,
    allow_few: Annotated[
        bool, typer.Option("--allow-few-examples", help="Accept fewer than 256 examples (16 for segmentation).")
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Also write the report as JSON to this file.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON, and everything else to stderr.")
    ] = False,
) -> None:
    """Export a checkpoint to one self-describing ONNX file.

    The file takes raw examples (windows in m/s² and rad/s, pixels from 0 to 1); normalization is inside. It is written
    only if ONNX Runtime agrees with torch (|Δ logits| ≤ 1e-4 and the same class on every example, or on 99.9% of the
    pixels for segmentation) and, with --int8, int8 agrees with float32 (99%, and within half a point of the score).

    Example: python -m export onnx --checkpoint runs/a/global.safetensors --out model.onnx --int8 --examples test.npz
    """
    from export.onnx_export import export_fixed_shapes, export_onnx, metadata_of
    from models.checkpoint import load_checkpoint

    console = Console(stderr=as_json)
    with _cli_errors(), working(Console(stderr=True), "exporting, and comparing ONNX Runtime with torch"):
        module, info = load_checkpoint(checkpoint)
        if info.fresh_head:
            raise InputError(
                f"{checkpoint} was pretrained without labels, so its head is untrained: start a federation with "
                f"labels from it (python -m sim run --init {checkpoint} …), and export that federation's model"
            )
        x, y, origin = _examples(examples, metadata_of(info))
        result = export_onnx(
            module, out, metadata=metadata_of(info), examples=x, labels=y, examples_from=origin,
            int8=int8, allow_few=allow_few,
        )  # fmt: skip
        if fixed_shapes:
            fixed = export_fixed_shapes(module, out, metadata=metadata_of(info), examples=x, allow_few=allow_few)
            result = replace(result, fixed=fixed)
    if as_json:
        print(json.dumps(result.to_json(), indent=2))
    else:
        console.print(_table(result))
    if report is not None:
        report.write_text(json.dumps(result.to_json(), indent=2) + "\n")


@app.command("program")
def program_command(
    plan: Annotated[Path, typer.Option(help="The federation's plan, TOML or JSON.")],
    out: Annotated[Path, typer.Option(help="The file to write, such as har.program.zip.")],
    examples: Annotated[
        Path | None,
        typer.Option(
            help="Examples for the gate, as network input: an .npz with x (n, …) and y (n,) (default: generated)."
        ),
    ] = None,
) -> None:
    """Write the device's half of a federation as ONNX graphs for training without torch.

    The file is written only if a round with it matches torch's: each tensor within ten times the rounding error, and
    with the same score.

    Example: python -m export program --plan plan.toml --out har.program.zip
    """
    from export.program.parity import write_program_file

    console = Console()
    with _cli_errors(), working(Console(stderr=True), "exporting, and training a round with both"):
        table = write_program_file(plan, out, examples)
    console.print(table)


@app.command()
def recognize(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(help="An ONNX file written by `python -m export onnx` or a device.")],
    csv: Annotated[
        list[str] | None,
        typer.Argument(
            help="CSV files with a header and samples of both sensors in each row; with --describe, files, folders "
            "and archives of any layout; - for standard input (default)."
        ),
    ] = None,
    describe: Annotated[
        Path | None,
        typer.Option(
            help="A description of the files, written by `python -m har_pipeline describe PATH` (default: the options "
            "below)."
        ),
    ] = None,
    time: Annotated[str, typer.Option(help="The column of the times.")] = "time",
    acc: Annotated[
        str, typer.Option(help="The accelerometer's columns, x, y and z; gravity included.")
    ] = "acc_x,acc_y,acc_z",
    gyro: Annotated[
        str,
        typer.Option(help="The gyroscope's columns; '' for models that were trained without one."),
    ] = "gyro_x,gyro_y,gyro_z",
    units: Annotated[
        str,
        typer.Option(
            help="The units of time, accelerometer and gyroscope: "
            f"one each of {', '.join(TIME_UNITS)}; {', '.join(ACC_UNITS)}; {', '.join(GYRO_UNITS)}."
        ),
    ] = "s,m/s2,rad/s",
    axes: Annotated[
        str,
        typer.Option(
            help="The sensor's axes for the device's x (right), y (up) and z (out of the screen), such as y,-x,z."
        ),
    ] = "x,y,z",
    acceleration: Annotated[
        str,
        typer.Option(
            help="Which way the accelerometer's numbers point: 'specific force' (face up, z is +9.8: Android, most "
            "boards), 'gravity points down' (−9.8: Apple) or 'without gravity'."
        ),
    ] = "specific force",
    separator: Annotated[str, typer.Option(help="Separator of cells.")] = ",",
    follow: Annotated[
        bool, typer.Option("--follow", help="Follow a growing file or a pipe, and answer immediately.")
    ] = False,
    per_window: Annotated[
        bool, typer.Option("--per-window", help="Print a line per window instead of per stretch.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object per window, with all probabilities.")
    ] = False,
) -> None:
    """Recognize activities in a recording or live: print a timeline with probabilities.

    Samples of any rate are filtered and cut into windows like the training data's, as the file specifies. Times are
    seconds since the first sample. Problems in the data are reported once, on standard error.

    Examples:

    python -m export recognize model.onnx walk.csv

    python -m export recognize model.onnx phone.csv --time t --units ms,g,deg/s

    python -m export recognize model.onnx recordings/ --describe data.toml

    python read_imu.py | python -m export recognize model.onnx - --follow --json
    """
    warn = Console(stderr=True)

    def note(words: str) -> None:
        warn.print(f"note: {words}", markup=False)

    with _cli_errors():
        if describe is None:
            description = CsvColumns(time, acc, gyro, units, axes, separator, acceleration).description()
        else:
            description = read_description(describe)
            _refuse_beside_describe(context)
        session = Session.load(model)
        names = csv or ["-"]
        for name in names:
            read = read_recordings(name, description, follow=follow, on_warning=note)
            is_empty = True
            for (client, visit), chunks in groupby(read, lambda chunk: (chunk.client, chunk.session)):
                is_empty = False
                is_named = bool(client) and (describe is not None or len(names) > 1)
                title = (f"{name}: " if describe is None else f"{client}, {visit}: ") if is_named else ""
                recognizer = Recognizer(session, live=follow, on_warning=partial(_note_on, title, note))
                timeline = Timeline(session.metadata.labels, per_window=per_window or follow, as_json=as_json)
                timeline.recording = {"client": client, "session": visit} if is_named else {}
                if is_named and not as_json:
                    typer.echo(title.strip())
                for line in _lines(chunks, recognizer, timeline):
                    typer.echo(line)
            if is_empty:
                raise InputError(f"{name} contains no samples; expected rows of numbers below the header")


def _note_on(title: str, note: Callable[[str], None], words: str) -> None:
    note(f"{title}{words}")


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="An image model's ONNX file, written by `python -m export onnx`.")],
    images: Annotated[list[Path], typer.Argument(help="Images of any size: JPEG, PNG, WebP or BMP.")],
    masks: Annotated[
        Path | None,
        typer.Option(
            help="A folder for a segmentation model's masks: PNG files of the images' sizes with class numbers as "
            "palette indices (default: write none)."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per image, with all shares.")] = False,
) -> None:
    """Classify or segment images: print each one's class and probability, or its pixels' classes and shares.

    Images are resized to the model's input (Lanczos), and masks back to the images' sizes (nearest neighbor).

    Examples:

    python -m export predict model.onnx cat.jpg

    python -m export predict model.onnx drive/*.jpg --masks masks
    """
    with _cli_errors():
        if importlib.util.find_spec("PIL") is None:
            raise InputError(f"images are read with Pillow, which is not installed: {install_command('runtime')}")
        from export.images import ImageRecognizer, mask_paths, write_mask

        session = Session.load(model)
        if masks is not None and not session.metadata.segments:
            raise InputError(f"--masks: {model} classifies whole images; leave out the option")
        targets = [None] * len(images) if masks is None else mask_paths(masks, images)
        answers = ImageRecognizer(session).predict_files(images)
        for (path, answer), target in zip(answers, targets, strict=True):
            if target is not None and answer.mask is not None:
                write_mask(target, answer.mask)
            shares = {label: float(share) for label, share in zip(session.metadata.labels, answer.shares, strict=True)}
            if as_json:
                made = {} if target is None else {"mask": str(target)}
                label = {} if answer.label is None else {"label": answer.label}
                typer.echo(json.dumps({"file": str(path), **label, "shares": shares, **made}))
                continue
            ranked = sorted(shares.items(), key=lambda row: -row[1])
            shown = ranked[:1] if answer.label is not None else [answer for answer in ranked if answer[1] >= 0.005]
            probabilities = ", ".join(f"{label} {share:.0%}" for label, share in shown)
            typer.echo(f"{path}: {probabilities}" + (f"  → {target}" if target is not None else ""))


def _lines(recordings: Iterable[Recording], recognizer: Recognizer, timeline: Timeline) -> Iterator[str]:
    try:
        for recording in recordings:
            if len(known := recording.times_s[np.isfinite(recording.times_s)]):
                timeline.begin(float(known[0]))
            push = recognizer.push_acc if recording.sensor == "acc" else recognizer.push_gyro
            for answer in push(recording.times_s, recording.values):
                yield from timeline.add(answer)
    except KeyboardInterrupt:
        if not recognizer.live:
            raise
    for answer in recognizer.flush():
        yield from timeline.add(answer)
    yield from timeline.end()


def _refuse_beside_describe(context: typer.Context) -> None:
    for name in ("time", "acc", "gyro", "units", "axes", "acceleration", "separator"):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise InputError(f"--describe already sets what --{name} sets; leave out one of them")


@contextmanager
def _cli_errors() -> Iterator[None]:
    """Turn our packages' errors into one red line; exit with 1 if a gate rejects the model, else with 2."""
    try:
        yield
    except GaitwayError as error:
        print_error(str(error))
        raise typer.Exit(ExitCode.FAILED if isinstance(error, GateError) else ExitCode.REFUSED) from None


def _examples(path: Path | None, metadata: ModelMetadata) -> tuple[NDArray[np.float32], NDArray[np.int64] | None, str]:
    from export.gates import generated_examples

    spec = metadata.input
    if path is None:
        return generated_examples(spec, 2 * metadata.answered.min_gate_examples), None, "generated (none were given)"
    try:
        content = np.load(path, allow_pickle=False)
        if not isinstance(content, np.lib.npyio.NpzFile):
            raise InputError(f"{path}: one array; expected an .npz with x {spec.describe()}")
        with content as file:
            return file["x"], file.get("y"), str(path)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: expected an .npz with x {spec.describe()}: {error}") from None


def _table(result: ExportReport) -> Table:
    table = Table(title=f"gates passed on {result.examples} examples, {result.examples_from}", show_header=False)
    for kind, file in (("float32", result.float32), ("int8", result.int8), ("fixed", result.fixed)):
        if file is not None:
            table.add_row(kind, f"{file.path}  {file.bytes / 1e6:.2f} MB  {file.latency_ms:.2f} ms an example")
    agreement = result.parity.argmax_agreement
    same = "on all" if agreement == 1 else f"at {agreement:.4%} of the pixels"
    table.add_row("torch against ONNX", f"|Δ logits| {result.parity.max_logit_delta:.1e}, the same class {same}")
    table.add_row(f"batches {result.batches}", f"|Δ logits| {result.parity.batch_delta:.1e}")
    if result.score is not None:
        table.add_row(result.metric, f"{result.score:.4f}")
    if result.alp is not None:
        scores = result.alp.score_row, result.alp.score_plan
        scored = "" if None in scores else f"; {result.metric} {scores[0]:.4f} against {scores[1]:.4f}"
        table.add_row("ALP by row against by batch", f"same class on {result.alp.argmax_agreement:.2%}{scored}")
    if result.int8_quality is not None:
        quality = result.int8_quality
        scored = "" if quality.score is None else f"; {result.metric} {quality.score:.4f}"
        table.add_row("int8 against float32", f"same class on {quality.argmax_agreement:.2%}{scored}")
    return table


if __name__ == "__main__":
    run_program(app, prog_name="python -m export")
