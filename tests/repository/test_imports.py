"""Who may import whom: the table of the design, held against every import of the source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import pytest

from tests.repository.imports import PACKAGES, Import, all_imports, imports_in, modules

TRAINER = ("federation.training.local_round", "federation.training.client_round", "federation.training.prediction")


EVERYWHERE = (
    "gaitway.command_line",
    "gaitway.errors",
    "gaitway.own_packages",
    "gaitway.files",
    "gaitway.input_spec",
    "gaitway.interrupts",
    "gaitway.images",
    "gaitway.plain_text",
    "gaitway.logs",
    "gaitway.plugins",
    "gaitway.terminal",
    "gaitway.python310",
    "gaitway.secret_fields",
    "gaitway.strict_numbers",
    "gaitway.tasks",
    "gaitway.threads",
    "gaitway.window_cache",
)
"""For every package: the root of errors, the atomic write, what a network takes, images, text and numbers from
outside, tasks, what commands print to and end with, Ctrl-C, what Python 3.10 lacks, threads that do not end unheard,
TOML as it is written, and where windows are kept."""


@dataclass(frozen=True)
class Rule:
    """What modules may import besides the standard library and what lies below their own rule's name."""

    ours: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    never: tuple[str, ...] = ()  # parts of `ours` that are out of bounds all the same

    def allows(self, entry: Import) -> bool:
        if entry.top not in PACKAGES:
            return entry.top in self.outside
        return _below(entry.target, (*EVERYWHERE, *self.ours)) and not _below(entry.target, self.never)


PROGRAM_WITHOUT_TORCH = Rule(
    (
        *(f"export.program.{name}" for name in ("manifest", "archive", "runtime")),
        *("export.runtime", "federation.plan", "federation.seeds", "federation.errors"),
        *("federation.training.schedule", "federation.training.window_changes"),
    ),
    ("numpy", "onnxruntime", "pydantic"),
)

