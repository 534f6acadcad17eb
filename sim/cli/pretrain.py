"""The command `pretrain`: masked reconstruction in one place, which is a run like any other.

Ek et al., FedAli, 2024, arXiv 2411.10595, section 5 'Pretraining' and appendix E: Adam 3e-4, batches of 128, 200
epochs, 60 % of the patches masked; the network is `models.mae`. Differs from the paper, which does not say what moves
ALP's global prototypes without a server: an epoch is a round, in which FedAli's server has one client, so that
P_g ← P_l after each. As in every run Adam begins each round afresh.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gaitway.tasks.masked_reconstruction import MaskedReconstructionTask
from sim.cli.options import describe
from sim.cli.run import Paths, simulate
from sim.cli.terminal import cli_errors, console
from sim.presets import with_defaults
from sim.presets.preset import UNSCREENED
from sim.run_options import RunOptions

_WITHOUT_ALP: RunOptions = {"method": "centralized"}
_WITH_ALP: RunOptions = {"method": "fedali", "partition": "equal"}
_ONE_CLIENT = ("partition.clients=1", "beta_warmup_rounds=0")


def pretrain(
    out: Annotated[
        Path,
        typer.Option(
            help="The checkpoint to write; the run, with its report, lies in a folder of that name without the suffix, "
            "and the same command resumes it after a crash."
        ),
    ],
    data: Annotated[str, typer.Option(help="Recordings, such as pretraining or motionsense+ucihar.")] = "pretraining",
    data_root: Annotated[
        Path | None, typer.Option(help="Folder or archive of the recordings; only generated data need none.")
    ] = None,
    cache: Annotated[Path, typer.Option(help="Where processed windows are kept.")] = Path(".cache/windows"),
    model: Annotated[str, typer.Option(help="hart or hart_alp.")] = "hart",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="model.KEY, task.KEY, data.KEY or pipeline.KEY, as `run` takes them; repeatable."),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1)] = 200,
    batch: Annotated[int, typer.Option(min=1)] = 128,
    lr: Annotated[float, typer.Option(help="Learning rate of Adam.")] = 3e-4,
    seed: Annotated[int, typer.Option(help="One seed repeats a run.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: Annotated[int, typer.Option(min=1, help="Torch's threads.")] = 1,
) -> None:
    """Pretrain HART on windows without their labels in one place, for `sim run --init FILE`.

    It stands for `sim run --task masked_reconstruction --method centralized`; any other method that shares parameters
    pretrains as a federation, and `sim run --init DIR` starts from its run.

    For example: python -m sim pretrain --data motionsense+ucihar --data-root ../shared/data --model hart_alp
    --epochs 20 --out runs/pretrained.safetensors
    """
    from gaitway.files import write_file
    from models.registry import alp_models
    from sim.networks.initialization import global_model_of

    has_alp = model in alp_models()
    given: RunOptions = {
        **(_WITH_ALP if has_alp else _WITHOUT_ALP),
        "task": MaskedReconstructionTask.name, "data": data, "model": model, "optimizer": "adam", "lr": lr,
        "rounds": epochs, "epochs": 1, "batch": batch, "seed": seed, "device": device, "threads": threads,
        "set": [*UNSCREENED, *(_ONE_CLIENT if has_alp else ()), *(set_ or [])],
    }  # fmt: skip
    folder = out.with_suffix("") if out.suffix else out.with_name(out.name + ".run")
    with cli_errors():
        simulate(describe(with_defaults(None, given), None, None), Paths(folder, data_root, cache, None), 60.0)
        out.parent.mkdir(parents=True, exist_ok=True)
        write_file(out, global_model_of(folder).read_bytes())
        console.print(f"Weights: [bold]{out}[/bold]; start a federation from them with --init")
