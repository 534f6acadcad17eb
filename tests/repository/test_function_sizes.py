"""Functions have at most 60 lines and take at most 6 parameters; the few that do not are listed with a reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.repository.imports import REPOSITORY, tracked

LINES, PARAMETERS = 60, 6
PACKAGES = (
    *("gaitway", "har_pipeline", "models", "federation", "edge_agent", "aggregator_api", "export", "phone", "sim"),
    *("demo", "deploy"),
)
OPTIONS = frozenset(
    {
        "aggregator_api/cli/devices.py:enrol",
        "edge_agent/cli/windows.py:label",
        "export/__main__.py:onnx_command",
        "export/__main__.py:recognize",
        "har_pipeline/cli.py:prepare_command",
    }
)
"""Commands of typer, whose parameters are their options: only the lines below the signature are counted."""
OTHERS = {
    "aggregator_api/storage/db/migrations/versions/0020_tables.py:upgrade": "history; nobody edits it, only runs it",
    **{
        f"models/{name}.__init__": "its keywords are the network's options, which `--set model.KEY` names"
        for name in ("hart.py:Hart", "image/cnn.py:ImageCnn", "image/segmentation.py:DeepLabV3Plus", "image/vit.py:Vit")
    },
    "models/layers/alp.py:AlpBlocks.__init__": "its keywords are the network's options",
    **{
        f"federation/training/{name}": "what a method's hooks are called with, laid out where it is read most"
        for name in ("client_round.py:train_one", "client_round.py:train_stacked", "local_round.py:local_round")
    },
    "har_pipeline/preparation.py:prepare": "public, and each has a default",
    "har_pipeline/preparation.py:prepare_members": "the same for several data sets",
    "export/onnx_export.py:export_onnx": "public, and most have a default",
    "aggregator_api/rounds/coordinator.py:Coordinator.__init__": "the parts of a server, named by `runtime`",
    "aggregator_api/transport/device_http/messages.py:DeviceMessages.__init__": "the parts of a server",
    "aggregator_api/storage/db/audit.py:record": "an entry's columns",
    "aggregator_api/auth/api_keys.py:make": "a key's columns",
    "aggregator_api/devices/suspension.py:judge_round": "a round's outcome, for clear and masked ones",
    **{
        f"export/program/decompositions.py:{name}": "torch's own operator, whose parameters these are"
        for name in ("convolution", "convolution_backward", "group_norm", "group_norm_backward")
    },
}


class Function(NamedTuple):
    """How large a function is; `body` are its lines below the signature."""

    lines: int
    body: int
    parameters: int


def functions(tree: ast.Module, name: str) -> Iterator[tuple[str, Function]]:
    """Return each function of a module by the file's name and its own, with those inside others."""
    waiting: list[tuple[str, ast.AST]] = [("", tree)]
    while waiting:
        outer, node = waiting.pop()
        for inner in ast.iter_child_nodes(node):
            place = outer
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                place = f"{outer}.{inner.name}".lstrip(".")
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{name}:{place}", measured(inner)
            waiting.append((place, inner))


def measured(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Function:
    given = function.args
    parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    counted = len(parameters) - (bool(parameters) and parameters[0].arg in ("self", "cls"))
    last = function.end_lineno or function.lineno
    return Function(last - function.lineno + 1, last - function.body[0].lineno + 1, counted)


def too_large(name: str, found: Function) -> bool:
    if name in OPTIONS:
        return found.body > LINES
    return found.lines > LINES or found.parameters > PARAMETERS


@cache
def every() -> dict[str, Function]:
    files = tracked(*(f"{package}/*.py" for package in PACKAGES))
    return {
        name: found
        for path in files
        if "node_modules" not in path.parts
        for name, found in functions(ast.parse(path.read_text()), Path(path).relative_to(REPOSITORY).as_posix())
    }


def test_functions_are_short_and_take_few_parameters() -> None:
    found = {name: each for name, each in every().items() if name not in OTHERS and too_large(name, each)}
    assert found == {}, f"at most {LINES} lines and {PARAMETERS} parameters; divide it, or put what belongs together"


def test_every_exception_is_needed() -> None:
    found = every()
    needless = [name for name in {*OPTIONS, *OTHERS} if name not in found]
    needless += [name for name in OPTIONS & set(found) if found[name].parameters <= PARAMETERS]
    needless += [name for name in OTHERS if found[name].lines <= LINES and found[name].parameters <= PARAMETERS]
    assert needless == []


def test_the_limits_are_felt() -> None:
    source = "\n".join(
        [
            "class Large:",
            "    def long(self):",
            *["        pass"] * LINES,
            f"    def wide(self, {', '.join(f'p{n}' for n in range(PARAMETERS))}, *, last): ...",
            f"    def just_right(self, {', '.join(f'p{n}' for n in range(PARAMETERS))}):",
            *["        pass"] * (LINES - 1),
        ]
    )
    found = dict(functions(ast.parse(source), "x.py"))
    assert {name for name, each in found.items() if too_large(name, each)} == {"x.py:Large.long", "x.py:Large.wide"}
    assert found["x.py:Large.just_right"].parameters == PARAMETERS