# The design's table; the longest name that a module lies below decides.
TABLE = {
    "gaitway": Rule(),  # it finds the programs by their names, and loads the one that is wanted
    "gaitway.python310": Rule((), ("tomli", "typing_extensions")),
    "gaitway.secret_fields": Rule((), ("pydantic",)),
    "har_pipeline": Rule((), ("numpy", "scipy", "pandas")),
    "models": Rule((), ("torch",)),
    "federation": Rule((), ("torch", "numpy", "scipy", "safetensors")),
    # its gates compare by the task's own metric
    "export": Rule(
        ("models", "federation.tasks", "federation.records", "federation.errors"), ("torch", "onnx", "onnxruntime")
    ),
    "export.runtime": Rule((), ("numpy", "onnxruntime")),
    # programs are made of the code of a device with torch,
    "export.program": Rule(("export.runtime", "federation", "models"), ("torch", "onnx")),
    # and are checked and run where torch is not installed
    **{f"export.program.{name}": PROGRAM_WITHOUT_TORCH for name in ("manifest", "archive")},
    **{f"export.program.{name}": PROGRAM_WITHOUT_TORCH for name in ("runtime", "host", "standalone")},
    # what runs where torch is not installed: samples in, answers out
    "export.recognizer": Rule(("export.runtime", "har_pipeline"), ("numpy",)),
    "export.recording_files": Rule(("export.runtime", "har_pipeline"), ("numpy",)),
    "export.images": Rule(("export.runtime",), ("numpy", "PIL")),
    "phone": Rule(),  # files that the server serves
    # imported by no program
    "phone.generate": Rule(
        (
            *("export.program", "federation.plan", "federation.protocol.messages", "phone"),
            *("federation.secure_sums.messages", "federation.secure_sums.live", "federation.rounds.gains"),
            "gaitway.views",
        ),
        ("pydantic",),
    ),
    "edge_agent": Rule(("federation", "har_pipeline", "models", "export.runtime"), ("paho", "numpy", "onnxruntime")),
    # inside the agent: the state machine has no I/O, sensors know no server, nothing below the supervisor knows it
    "edge_agent.machine": Rule(("federation", "har_pipeline")),
    "edge_agent.config": Rule(("edge_agent.errors", "federation", "har_pipeline")),
    "edge_agent.supervisor.conditions": Rule(("edge_agent.config", "edge_agent.machine.events")),
    "edge_agent.storage": Rule(("edge_agent.config", "edge_agent.errors", "federation", "har_pipeline"), ("numpy",)),
    "edge_agent.transport": Rule(
        ("edge_agent.config", "edge_agent.errors", "edge_agent.machine.events", "edge_agent.storage", "federation"),
        ("paho",),
    ),
    "edge_agent.sensors": Rule(
        (
            "edge_agent.config",
            "edge_agent.errors",
            "edge_agent.http_server",
            "edge_agent.machine.events",
            "edge_agent.storage",
            "edge_agent.training.local_data",
            "federation",
            "har_pipeline",
        ),
        ("paho", "numpy"),
    ),
    "edge_agent.transport.home_assistant": Rule(
        ("edge_agent.config", "edge_agent.errors", "edge_agent.storage", "edge_agent.transport.server_connection"),
        ("paho",),
    ),
    # the page calls what the commands call; it knows neither the supervisor nor the way to the server
    "edge_agent.page": Rule(
        (
            "edge_agent.config",
            "edge_agent.doctor",
            "edge_agent.errors",
            "edge_agent.http_server",
            "edge_agent.serving",
            "edge_agent.supervisor.status",
            "edge_agent.storage",
            "edge_agent.teaching",
            "gaitway.views",
            "har_pipeline",
        ),
        ("numpy",),
    ),
    # lessons, and the head that they give: without the supervisor, and without torch
    "edge_agent.teaching": Rule(
        (
            "edge_agent.config",
            "edge_agent.errors",
            "edge_agent.serving",
            "edge_agent.storage",
            "edge_agent.training.local_data",
            "export.runtime",
            "federation",
            "har_pipeline",
        ),
        ("numpy",),
    ),
    "edge_agent.training": Rule(
        (
            "edge_agent.config",
            "edge_agent.errors",
            "edge_agent.machine",
            "edge_agent.storage",
            "export.runtime",
            *(f"export.program.{name}" for name in ("host", "manifest", "runtime", "standalone")),
            "federation",
            "har_pipeline",
            "models",
        ),
        ("numpy",),
    ),
    "edge_agent.serving": Rule(
        (
            "edge_agent.config",
            "edge_agent.errors",
            "edge_agent.machine",
            "edge_agent.storage",
            "edge_agent.training.comparison",
            "edge_agent.training.cross_validation",
            "edge_agent.training.job",
            "edge_agent.training.local_data",
            "export.runtime",
            "federation",
            "har_pipeline",
        ),
        ("numpy", "onnxruntime"),
    ),
    "aggregator_api": Rule(
        ("federation", "models"), ("fastapi", "uvicorn", "sqlalchemy", "alembic", "paho", "aiomqtt"), TRAINER
    ),
    "sim": Rule(("federation", "models", "har_pipeline"), ("torch", "matplotlib", "rich", "ray")),
}

# The floors of the server: what each of its folders may import of the others. What stands beside them sees all.
FLOORS = {
    "storage": (),
    "auth": ("storage",),
    "operations": ("auth", "storage"),
    "transport.mqtt": ("operations", "storage"),
    "rollouts": ("storage",),
    "devices": ("auth", "storage"),
    "rounds.updates": ("auth", "devices", "rollouts", "storage"),
    "rounds": ("auth", "devices", "operations", "rollouts", "storage"),
    "federations": ("operations", "rollouts", "rounds", "storage"),
    "transport.device_http": ("auth", "operations", "rounds", "storage", "transport.mqtt"),
    "maintenance": ("auth", "devices", "federations", "operations", "rollouts", "rounds", "storage"),
    "notifications": ("auth", "devices", "operations", "storage"),
    "runtime": (
        *("auth", "devices", "federations", "maintenance", "operations", "rollouts", "rounds", "storage"),
        "transport",
    ),
    "http.queries": ("auth", "devices", "federations", "rollouts", "rounds.updates", "storage"),
    "http.api": (
        *("auth", "devices", "federations", "maintenance", "notifications", "operations", "rollouts", "rounds.updates"),
        *("storage", "transport.device_http", "http.dependencies", "http.event_feed", "http.queries"),
    ),
    # pages and REST read through the same queries: pages import nothing of REST
    "http.web": (
        *("auth", "devices", "federations", "notifications", "operations", "rollouts", "storage"),
        *("http.dependencies", "http.event_feed", "http.queries"),
    ),
}
GROUND = ("core",)
for _floor, _below_it in FLOORS.items():
    TABLE[f"aggregator_api.{_floor}"] = replace(
        TABLE["aggregator_api"],
        ours=(*TABLE["aggregator_api"].ours, *(f"aggregator_api.{name}" for name in (*GROUND, *_below_it))),
    )

