"""Names: one word for one thing, none that says nothing, and tests that know public ones alone."""

from __future__ import annotations

import ast
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from aggregator_api.storage.db.event_kinds import EVENT_KINDS
from aggregator_api.storage.db.models import Base
from federation.protocol.messages import Acknowledgement, Announcement
from tests.repository.imports import PACKAGES, REPOSITORY, modules, tracked

FORBIDDEN_NAMES = frozenset({"util", "utils", "helper", "helpers", "common", "misc", "types", "manager"})
PRIVATE = re.compile(r"_[a-zA-Z]")
MAY_TAKE_PRIVATE = re.compile(r"setattr\(|^\s*(from|import)\b.*\b_[a-zA-Z]|^ +_[a-zA-Z]\w*( as \w+)?,$", re.MULTILINE)
"""What a file's text has that imports or replaces a private name; others need no parsing."""
SAME_IN_SEVERAL_PACKAGES = {
    "ConfigError": "each program's own, below its own root of errors",
    "SettingsError": "each package's own, below its own root of errors",
    "LabelError": "an activity that is no label: of a plan, of a description",
    "BrokerAddress": "one message, written by the server and read by the device",
    "BrokerLogin": "one message, written by the server and read by the device",
    "Credentials": "one message, written by the server and read by the device",
}
"""Classes whose name two packages have, and why they are the same thing."""


def test_no_name_says_nothing() -> None:
    assert [name for name in modules() if FORBIDDEN_NAMES & set(name.split("."))] == []


def test_a_class_name_is_one_thing_in_all_packages() -> None:
    packages = defaultdict(set)
    for name, file in modules().items():
        for found in re.findall(r"^class ([A-Za-z]\w*)", file.read_text(), re.MULTILINE):
            packages[found].add(name.partition(".")[0])
    assert {name for name, having in packages.items() if len(having) > 1} == set(SAME_IN_SEVERAL_PACKAGES)


def test_no_test_imports_or_replaces_a_private_name_of_ours() -> None:
    """Ruff's SLF001 sees the attributes; this is about `from x import _y` and `setattr(x, "_y", …)`."""
    found = []
    for file in tracked("tests/*.py", "benchmarks/*.py"):
        source = file.read_text()
        for node in ast.walk(ast.parse(source if MAY_TAKE_PRIVATE.search(source) else "")):
            match node:
                case ast.ImportFrom(names=names):
                    found += [(file, each.name) for each in names if PRIVATE.match(each.name)]
                case ast.Call(func=ast.Attribute(attr="setattr"), args=[_, ast.Constant(value=str(name)), *_]):
                    found += [(file, name)] if PRIVATE.match(name) else []
    assert found == []


PRIVATE_WORDS = {
    "constant": re.compile(
        r"^_?(MOST|LEAST|LARGEST|LONGEST|SHORTEST|SMALLEST|FEWEST)(_|$)"
        r"|^_?(OURS|SHOWN|LOOKS|TELLING|TELL_S|TAKEN|APART_S|PATIENCE_S|WAITING)$"
    ),
    "function or field": re.compile(r"^_?(hear|whence|dealt|steer|bring_into_reach|obstacle)$"),
    "class": re.compile(r"[Pp]icture"),
    "module": re.compile(r"[Pp]icture"),
}
"""Words of our own, by what they must not name: bounds are MAX_ and MIN_, functions verbs of the field."""
MAY_BE_PRIVATE = re.compile(
    "|".join(pattern.pattern.replace("^", r"\b").replace("$", r"\b") for pattern in PRIVATE_WORDS.values())
)
"""Where none of them is in the text, the module need not be parsed."""


