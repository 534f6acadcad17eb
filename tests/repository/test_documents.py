"""The documents' commands: every option exists, every block is run or says why not, no secret is an argument."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from deploy.document_blocks import Block, shell_blocks
from deploy.document_site import LINK
from gaitway.__main__ import PROGRAMS as GAITWAY
from gaitway.plugins import GROUPS
from models.registry import MODELS
from tests.repository.imports import PACKAGES, REPOSITORY, modules

DOCUMENTS = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
PROGRAMS = {program.module.split(".")[0]: name for name, program in GAITWAY.items()}
CALLED = re.compile(r"(?:python3? -m (" + "|".join(PROGRAMS) + r")|gaitway (" + "|".join(GAITWAY) + r"))\b([^`\n|]*)")
RUN_HERE = "tests/repository/test_documents_run.py"
RUN_BY = {
    "README.md": RUN_HERE,
    "operations.md": "deploy/walkthrough.py",
    "rest.md": RUN_HERE,
    "phones.md": RUN_HERE,
    "cluster.md": RUN_HERE,
    "inference.md": RUN_HERE,
    "your-data.md": RUN_HERE,
    "compare-runs.md": "tests/repository/test_tutorial.py",
    "tutorial.md": "tests/repository/test_tutorial.py",
}
"""Who runs the blocks of a document that do not say `not run`."""


def commands_in(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the program and the words of every call of ours in a document, in its blocks and in its prose."""
    for found in CALLED.finditer(text.replace("\\\n", " ")):
        program = found[1] or next(name for name, word in PROGRAMS.items() if word == found[2])
        rest = re.split(r"\s#|[<>;&)]|\s—|, |…", found[3])[0]
        try:
            words = shlex.split(rest)
        except ValueError:  # prose: an apostrophe
            words = rest.split()
        yield program, [word.strip("`.,:'\"") for word in words]


def unknown_in(program: str, words: list[str]) -> str:
    """Return the first subcommand or option that the program does not have; empty if it has all."""
    module = import_module(GAITWAY[PROGRAMS[program]].module)
    command: Any = get_command(module.app)  # typer brings a click of its own
    before_dashes = words[: words.index("--")] if "--" in words else words
    for word in before_dashes:
        if hasattr(command, "commands"):
            if word.startswith("-") or not re.fullmatch(r"[a-z-]+", word):
                continue
            if word not in command.commands:
                return "" if word in ("is", "and", "or", "to", "for", "with", "the", "in") else word
            command = command.commands[word]
        elif re.match(r"--[a-z]", word):
            known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"--help"}
            takes_any = command.context_settings.get("ignore_unknown_options", False)
            if word.partition("=")[0] not in known and not takes_any:
                return word
    return ""


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: file.name)
def test_every_command_and_option_in_a_document_exists(file: Path) -> None:
    for program, words in commands_in(file.read_text()):
        assert unknown_in(program, words) == "", f"{file.name}: {program} {' '.join(words)}"


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: file.name)
def test_every_model_in_a_command_of_a_document_exists(file: Path) -> None:
    for program, words in commands_in(file.read_text()):
        named = [value for option, value in pairwise(words) if option == "--model" and re.fullmatch(r"[\w+]+", value)]
        if program == "sim":
            assert {name for value in named for name in value.split("+")} <= set(MODELS), f"{file.name}: {named}"


def test_the_check_of_options_sees_a_wrong_one() -> None:
    assert unknown_in("aggregator_api", ["serve", "--prot", "1"]) == "--prot"
    assert unknown_in("aggregator_api", ["keys", "made"]) == "made"
    assert unknown_in("edge_agent", ["enrol", "--token", "T"]) == "--token"


def every_block() -> list[Block]:
    return [block for file in DOCUMENTS for block in shell_blocks(file)]


@pytest.mark.parametrize("block", every_block(), ids=lambda block: block.name)
def test_a_block_is_run_by_a_test_or_says_why_not(block: Block) -> None:
    assert block.not_run or RUN_BY.get(block.file.name), f"{block.name} is run by nothing: say <!-- not run: why -->"
    assert "\t" not in block.text


@pytest.mark.parametrize("block", every_block(), ids=lambda block: block.name)
def test_no_secret_is_an_argument(block: Block) -> None:
    """`ps` shows every argument to every user; headers and tokens come from standard input or files."""
    said = block.text
    assert not re.search(r"(-H|--header)[ =]['\"]?Authorization", said), block.name
    assert not re.search(r"--(token|password|secret)[ =](?!-)|gw_[0-9a-f]{6,}_", said), block.name
    assert not re.search(r"(-E|--setenv)[ =]\w*(TOKEN|PASSWORD|SECRET)", said), block.name


@pytest.mark.parametrize("block", every_block(), ids=lambda block: block.name)
def test_extras_and_files_that_a_block_names_exist(block: Block) -> None:
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for names in re.findall(r"(?:gaitway|/source|'\.|\"\.)\[([a-z,]+)\]", block.text):
        assert set(names.split(",")) <= set(extras), block.name
    for path in re.findall(r"(?<![\w/.-])((?:deploy|demo|docs|benchmarks)/[\w./-]*\w)", block.text):
        made = path.startswith("deploy/broker")
        assert made or (REPOSITORY / path).exists(), f"{block.name}: there is no {path}"


