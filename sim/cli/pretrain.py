"""The command `pretrain`."""

from __future__ import annotations

from functools import reduce
from operator import add
from pathlib import Path
from typing import Annotated

import typer

from sim.cli.terminal import bar, cli_errors, console


def pretrain(
    out: Annotated[Path, typer.Option(help="The checkpoint to write; the same command resumes it after a crash.")],
    data: Annotated[str, typer.Option(help="Recordings, such as pretraining or motionsense+ucihar.")] = "pretraining",
    data_root: Annotated[Path | None, typer.Option(help="Folder or archive of the recordings.")] = None,
    cache: Annotated[Path, typer.Option(help="Where processed windows are kept.")] = Path(".cache/windows"),
    model: Annotated[str, typer.Option(help="hart or hart_alp.")] = "hart",
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="model.KEY, data.KEY or pipeline.KEY; repeatable.")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1)] = 200,
    batch: Annotated[int, typer.Option(min=1)] = 128,
    lr: Annotated[float, typer.Option(help="Learning rate of Adam.")] = 3e-4,
    seed: Annotated[int, typer.Option(help="One seed repeats a run.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: Annotated[int, typer.Option(min=1, help="Torch's threads.")] = 1,
) -> None:
    """Pretrain HART on windows without their labels, for `sim run --init FILE`.

    For example: python -m sim pretrain --data motionsense+ucihar --data-root ../shared/data --model hart_alp
    --epochs 20 --out runs/pretrained.safetensors
    """
    import torch

    from sim.cli.options import build_experiment, dataset_options
    from sim.data.federated_data import joined
    from sim.data.sources import source_named
    from sim.presets import with_defaults
    from sim.pretraining import PretrainingSettings
    from sim.pretraining import pretrain as train
    from sim.run import load_data

    with cli_errors():
        given = {"data": data, "model": model, "seed": seed, "device": device, "set": set_ or []}
        options = with_defaults(None, given)
        labels = source_named(data).labels(dataset_options(options["set"]))
        run = build_experiment(options, labels, None)
        torch.set_num_threads(threads)
        examples = load_data(run, data_root, cache, None)
        x = joined([client.train for client in examples.clients.values()]).x
        statistics = reduce(add, examples.statistics.values())
        settings = PretrainingSettings(
            data=data, model=run.model, epochs=epochs, batch_size=batch, lr=lr, seed=seed, device=device
        )
        with bar(f"{model} on {len(x):,} windows of {data}", epochs) as (shown, task):

            def progress(epoch: int, loss: float) -> None:
                shown.update(task, completed=epoch, description=f"epoch {epoch} loss {loss:.4f}")

            train(settings, x, labels, statistics, out, progress)
        console.print(f"Weights: [bold]{out}[/bold]; start a federation from them with --init")