def defined(module: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the kind and the name of what a module defines, without local variables."""
    yield "module", module.rpartition(".")[2]
    yield from (("constant", name) for statement in tree.body for name in assigned(statement))
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield "function or field", name
            case ast.ClassDef(name=name, body=body):
                yield "class", name
                yield from (("function or field", field) for statement in body for field in assigned(statement))
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield "function or field", name


def assigned(statement: ast.stmt) -> list[str]:
    """Return the names that an assignment binds, also below `if` and `try`; none for another statement."""
    targets: list[ast.expr] = []
    match statement:
        case ast.Assign():
            targets = statement.targets
        case ast.AnnAssign():
            targets = [statement.target]
        case ast.If() | ast.Try():
            return [
                name
                for inner in ast.iter_child_nodes(statement)
                if isinstance(inner, ast.stmt)
                for name in assigned(inner)
            ]
    names = (node for target in targets for node in ast.walk(target))
    return [node.id for node in names if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]


def private_words(module: str, source: str) -> list[str]:
    """Return what a module defines under a word of our own."""
    found = defined(module, ast.parse(source if MAY_BE_PRIVATE.search(source) else ""))
    return [f"{module}: {kind} {name}" for kind, name in found if PRIVATE_WORDS[kind].search(name)]


def test_no_package_names_anything_by_a_private_word() -> None:
    assert [found for name, file in modules().items() for found in private_words(name, file.read_text())] == []


@pytest.mark.parametrize(
    "source",
    [
        "MOST = 3",
        "_LEAST_S, OTHER = 1, 2",
        "if True:\n    LARGEST: int = 3",
        "PATIENCE_S = 1.0",
        "def hear(): ...",
        "class A:\n    async def _steer(self): ...",
        "class A:\n    whence: str",
        "class A:\n    def __init__(self):\n        self.dealt = 1",
        "class PictureSource: ...",
    ],
)
def test_a_private_word_is_found(source: str) -> None:
    assert len(private_words("a.module", source)) == 1


def test_a_module_named_by_a_private_word_is_found() -> None:
    assert private_words("a.pictures", "") == ["a.pictures: module pictures"]


@pytest.mark.parametrize(
    "source",
    [
        "MAX_ROWS = 3",
        "def f():\n    most = MOST = 1",
        "class Status:\n    WAITING = 'waiting'",
        "def most_frequent(): ...",
        "ALMOST = 1",
    ],
)
def test_other_words_and_an_enums_members_raise_no_alarm(source: str) -> None:
    assert private_words("a.module", source) == []


PRIVATE_FIELDS = "bell|dealt|fault|heard|hurry|obstacle|parcel|patience|recollection|said|speaker|standing|told|whence"
SCRIPT_WORDS = {
    "constant": re.compile(
        PRIVATE_WORDS["constant"].pattern + r"|^_?(LATEST|SLOWEST|FASTEST|GONE|AGAIN|LOOK|TELL|KEPT|TRIES)(_|$)"
    ),
    "function": re.compile(r"^(inWords|wordsOf|obstacleOf|parcelOf|stretchInputs|tellTimes|pause)$"),
    "class": re.compile(r"[Pp]icture|^(Bell|Patience|Speaker|Recollection|Work|Parcel)$"),
    "parameter": re.compile(rf"^((most|least)([A-Z]|$)|({PRIVATE_FIELDS})$)"),
    "field": re.compile(rf"^({PRIVATE_FIELDS})$"),
}
"""The same of JavaScript, which has no parser here: of what stands at a line's beginning, of parameters and fields."""
SCRIPT_DECLARATION = re.compile(
    r"^(?:export )?(?:const (?P<constant>[A-Z_]+)\b|(?:async )?function\*? (?P<function>\w+)|class (?P<class>\w+))"
    r"|@param \{[^}]*\} \[?(?P<parameter>\w+)|@property \{[^}]*\} \[?(?P<property>\w+)"
    r"|\bthis\.(?P<field>\w+) (?:\?\?)?= |^  (?:(?:async|get|set|static) )*(?P<method>\w+)\([^()]*\) \{$",
    re.MULTILINE,
)


def script_words(name: str, source: str) -> list[str]:
    """Return what a script defines under a word of our own."""
    found = ((kind, word) for each in SCRIPT_DECLARATION.finditer(source) for kind, word in each.groupdict().items())
    rules = {**SCRIPT_WORDS, "property": SCRIPT_WORDS["field"], "method": SCRIPT_WORDS["field"]}
    return [f"{name}: {kind} {word}" for kind, word in found if word and rules[kind].search(word)]


def scripts() -> list[Path]:
    """Every script of ours; what others wrote lies in folders `vendor`, `swagger` and `node_modules`."""
    files = tracked(*(f"{package}/*.js" for package in PACKAGES))
    return [file for file in files if not {"vendor", "swagger", "node_modules"} & set(file.parts)]


def test_no_script_names_anything_by_a_private_word() -> None:
    found = [word for file in scripts() for word in script_words(file.name, file.read_text())]
    assert len(scripts()) > 40
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "const LATEST_MS = 8.64e15;",
        "export const MOST = 3;",
        "async function inWords(error) {",
        "export class Patience {",
        "/** @param {number} [leastMs] */",
        "    this.patience = new Backoff(clock);",
        "  get obstacle() {",
        "  async heard(check, signal) {",
        " * @property {string} fault why",
    ],
)
def test_a_scripts_private_word_is_found(source: str) -> None:
    assert len(script_words("a.js", source)) == 1


OLD_OUTSIDE = re.compile(r"(update\.)?(held|left_out)|later|millionths|restored|awaited")
"""What columns, fields, statuses and events were called, on the wire, over REST and in the database."""
OLD_IN_TEXT = re.compile(
    r"gaitway_(open_round_awaited|led_federations|device_answered_updates)\b|--(broker|server)-place\b"
    r"|\bupdate\.(held|left_out)\b|\b(outcome|status)=\\?[\"~]*(\w+\|)*(held|left_out)\b"
)
"""Names of metrics, options, events and statuses that nothing may use or tell of any more."""


