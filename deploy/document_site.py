"""Writes what `make docs` makes a site of: docs/, the root's pages, the sources that pages link, and the reference.

It lies in build/documents, and no generator's own hooks are needed. The reference's pages name modules and classes;
mkdocstrings reads their docstrings from the source, and imports nothing.
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
OUT = REPOSITORY / "build" / "documents"
PACKAGES = ("gaitway", "har_pipeline", "models", "federation", "sim", "edge_agent", "aggregator_api", "export", "phone")
ROOT_PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
NOTEBOOK = "examples/first_simulation"
ICON = "gaitway/views/icon.svg"
SOURCES = "sources"
"""Folder of the site for files of the repository that pages link."""
FOLDER_FILES = ("README.md", "pyproject.toml")
LINK = re.compile(r"""(?:(?<=\]\()|(?<=<img src="))(?!#|[a-z]+:)([^)#\s"]+)""")
NESTED = re.compile(r"^ {2,3}(?=[-*] )", re.M)
"""Markdown of GitHub nests lists by two spaces, MkDocs' by four."""

REFERENCE: dict[str, tuple[str, tuple[str, ...]]] = {
    "simulate": (
        "After this page you can run and follow simulations from Python; [the notebook](../examples/"
        "first_simulation.ipynb) shows them at work.",
        (
            "sim.simulate",
            "sim.experiment.settings.Experiment",
            "sim.reports.run_result.RunResult",
            "sim.results.tracking",
        ),
    ),
    "methods": (
        "After this page you can call and write federated methods; [methods.md](../methods.md) says what each is for.",
        ("federation.method", *(f"federation.methods.{name}" for name in ("analytic", "fedavg", "fedali"))),
    ),
    "plans": (
        "After this page you can write a federation's plan: what server, devices and simulation agree on.",
        ("federation.plan",),
    ),
    "tasks": (
        "After this page you can tell what a task defines, and define one.",
        ("gaitway.tasks.definition", "gaitway.tasks.soundness", "federation.tasks.task"),
    ),
    "models": (
        "After this page you can build, save and load networks.",
        ("models.model", "models.registry", "models.checkpoint"),
    ),
    "recordings": (
        "After this page you can read recordings and make windows of them.",
        ("har_pipeline.preparation", "har_pipeline.recording", "har_pipeline.readers.reader", "har_pipeline.settings"),
    ),
    "exported-models": (
        "After this page you can run an exported model, without torch; [inference.md](../inference.md) begins there.",
        ("export.recognizer", "export.runtime"),
    ),
}


def main() -> None:
    """Write the site's sources anew."""
    shutil.rmtree(OUT, ignore_errors=True)
    shutil.copytree(REPOSITORY / "docs", OUT, ignore=shutil.ignore_patterns("results"))
    shutil.copy(REPOSITORY / ICON, OUT / "site" / "icon.svg")
    pages = {path.relative_to(OUT).as_posix(): path.read_text() for path in OUT.glob("*.md")}
    pages |= {name: (REPOSITORY / source).read_text() for source, name in ROOT_PAGES.items()}
    pages |= {f"reference/{name}.md": _reference(name) for name in REFERENCE}
    pages |= {"reference/modules.md": _modules(), f"{NOTEBOOK}.md": _notebook(REPOSITORY / f"docs/{NOTEBOOK}.ipynb")}
    for page, text in pages.items():
        for path in _linked_sources(page, text):
            _copy(path)
        (OUT / page).parent.mkdir(parents=True, exist_ok=True)
        (OUT / page).write_text(_with_own_links(page, text))


def _with_own_links(page: str, text: str) -> str:
    """Let a page's links lead to where the site has what they name, and its lists nest."""
    return NESTED.sub("    ", LINK.sub(lambda found: _target(page, found[1]), text))


def _copy(path: str) -> None:
    target = OUT / SOURCES / path
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(REPOSITORY / path, target)


def _target(page: str, target: str) -> str:
    """Return where a link of a page leads to in the site."""
    path = _in_repository(page, target)
    if path is None:
        return target
    if path in ROOT_PAGES:
        found = ROOT_PAGES[path]
    elif path.startswith("docs/"):
        found = path.removeprefix("docs/")
    else:
        found = f"{SOURCES}/{path}"
    return posixpath.relpath(found, posixpath.dirname(page))


def _in_repository(page: str, target: str) -> str | None:
    """Return the path in the repository that a page's link names; None where there is no such file."""
    known = {made: source for source, made in ROOT_PAGES.items()}
    home = posixpath.dirname(known.get(page, f"docs/{page}"))
    path = posixpath.normpath(posixpath.join(home, target))
    if (REPOSITORY / path).is_dir():  # a site shows no folders: the file in it that says most
        path = next((f"{path}/{name}" for name in FOLDER_FILES if (REPOSITORY / path / name).is_file()), path)
    return path if not path.startswith("..") and (REPOSITORY / path).is_file() else None


def _linked_sources(page: str, text: str) -> Iterator[str]:
    """Yield the files outside docs/ that a page links."""
    for found in LINK.finditer(text):
        path = _in_repository(page, found[1])
        if path is not None and path not in ROOT_PAGES and not path.startswith("docs/"):
            yield path


def _reference(name: str) -> str:
    lead, members = REFERENCE[name]
    return "\n\n".join([f"# {name.replace('-', ' ').capitalize()}", lead, *(f"::: {member}" for member in members), ""])


def _notebook(path: Path) -> str:
    """Write a notebook as a page."""
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(path.read_text())["cells"]]
    parts = [f"```python\n{text}\n```" if kind == "code" else text for kind, text in cells]
    return "\n\n".join([*parts, f"As a notebook: [{path.name}]({path.name}).", ""])


def _modules() -> str:
    """List every module of every package with what it is for."""
    parts = ["# Every module", "After this page you can say in which module something is."]
    for package in PACKAGES:
        rows = [f"| `{name}` | {_cell(words)} |" for name, words in _purposes(package)]
        parts.append(f"## {package}\n\n| module | what it is for |\n| --- | --- |\n" + "\n".join(rows))
    return "\n\n".join([*parts, ""])


def _cell(words: str) -> str:
    """Write words so that a table's cell holds them, and no HTML comes of them."""
    return words.replace("|", "\\|").replace("<", "&lt;")


def _purposes(package: str) -> Iterator[tuple[str, str]]:
    """Yield each module's dotted name and its docstring's first line."""
    for file in sorted((REPOSITORY / package).rglob("*.py")):
        words = ast.get_docstring(ast.parse(file.read_text()))
        if words and "versions" not in file.parts:  # migrations are history
            parts = file.relative_to(REPOSITORY).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), words.partition("\n")[0]


if __name__ == "__main__":
    main()