# The floors of the other packages: what each folder may import of its own package. Below federation.methods nothing
# knows the table of methods, below sim.reports and sim.cli nothing knows what people see, but for the listed places.
INSIDE = {
    "har_pipeline": {
        "signals": ("recording", "units"),
        "streaming": ("errors", "recording", "settings", "signals"),
        "readers": ("apps", "description", "errors", "recording", "settings", "streaming", "units"),
        "description": ("errors", "readers", "recording", "signals", "streaming.interpolate", "units"),
        "apps": ("description", "errors", "readers", "recording"),
    },
    "models": {"layers": ("errors", "model"), "image": ("errors", "layers", "model")},
    "federation": {
        "protocol": ("errors", "plan", "rounds.gains"),
        "tasks": ("errors", "plan.strict", "records"),
        "aggregation": ("errors", "method", "plan", "records", "seeds", "tasks"),
        "privacy": ("errors", "method", "plan", "records", "seeds"),
        "rounds": ("aggregation", "errors", "method", "plan", "seeds"),
        "secure_sums": (
            *("aggregation", "errors", "method", "plan", "privacy", "protocol", "records", "rounds.gains", "wire"),
        ),
        "training": ("aggregation", "errors", "method", "plan", "privacy", "records", "seeds", "tasks"),
        "wire": ("aggregation", "errors", "method", "plan", "protocol", "records"),
    },
    "sim": {
        "experiment": ("errors",),
        "data": ("errors", "experiment"),
        "presets": ("data", "errors", "experiment"),
        "engines": ("errors", "experiment"),
        "attacks": ("data", "errors", "experiment"),
        "scores": ("data", "engines", "errors", "experiment"),
        "rounds": ("attacks", "data", "engines", "errors", "experiment", "scores"),
        "results": ("data", "errors", "experiment", "rounds", "scores"),
        "sweep": ("data", "engines", "errors", "experiment", "presets.exhibits", "results", "run", "scores"),
        "privacy_attacks": (
            *("data", "engines", "errors", "experiment", "results.run_directory", "rounds.checkpoint", "run"),
        ),
        "reports": (
            *("data", "errors", "experiment", "privacy_attacks", "results", "rounds.analyses", "run", "scores"),
            "sweep",
        ),
    },
}
for _package, _folders in INSIDE.items():
    for _folder, _below_it in _folders.items():
        TABLE[f"{_package}.{_folder}"] = replace(
            TABLE[_package],
            ours=(
                *(name for name in TABLE[_package].ours if name != _package),
                *(f"{_package}.{name}" for name in _below_it),
            ),
        )
TABLE["federation.protocol"] = replace(TABLE["federation.protocol"], outside=())

