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
from deploy.document_site import LINK, NOTEBOOK, REFERENCE, ROOT_PAGES
from federation.methods import METHODS
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
    "edge_agent.md": RUN_HERE,
    "phones.md": RUN_HERE,
    "inference.md": RUN_HERE,
    "your-data.md": RUN_HERE,
    "compare-runs.md": RUN_HERE,
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


def commands() -> Iterator[tuple[str, str, list[str]]]:
    """Yield document, program and words of every call in any of them."""
    for file in DOCUMENTS:
        for program, words in commands_in(file.read_text()):
            yield file.name, program, words


def test_every_command_and_option_in_a_document_exists() -> None:
    found = [(name, program, " ".join(words), unknown_in(program, words)) for name, program, words in commands()]
    assert len(found) > 100
    assert [each for each in found if each[-1]] == []


def test_every_model_in_a_command_of_a_document_exists() -> None:
    named = [
        (name, model)
        for name, program, words in commands()
        for option, value in pairwise(words)
        if program == "sim" and option == "--model" and re.fullmatch(r"[\w+]+", value)
        for model in value.split("+")
    ]
    assert len(named) > 10
    assert [each for each in named if each[1] not in MODELS] == []


def test_the_check_of_options_sees_a_wrong_one() -> None:
    assert unknown_in("aggregator_api", ["serve", "--prot", "1"]) == "--prot"
    assert unknown_in("aggregator_api", ["keys", "made"]) == "made"
    assert unknown_in("edge_agent", ["enrol", "--token", "T"]) == "--token"


def every_block() -> list[Block]:
    return [block for file in DOCUMENTS for block in shell_blocks(file)]


def test_a_block_is_run_by_a_test_or_says_why_not() -> None:
    blocks = every_block()
    assert len(blocks) > 50
    unrun = [block.name for block in blocks if not block.not_run and block.file.name not in RUN_BY]
    assert unrun == [], "run by nothing: say <!-- not run: why -->"
    assert [block.name for block in blocks if "\t" in block.text] == []


SECRETS = re.compile(
    r"(-H|--header)[ =]['\"]?Authorization"
    r"|--(token|password|secret)[ =](?!-)|gw_[0-9a-f]{6,}_"
    r"|(-E|--setenv)[ =]\w*(TOKEN|PASSWORD|SECRET)"
)


def test_no_secret_is_an_argument() -> None:
    """`ps` shows every argument to every user; headers and tokens come from standard input or files."""
    assert [(block.name, found[0]) for block in every_block() for found in SECRETS.finditer(block.text)] == []
    for given in ("curl -H 'Authorization: x'", "--token gw_x", "--setenv=API_TOKEN=x", "gw_0123456789ab_"):
        assert SECRETS.search(given), "it can fail"


def test_extras_and_files_that_a_block_names_exist() -> None:
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    missing = []
    for block in every_block():
        for names in re.findall(r"(?:gaitway|/source|'\.|\"\.)\[([a-z,]+)\]", block.text):
            missing += [(block.name, name) for name in names.split(",") if name not in extras]
        for path in re.findall(r"(?<![\w/.-])((?:deploy|demo|docs|benchmarks)/[\w./-]*\w)", block.text):
            made = path.startswith("deploy/broker")
            missing += [] if made or (REPOSITORY / path).exists() else [(block.name, path)]
    assert missing == []


def test_a_post_with_a_body_says_that_it_is_json() -> None:
    for block in every_block():
        for command in re.split(r"\n(?! )", block.text.replace("\\\n", " ")):
            if re.match(r"\s*curl\b", command) and re.search(r"\s(-d|--data|--json)\b", command):
                assert re.search(r"content-type: application/json|--json", command, re.I), block.name


PAGES = [*DOCUMENTS, REPOSITORY / "CHANGELOG.md"]


def test_no_line_of_a_page_is_longer_than_120() -> None:
    """A row of a table cannot be divided; what is too long for one should be no table."""
    lines = ((file.name, at, line) for file in PAGES for at, line in enumerate(file.read_text().splitlines(), 1))
    assert [(name, at) for name, at, line in lines if len(line) > 120 and not line.startswith("|")] == []


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


def test_no_paragraph_is_longer_than_eight_lines() -> None:
    found = [(file.name, at, len(lines)) for file in DOCUMENTS for at, lines in paragraphs(file.read_text())]
    long = [each for each in found if each[-1] > MAX_PARAGRAPH_LINES]
    assert long == [], "begin a new paragraph where the subject changes"