def test_a_post_with_a_body_says_that_it_is_json() -> None:
    for block in every_block():
        for command in re.split(r"\n(?! )", block.text.replace("\\\n", " ")):
            if re.match(r"\s*curl\b", command) and re.search(r"\s(-d|--data|--json)\b", command):
                assert re.search(r"content-type: application/json|--json", command, re.I), block.name


PAGES = [*DOCUMENTS, REPOSITORY / "CHANGELOG.md"]


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.name)
def test_no_line_of_a_page_is_longer_than_120(file: Path) -> None:
    """A row of a table cannot be divided; what is too long for one should be no table."""
    lines = enumerate(file.read_text().splitlines(), 1)
    assert [number for number, line in lines if len(line) > 120 and not line.startswith("|")] == []


MAX_PARAGRAPH_LINES = 8
STARTS_A_PART = re.compile(r"\s*([-*+]|\d+\.)\s")
NO_PROSE = re.compile(r"\s*(\||#|<!--|!\[|$)")


def paragraphs(page: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line's number and the lines of each paragraph and each item of a list; no tables, no code."""
    lines: list[str] = []
    fenced = False
    for number, line in enumerate([*page.splitlines(), ""], 1):
        fence = line.lstrip().startswith("```")
        ends = fence or fenced or NO_PROSE.match(line) or STARTS_A_PART.match(line)
        if lines and ends:
            yield number - len(lines), lines
            lines = []
        is_code = line.startswith("    ") and not lines
        if not fence and not fenced and not NO_PROSE.match(line) and not is_code:
            lines.append(line)
        fenced ^= fence


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: file.name)
def test_no_paragraph_is_longer_than_eight_lines(file: Path) -> None:
    long = [(at, len(lines)) for at, lines in paragraphs(file.read_text()) if len(lines) > MAX_PARAGRAPH_LINES]
    assert long == [], "begin a new paragraph where the subject changes"


def test_a_long_paragraph_is_seen() -> None:
    prose = "word\n" * (MAX_PARAGRAPH_LINES + 1)
    for page in (f"# Title\n\n{prose}", f"- item\n{prose}", f"```\ncode\n```\n{prose}"):
        assert [len(lines) for _, lines in paragraphs(page) if len(lines) > MAX_PARAGRAPH_LINES], page
    code = f"```text\n{prose}```\n\nword\n\n" + "    word\n" * 20 + "\n" + "| a | b |\n" * 20
    assert [len(lines) for _, lines in paragraphs(code)] == [1]


@pytest.mark.parametrize("file", DOCUMENTS[2:], ids=lambda file: file.name)
def test_a_page_begins_with_what_its_reader_can_do_after_it(file: Path) -> None:
    _, first = next(paragraphs(file.read_text()))
    assert " ".join(first).startswith("After this page you can ")


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: file.name)
def test_every_link_leads_to_a_file(file: Path) -> None:
    """`make docs` looks at anchors too."""
    assert [target for target in LINK.findall(file.read_text()) if not (file.parent / target).exists()] == []


def test_the_site_has_every_page() -> None:
    menu = (REPOSITORY / "mkdocs.yml").read_text()
    assert [file.name for file in DOCUMENTS[2:] if f": {file.name}\n" not in menu] == []


def test_the_map_names_every_folder() -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text()
    folders = {str(file.parent.relative_to(REPOSITORY)) for file in modules().values() if file.name == "__init__.py"}
    assert [folder for folder in sorted(folders) if f"- `{folder}/`: " not in page] == []


NAMED = re.compile(r"`((?:" + "|".join(PACKAGES) + r")(?:\.\w+)+)`")


NO_CODE = {"federation.paused", "gaitway.example", "gaitway.js", *(f"gaitway.{group}" for group in GROUPS)}
"""An event, a host, a file, and the groups of entry points."""


@cache
def _defined(name: str) -> bool:
    """Whether a dotted name is a module, or something that a module or a class in it defines, imports or has."""
    known = modules()
    module = next((name[:end] for end in _ends(name) if name[:end] in known), None)
    if module is None:
        return False
    if module == name:
        return True
    names = {
        found
        for node in ast.walk(ast.parse(known[module].read_text()))
        for found in (
            [getattr(node, "name", None)]
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            else [each.asname or each.name for each in node.names]
            if isinstance(node, (ast.Import, ast.ImportFrom))
            else [node.id]
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            else []
        )
    }
    return all(part in names for part in name[len(module) + 1 :].split("."))


def _ends(name: str) -> list[int]:
    return sorted((at for at in range(1, len(name) + 1) if at == len(name) or name[at] == "."), reverse=True)


def test_every_name_of_the_code_in_a_document_exists() -> None:
    sources = [path for name, path in modules().items() if not name.startswith("tests")]
    stale = {
        f"{file.relative_to(REPOSITORY)}: {name}"
        for file in (*DOCUMENTS, *sources)
        for name in NAMED.findall(file.read_text())
        if name not in NO_CODE and not _defined(name)
    }
    assert stale == set()