# Where the code departs from the table, and why.
VALIDATES = "pydantic validates what comes from outside"
ARRAYS = "arrays for scores, plots and windows"
ALSO_OUTSIDE = {
    "gaitway.tasks": {"numpy": ARRAYS},
    "gaitway.terminal": {"rich": "tables, colours and progress bars"},
    "gaitway.command_line": {"typer": "what the command lines share"},
    "gaitway.completion": {"typer": "what shells ask is answered by typer"},
    "gaitway.images": {"numpy": ARRAYS, "PIL": "JPEG and PNG files"},
    "federation": {"pydantic": VALIDATES, "zstandard": "the wire offers zstd"},
    "federation.protocol.arrays": {"numpy": ARRAYS, "safetensors": "the wire's bytes"},
    "federation.protocol.wire_format": {"safetensors": "the wire's bytes"},
    "federation.privacy": {"dp_accounting": "a maintained accountant of ε"},
    "federation.secure_sums": {"cryptography": "key agreement, masks, encryption and signatures"},
    "har_pipeline.description": {"pydantic": VALIDATES},
    "models.checkpoint": {"safetensors": "checkpoints are safetensors"},
    "export": {"numpy": "windows and logits at ONNX Runtime's border"},
    "export.program.parity": {"rich": "the command's table"},
    "edge_agent": {"pydantic": VALIDATES},
    "edge_agent.cli": {"typer": "the commands", "rich": "their tables"},
    "edge_agent.storage.credentials": {"cryptography": "the device's key pair"},
    "edge_agent.transport.enrolment": {"cryptography": "the device's signatures"},
    "edge_agent.transport.trust": {"cryptography": "the server's signatures"},
    "edge_agent.supervisor.conditions.readings": {"psutil": "load, memory and processes"},
    "sim.engines.client_store": {"psutil": "the memory that is free, on any system"},
    "edge_agent.training.torch_runtime": {"torch": "the training process with torch"},
    "edge_agent.training.limits": {"torch": "only the training process asks it for CUDA"},
    "edge_agent.storage.shared_sums": {"safetensors": "the sums of a broadcast, without torch"},
    "edge_agent.training.torch_files": {"torch": "only the training process imports it"},
    "aggregator_api": {
        "pydantic": VALIDATES,
        "starlette": "the part of FastAPI that has the middleware, thread pool and error classes",
        "anyio": "starlette's threads, with limits of their own",
    },
    "aggregator_api.core.notification_settings": {"pydantic_settings": "a part of the settings"},
    "aggregator_api.core.settings": {"pydantic_settings": "settings from TOML and the environment"},
    "aggregator_api.storage.blobs": {"fsspec": "the design's blob store"},
    "aggregator_api.transport.mqtt.mosquitto": {"cryptography": "the authority's and the broker's certificates"},
    "aggregator_api.transport.mqtt.embedded_broker": {"amqtt": "the embedded broker of the demo and the tests"},
    "aggregator_api.operations.metrics": {"prometheus_client": "figures in Prometheus's format"},
    "aggregator_api.http.api.routes.operations": {"prometheus_client": "the format's media type"},
    "aggregator_api.operations.counts": {"prometheus_client": "histograms"},
    "aggregator_api.storage.db.database": {"psycopg": "how text is written for PostgreSQL, where that is the database"},
    "aggregator_api.rounds.updates.contract": {"torch": "dtypes and shapes of what an update must hold"},
    "aggregator_api.http.queries.comparisons": {"scipy": "quantiles of Student's t"},
    "aggregator_api.rounds.aggregation": {"numpy": "the generator of secret noise"},
    "aggregator_api.rounds.updates.screening": {"torch": "counts that an update holds as tensors"},
    "aggregator_api.cli.devices": {"typer": "the commands `devices`"},
    "aggregator_api.devices.enrolment_tokens": {"segno": "QR codes"},
    "aggregator_api.http.web.pages": {
        "jinja2": "the pages' templates",
        "markupsafe": "what is no longer to be escaped",
    },
    "aggregator_api.http.web.routes.enrolment": {"segno": "QR codes", "markupsafe": "a code's drawing"},
    "aggregator_api.cli.storage": {"typer": "the commands `retention`, `versions`, …"},
    "aggregator_api.cli.rollouts": {"typer": "the commands `rollouts`"},
    "aggregator_api.cli.session": {"typer": "what the commands share", "rich": "their errors and tables"},
    "aggregator_api.cli.audit": {"typer": "the commands `audit`"},
    "aggregator_api.cli.keys": {
        "typer": "the commands `keys`, `tokens` and `vouch`",
        "cryptography": "the key that vouches for devices",
    },
    "aggregator_api.operations.health": {
        "cryptography": "when certificates end",
        "prometheus_client": "gauges that are read at each scrape",
    },
    "aggregator_api.auth.signing": {"cryptography": "ed25519"},
    "aggregator_api.federations.initial_state": {"torch": "the initial model"},
    "aggregator_api.federations.checkpoints": {"torch": "the weights that it starts from"},
    "aggregator_api.storage.findings": {"torch": "sums are tensors", "numpy": "a secure sum is whole numbers"},
    "aggregator_api.runtime": {"torch": "threads of the aggregation"},
    "aggregator_api.rounds.aggregation_worker": {"torch": "threads of the aggregation"},
    "sim": {"numpy": ARRAYS, "pydantic": VALIDATES},
    "sim.rounds.secure_rounds": {"cryptography": "identities of the simulated devices"},
    "sim.rounds.baselines": {"sklearn": "random forests and ridge regression"},
    "sim.reports.analysis.dots": {"sklearn": "t-SNE of features and prototypes"},
    "sim.data.images.image_files": {"PIL": "JPEG and PNG files of CelebA and of folders of images"},
    "sim.reports.run_result": {"pandas": "rounds and clients as a data frame"},
    "sim.results.mlflow": {"mlflow": "the tracker, imported where it is asked for"},
    "sim.reports.report": {"jinja2": "the HTML report"},
    "sim.data.other_phones": {"scipy": "a sensor at half the rate"},
    "sim.results.statistics": {"scipy": "paired tests, bootstrap intervals and ranks"},
    "sim.results.artifacts": {"safetensors": "images, masks and maps as bytes without pickle"},
    "sim.reports.figures.segmentation": {"scipy": "the regions of a mask, and their middles"},
}
ALSO_OURS = {
    "export.__main__": {
        "har_pipeline": "the recordings that `recognize` reads",
        "har_pipeline.description": "what says how their files are laid out",
        "har_pipeline.units": "the units in its help",
    },
    "sim.sweep.processes": {"sim.run": "whether a finished run's data and code are those of today"},
    "sim.reports.figures.partition": {"sim.reports.figures.style": "a figure of the partition in the report's colours"},
    "edge_agent.training.torch_files": {"export.onnx_export": "the exporter, only in the training process"},
    **{
        f"aggregator_api.{name}.service": {
            "aggregator_api.federations.service": "it finds a federation, or says that there is none"
        }
        for name in ("devices", "rollouts")
    },
    "aggregator_api.transport.mqtt.mosquitto.dynamic_security": {
        "aggregator_api.devices.service": "what enrolment needs of a broker, done by this one"
    },
    "aggregator_api.maintenance.revocations": {
        "aggregator_api.devices.service": "a device is revoked after a restore as it was before",
        "aggregator_api.devices.contributions": "and what it withdrew is taken out again",
        "aggregator_api.maintenance.retention": "and deleted likewise",
    },
    "aggregator_api.maintenance.fsck": {"aggregator_api.auth.signing": "whether the server's key can be read"},
    "aggregator_api.maintenance.backup": {"aggregator_api.auth.api_keys": "the operator's key is a part of it"},
    "aggregator_api.federations.exports": {"har_pipeline": "the input of an exported model, where one is made"},
    "aggregator_api.http.web.phone": {"phone": "the files that it serves", "gaitway.views": "and those of all pages"},
    "federation.secure_sums.live": {"federation.methods": "which of all methods a phone has summands of"},
}
COMMAND_LINES = ("typer", "rich")  # in the modules and folders of these names, in every package
COMMAND_LINE_MODULES = ("__main__", "cli")