def test_a_long_paragraph_is_seen() -> None:
    prose = "word\n" * (MAX_PARAGRAPH_LINES + 1)
    for page in (f"# Title\n\n{prose}", f"- item\n{prose}", f"```\ncode\n```\n{prose}"):
        assert [len(lines) for _, lines in paragraphs(page) if len(lines) > MAX_PARAGRAPH_LINES], page
    code = f"```text\n{prose}```\n\nword\n\n" + "    word\n" * 20 + "\n" + "| a | b |\n" * 20
    assert [len(lines) for _, lines in paragraphs(code)] == [1]


def test_a_page_begins_with_what_its_reader_can_do_after_it() -> None:
    firsts = {file.name: " ".join(next(paragraphs(file.read_text()))[1]) for file in DOCUMENTS[2:]}
    assert [name for name, first in firsts.items() if not first.startswith("After this page you can ")] == []


MAX_WORDS = {
    "README.md": 1_000,
    **dict.fromkeys(("CONTRIBUTING.md", "tutorial.md", "your-data.md", "concepts.md", "devices.md"), 1_200),
    **dict.fromkeys(("phones.md", "inference.md", "releases.md", "compare-runs.md", "troubleshooting.md"), 1_200),
    "protocol.md": 3_500,
}
MAX_REFERENCE_WORDS = 2_500
GENERATED = "results.md"
"""Its tables, which a program writes, don't count: neither their words nor the length of their rows."""
MAX_SENTENCE_WORDS = 35
MAX_ROW_CHARACTERS = 200
SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z*`\[(])")


def words_of(text: str) -> list[str]:
    return [word for word in text.split() if re.search(r"\w", word)]


def too_long_in(page: str, max_words: int) -> list[str]:
    """Return what is over the limits: the page, its sentences, its rows as they are rendered."""
    prose = [" ".join(line.strip() for line in lines) for _, lines in paragraphs(page)]
    sentences = [sentence for part in prose for sentence in SENTENCE_END.split(part)]
    rows = [re.sub(r"\]\([^)]*\)", "]", line) for line in page.splitlines() if line.startswith("|")]
    return [
        *([f"{len(words_of(page))} words"] if len(words_of(page)) > max_words else []),
        *(sentence for sentence in sentences if len(words_of(sentence)) > MAX_SENTENCE_WORDS),
        *(row for row in rows if len(row) > MAX_ROW_CHARACTERS),
    ]


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: file.name)
def test_a_page_keeps_to_the_limits_of_its_kind(file: Path) -> None:
    page = re.sub(r"<!--.*?-->", "", file.read_text(), flags=re.DOTALL)
    if file.name == GENERATED:
        page = re.sub(r"^\|.*\n", "", page, flags=re.M)
    assert too_long_in(page, MAX_WORDS.get(file.name, MAX_REFERENCE_WORDS)) == []


def test_a_long_page_sentence_or_row_is_seen() -> None:
    sentence, row = "word " * (MAX_SENTENCE_WORDS + 1), f"| {'x' * MAX_ROW_CHARACTERS} |"
    assert too_long_in(f"# Title\n\n{sentence}\n\n{row}\n", 10) == ["38 words", sentence.strip(), row]


ANCHOR = re.compile(r"(?<=\]\()(?![a-z]+:)([^)#\s]*)#([^)\s]+)")
SECTION = re.compile(r"\]\(([^)#\s]+\.md)\),\s+'([^']+)'")
"""How a page names a section of another one: ([protocol.md](protocol.md), 'Epochs')."""


LEAD = re.compile(r"^(?:- )?\*\*(.+?)[.:]?\*\*", re.M)
"""The bold words that a paragraph begins with: a section too, though without an anchor."""


def headings(text: str) -> list[str]:
    return re.findall(r"^#+ +(.+?) *$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)


def anchor_of(heading: str) -> str:
    """Write a heading as GitHub and the site do in an address."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def broken_anchors(file: Path, text: str) -> list[str]:
    found = []
    for target, anchor in ANCHOR.findall(text):
        there = text if not target else (file.parent / target).read_text()
        if anchor not in map(anchor_of, headings(there)):
            found.append(f"{file.name}: {target}#{anchor}")
    for target, section in SECTION.findall(text):
        there = (file.parent / target).read_text()
        if " ".join(section.split()) not in [*headings(there), *LEAD.findall(there)]:
            found.append(f"{file.name}: {target}, '{section}'")
    return found


def test_every_anchor_and_every_section_that_a_page_names_exists() -> None:
    """As `make docs`, in a second and without the generator, which therefore needs no place in CI."""
    texts = {file: file.read_text() for file in DOCUMENTS}
    assert sum(len(ANCHOR.findall(text)) + len(SECTION.findall(text)) for text in texts.values()) > 40
    assert [broken for file, text in texts.items() for broken in broken_anchors(file, text)] == []
    wrong = "[a](#nowhere) ([rest.md](rest.md), 'No such part') [b](rest.md#nor-this)"
    assert len(broken_anchors(REPOSITORY / "docs" / "x.md", wrong)) == 3


def test_every_link_leads_to_a_file() -> None:
    links = [(file, target) for file in DOCUMENTS for target in LINK.findall(file.read_text())]
    assert len(links) > 100
    assert [(file.name, target) for file, target in links if not (file.parent / target).exists()] == []
    of_the_site = [(file.name, target) for file, target in links if file.parent == REPOSITORY / "docs"]
    folders = [each for each in of_the_site if (REPOSITORY / "docs" / each[1]).is_dir()]
    assert folders == [], "the site has files: `make docs` fails at a link to a folder"


def test_the_site_has_every_page() -> None:
    menu = (REPOSITORY / "mkdocs.yml").read_text()
    assert [file.name for file in DOCUMENTS[2:] if f": {file.name}\n" not in menu] == []
    made = {
        *ROOT_PAGES.values(),
        f"{NOTEBOOK}.md",
        "reference/modules.md",
        *(f"reference/{one}.md" for one in REFERENCE),
    }
    entries = re.findall(r"^ +- [^:\n]+: (\S+\.md)$", menu, re.M)
    assert [one for one in entries if one not in made and not (REPOSITORY / "docs" / one).is_file()] == []
    assert len(entries) > 30


def missing_in_architecture(page: str) -> list[str]:
    """Return the packages without a row, and the paths in backticks that don't exist."""
    rows = [package for package in PACKAGES if package != "tests" and f"| `{package}/` |" not in page]
    named = re.findall(r"`([a-z_]+/(?:[\w./-]*)?)`", page)
    return [*rows, *(path for path in named if not (REPOSITORY / path).exists())]


def test_the_architecture_names_every_package_and_only_what_exists() -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text()
    assert missing_in_architecture(page) == []
    wrong = page.replace("| `models/` |", "| models |").replace("`sim/experiment/settings.py`", "`sim/trial.py`")
    assert missing_in_architecture(wrong) == ["models", "sim/trial.py"]


def test_every_folder_says_what_it_is_for() -> None:
    """The site's list of modules, which is the map, has nothing else."""
    folders = [file for file in modules().values() if file.name == "__init__.py" and "tests" not in file.parts]
    assert [str(file) for file in folders if not ast.get_docstring(ast.parse(file.read_text()))] == []


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


def messages_in(page: str) -> list[str]:
    """Return what the first cells of a page's tables quote: words that a program prints."""
    cells = re.findall(r"^\| (?!---)(.+?) \|", page, re.M)
    return [quoted for cell in cells for quoted in re.findall(r"`([^`]+)`", cell)]


def test_every_message_in_troubleshooting_is_one_that_a_program_prints() -> None:
    files = (path for name, path in modules().items() if not name.startswith("tests"))
    sources = "".join(file.read_text() for file in files)
    page = (REPOSITORY / "docs" / "troubleshooting.md").read_text()
    assert len(messages_in(page)) > 20
    assert [message for message in messages_in(page) if message not in sources] == []
    assert messages_in("| 503 `no such words` | why |\n| --- | --- |") == ["no such words"]


METHOD_ROW = re.compile(r"^\| `(\w+)` \|(?:[^|]*\|){3}([^|]*)\|$", re.M)
OPTION = re.compile(r"`(\w+)` \(`?([\w.-]+)`?\)")


def wrong_in_methods(page: str) -> list[str]:
    """Return the methods without a row, and each option whose default the page has wrong."""
    rows = dict(METHOD_ROW.findall(page))
    found = [name for name in METHODS if name not in rows]
    for name in METHODS.keys() & rows.keys():
        for option, default in OPTION.findall(rows[name]):
            own = getattr(METHODS[name](), option, None)
            same = float(default) == own if isinstance(own, float) else default == str(own).lower()
            found += [] if same else [f"{name}.{option} ({default})"]
    return found


def test_the_table_of_methods_names_all_with_their_defaults() -> None:
    page = (REPOSITORY / "docs" / "methods.md").read_text()
    assert wrong_in_methods(page) == []
    changed = page.replace("`mu` (0.01)", "`mu` (0.1)").replace("| `moon` |", "| `sun` |")
    assert sorted(wrong_in_methods(changed)) == ["fedprox.mu (0.1)", "moon"]
