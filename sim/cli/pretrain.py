"""The command `pretrain`: centralized masked reconstruction, which is a run like any other.

Ek et al., FedAli, 2024, arXiv 2411.10595, section 5 'Pretraining' and appendix E: Adam 3e-4, batches of 128, 200
epochs; the network is `models.mae`, which says how much of a window is masked. All windows are trained on, so there is
no score: a round's line has the loss. Differs from the paper, which does not say what moves ALP's global prototypes
without a server: an epoch is a round, in which FedAli's server has one client, so that P_g ← P_l after each. As in
every run Adam begins each round afresh.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from gaitway.tasks.masked_reconstruction import MaskedReconstructionTask
from gaitway.window_cache import default_cache_dir
from sim.cli.command import CacheOption, cli_errors, console, taking
from sim.cli.options import describe
from sim.cli.run import simulate
from sim.presets import preset_named, with_defaults
from sim.presets.preset import UNSCREENED

_WITHOUT_ALP = {"method": "centralized"}
_WITH_ALP = {"method": "fedali", "partition": "equal"}
_ONE_CLIENT = ("partition.clients=1", "partition.test=split", "partition.test_share=0", "beta_warmup_rounds=0")
_ALL_WINDOWS = ("data.test_share=0",)
"""And `validation_share` 0: nothing is held out of what has no labels."""
_DEFAULT_DATA, _DEFAULT_MODEL = "pretraining", "hart"


@dataclass(frozen=True)
class PretrainArguments:
    """The options of `pretrain`."""

    out: Annotated[
        Path,
        typer.Option(
            help="The checkpoint to write. The run and its report are in a folder of that name without the suffix; "
            "the same command resumes after a crash."
        ),
    ]
    for_: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="PRESET",
            help="The preset that will start from these weights. It sets the windows' normalization, resampling and "
            "filter, the network's options, and --data; `sim run --init` refuses other windows. Default: as for "
            "a run without a preset.",
        ),
    ] = None
    data: Annotated[
        str | None,
        typer.Option(
            help="Recordings, such as motionsense+ucihar. Training uses all their windows. Default: those of the "
            "preset in --for, or else {_DEFAULT_DATA}."
        ),
    ] = None
    data_root: Annotated[
        Path | None, typer.Option(help="Folder or archive of the recordings; not needed for generated data.")
    ] = None
    cache: CacheOption = None
    model: Annotated[str, typer.Option(help="hart or hart_alp.")] = _DEFAULT_MODEL
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="model.KEY, task.KEY, data.KEY or pipeline.KEY, as in `run`; repeatable. task.masked=0.6, the "
            "default, hides 4 of a window's 8 patches, task.masked=0.625 hides 5; data.normalization=federated "
            "normalizes for a run of that normalization without a preset.",
        ),
    ] = None
    epochs: Annotated[int, typer.Option(min=1)] = 200
    batch: Annotated[int, typer.Option(min=1)] = 128
    lr: Annotated[float, typer.Option(help="Learning rate of Adam.")] = 3e-4
    seed: Annotated[int, typer.Option(help="One seed repeats a run.")] = 0
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu"
    threads: Annotated[int, typer.Option(min=1, help="Torch's threads.")] = 1


@taking(PretrainArguments)
def pretrain(args: PretrainArguments) -> None:
    """Pretrain HART on pooled windows without labels, for `sim run --init FILE`.

    It is short for `sim run --task masked_reconstruction --method centralized` on all windows. Any other method that
    shares parameters pretrains as a federation, and `sim run --init DIR` starts from its run.

    For example: python -m sim pretrain --for ucihar-hart-pretrained --data-root ../shared/data --epochs 20
    --out runs/pretrained.safetensors
    """
    from gaitway.files import write_file
    from models.registry import alp_models
    from sim.experiment.initialization import global_model_of
    from sim.run import Places

    has_alp = args.model in alp_models()
    folder = args.out.with_suffix("") if args.out.suffix else args.out.with_name(args.out.name + ".run")
    with cli_errors():
        plan, recordings = _of_preset(args.for_, args.model) if args.for_ else ({"set": []}, _DEFAULT_DATA)
        given: dict[str, Any] = {
            **plan, **(_WITH_ALP if has_alp else _WITHOUT_ALP),
            "task": MaskedReconstructionTask.name, "data": args.data or recordings, "model": args.model,
            "optimizer": "adam", "lr": args.lr, "rounds": args.epochs, "epochs": 1, "batch": args.batch,
            "seed": args.seed, "device": args.device, "threads": args.threads, "validation_share": 0.0,
            "set": [*UNSCREENED, *_ALL_WINDOWS, *(_ONE_CLIENT if has_alp else ()), *plan["set"], *(args.set_ or [])],
        }  # fmt: skip
        places = Places(args.data_root, args.cache or default_cache_dir())
        simulate(describe(with_defaults(None, given), None, None), folder, places)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        write_file(args.out, global_model_of(folder).read_bytes())
        console.print(f"Weights: [bold]{args.out}[/bold]; start a federation from them with --init")


def _of_preset(name: str, model: str) -> tuple[dict[str, Any], str]:
    """Return the settings that a pretraining takes from its preset, and the preset's recordings.

    Raises:
        SettingsError: for an unknown preset.
    """
    preset = preset_named(name)
    return preset.pretraining_options(model), preset.pretraining or _DEFAULT_DATA