def _below(name: str, roots: Iterable[str]) -> bool:
    return any(name == root or name.startswith(f"{root}.") for root in roots)


def rule_for(module: str) -> Rule:
    """Return the rule of a module with the listed departures."""
    names = sorted((name for name in {*TABLE, *ALSO_OUTSIDE, *ALSO_OURS} if _below(module, [name])), key=len)
    own = max((name for name in names if name in TABLE), key=len)
    base = TABLE[own]
    outside = [package for name in names for package in ALSO_OUTSIDE.get(name, ())]
    ours = [package for name in names for package in ALSO_OURS.get(name, ())]
    shown = COMMAND_LINES if set(module.split(".")) & set(COMMAND_LINE_MODULES) else ()
    return replace(base, ours=(own, *base.ours, *ours), outside=(*base.outside, *outside, *shown))


def violations(entries: Iterable[Import]) -> list[str]:
    return [f"{e.module}:{e.line} imports {e.target}" for e in entries if not rule_for(e.module).allows(e)]


def test_the_source_keeps_to_the_table() -> None:
    assert violations(all_imports()) == []


def test_parts_of_the_server_know_their_collaborators_and_not_the_whole() -> None:
    importers = {entry.module for entry in all_imports() if _below(entry.target, ["aggregator_api.runtime"])}
    assert importers == {"aggregator_api.http.app", "aggregator_api.http.dependencies"}