def words_outside(schema: object) -> Iterator[str]:
    """Yield the names of fields, and the words that a field may be, of a JSON Schema or an OpenAPI document."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        yield from (word for word in schema.get("enum", ()) if isinstance(word, str))
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from words_outside(part)


def test_nothing_outside_has_its_old_name() -> None:
    """Columns, REST and messages: where a rename that is done by half would still pass the tests of either half."""
    columns = {column.name for table in Base.metadata.tables.values() for column in table.columns}
    rest = set(words_outside(json.loads((REPOSITORY / "docs" / "openapi.json").read_text())))
    wire = {word for message in (Announcement, Acknowledgement) for word in words_outside(message.model_json_schema())}
    assert {"excluded"} < columns & rest
    assert {"deferred", "update.deferred"} < rest | set(EVENT_KINDS)
    assert {"share_millionths", "restored_at", "retry"} < wire
    everything = columns | rest | wire | set(EVENT_KINDS)
    assert sorted(word for word in everything if OLD_OUTSIDE.fullmatch(word)) == []


def test_no_text_tells_of_an_old_metric_option_or_status() -> None:
    kinds = {".py", ".js", ".html", ".yaml", ".md", ".json"}
    files = [file for file in tracked(*PACKAGES, "deploy", "docs") if file.suffix in kinds]
    files = [file for file in files if not {"versions", "vendor", "node_modules", "results"} & set(file.parts)]
    assert len(files) > 500
    assert [(file.name, found[0]) for file in files for found in OLD_IN_TEXT.finditer(file.read_text())] == []
    for text in ("?status=left_out", 'outcome="held"', 'outcome=~"accepted|held|refused"', "`update.held`"):
        assert OLD_IN_TEXT.search(text), "it can fail"


NO_VERBS = re.compile(
    r"(A|All|An|As|At|Both|By|Each|Every|Everything|For|Here|How|If|In|It|No|Nothing|Of|On|One|Only|Our|Same|Some|Such"
    r"|That|The|There|These|They|This|Those|What|When|Where|Which|Whose|Why|You|Your|Gradient|Mean|Probability|Size)$"
)
"""Words that a function's docstring must not begin with; plural nouns and formulas neither."""


def public_functions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the public functions and methods of a module or class, but for properties, which are things."""
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public_functions(node.body)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            is_property = any(
                "property" in ast.unparse(mark) or ".setter" in ast.unparse(mark) for mark in node.decorator_list
            )
            if not is_property and (not node.name.startswith("_") or node.name.startswith("__")):
                yield node


def begins_with_a_verb(docstring: str) -> bool:
    """Whether a docstring may begin with a verb, as far as its first word tells; 'Whether' stands for a predicate's."""
    word = docstring.split()[0].rstrip(".,:;")
    is_word = re.fullmatch(r"[A-Z][a-z]+(-[a-z]+)?", word)
    return bool(is_word) and not NO_VERBS.match(word) and not re.search(r"[^su]s$", word)


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    checked = 0
    for name, file in modules().items():
        if name.partition(".")[0] in PACKAGES:
            for function in public_functions(ast.parse(file.read_text()).body):
                if docstring := ast.get_docstring(function):
                    checked += 1
                    assert begins_with_a_verb(docstring), f"{name}.{function.name}: {docstring.splitlines()[0]}"
    assert checked > 1000


def test_a_docstring_that_begins_with_a_noun_is_seen() -> None:
    for first in ("The door between two", "Windows per class.", "F1 of each class.", "`x` is what", "Where it is."):
        assert not begins_with_a_verb(first)
    for first in ("Return windows.", "Pass it on.", "Re-read the file.", "Whether it is."):
        assert begins_with_a_verb(first)


OLD_PHRASES = re.compile(
    r"\b(anew|gone on with|goes on with|founded|at the door|gives out|pace of life)\b", re.IGNORECASE
)
"""Which stand for 'again', 'continue', 'created', 'waiting', 'serves', 'real time'."""


def prose() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each document, template and help; CHANGELOG.md is history."""
    documents = (REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *tracked("docs/*.md"))
    templates = tracked(*(f"{package}/*/templates/*.html" for package in PACKAGES))
    for file in (*documents, *templates):
        yield str(file.relative_to(REPOSITORY)), file.read_text()
    for name, file in modules().items():
        if name.endswith("__main__") or ".cli." in f"{name}.":
            strings = (node.value for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Constant))
            yield name, "\n".join(text for text in strings if isinstance(text, str))


def test_no_prose_has_a_phrase_that_was_replaced() -> None:
    """There were 21 when names.md counted them; none may come back."""
    places = [(place, " ".join(text.split())) for place, text in prose()]
    assert len(places) > 50
    assert [(place, found[0]) for place, text in places for found in OLD_PHRASES.finditer(text)] == []
    assert OLD_PHRASES.search("The round is begun ANEW."), "it can fail"