def test_a_simulation_runs_without_its_reports() -> None:
    importers = {entry.module for entry in all_imports() if _below(entry.target, ["sim.reports"])}
    outside = [name for name in importers if not _below(name, ["sim.reports", "sim.cli"])]
    assert outside == ["sim"]  # what `simulate` returns writes its report, if it is asked to


@pytest.mark.parametrize("name", PACKAGES)
def test_every_package_was_read(name: str) -> None:
    assert any(f"{module}.".startswith(f"{name}.") for module in modules())


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("har_pipeline.streaming.windows", "import torch"),
        ("har_pipeline.streaming.windows", "import gaitway.__main__"),
        ("gaitway.errors", "import numpy"),
        ("har_pipeline.streaming.windows", "def late():\n    import torch.nn.functional as f"),
        ("har_pipeline.streaming.windows", "import importlib\nimportlib.import_module('torch')"),
        ("models.hart", "from federation.plan import Plan"),
        ("federation.wire", "import paho.mqtt.client"),
        ("federation.wire", "import models"),
        ("export.runtime", "from export import errors_of_torch"),
        ("export.runtime", "import torch"),
        ("edge_agent.supervisor.supervisor", "import torch"),
        ("edge_agent.supervisor.supervisor", "from export import to_onnx"),
        ("edge_agent.machine.rounds", "from edge_agent.storage.state_store import StateStore"),
        ("edge_agent.machine.rounds", "import numpy"),
        ("edge_agent.sensors.files", "from edge_agent.transport.mqtt import Broker"),
        ("edge_agent.sensors.files", "from edge_agent.supervisor.supervisor import Supervisor"),
        ("edge_agent.storage.labels", "from edge_agent.serving.model_registry import ModelRegistry"),
        ("aggregator_api.federations.service", "from federation.training import local_round"),
        ("aggregator_api.federations.service", "from federation.training.client_round import train_one"),
        ("aggregator_api.federations.service", "import har_pipeline.streaming.windows"),
        ("aggregator_api.http.queries.listings", "from aggregator_api.transport.mqtt.client import MqttDriver"),
        ("aggregator_api.rounds.coordinator", "from aggregator_api.http.queries import listings"),
        ("aggregator_api.federations.service", "from aggregator_api.runtime import Runtime"),
        ("aggregator_api.http.api.routes.models", "from aggregator_api.runtime import Runtime"),
        ("aggregator_api.federations.service", "from aggregator_api.http.queries.resources import Page"),
        ("aggregator_api.storage.db.models", "from aggregator_api.rounds import coordinator"),
        ("aggregator_api.devices.service", "from aggregator_api import app"),
        ("sim.engine", "from fastapi import FastAPI"),
        ("sim.engines.serial", "from sim.rounds.simulation import Simulation"),
        ("sim.data.selection", "from sim.reports.report import write_report"),
        ("federation.training.local_round", "from federation.methods import METHODS"),
        ("federation.protocol.messages", "import torch"),
        ("har_pipeline.streaming.windows", "from har_pipeline.readers import READERS"),
        ("sim.engine", "from edge_agent.machine.agent import Agent"),
        ("federation.methods.fedavg", "from ..server_round import typer\nimport typer"),
    ],
)
def test_the_rule_finds_a_forbidden_import(module: str, source: str) -> None:
    within = module.rpartition(".")[0]
    assert violations(entry for entry in imports_in(module, source, within) if entry.top != "importlib")


@pytest.mark.parametrize("table", [ALSO_OUTSIDE, ALSO_OURS], ids=["outside", "ours"])
def test_each_departure_is_still_needed(table: dict[str, dict[str, str]]) -> None:
    for name, packages in table.items():
        for package in packages:
            assert any(_below(e.module, [name]) and _below(e.target, [package]) for e in all_imports()), (name, package)
