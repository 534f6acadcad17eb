"""The command line's output about apps' exports: `describe` names the app, `info` counts the contents."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from gaitway.terminal import Console
from har_pipeline.apps.export import name_words
from har_pipeline.apps.reader import AppReader, AppSource

MAX_SHOWN = 20


def show_exports(readers: Sequence[AppReader], root: Path, console: Console) -> bool:
    """Print which app wrote the files under root and how they are read; return False if none can be read."""
    can_be_read = False
    for reader in (reader for reader in readers if reader.recognizes(root)):
        source = reader.look(root, reader.options(None))
        by_reader = bool(source.usable) or _lacks_option(reader, source)
        needed = "no description needed" if by_reader else "its reader can't read it, for the reasons below"
        console.print(f"This is an export of {reader.app}: {needed}.", markup=False)
        show_found(reader, source, console)
        if by_reader:
            words = _words(source)
            labels = json.dumps({"labels": words or ["walking", "sitting"]})
            console.print(
                f"Next: python -m har_pipeline prepare {reader.name} --data-root {root} --options '{labels}'",
                markup=False,
                soft_wrap=True,
            )
        can_be_read |= by_reader
    return can_be_read


def _lacks_option(reader: AppReader, source: AppSource) -> bool:
    """Whether a recording could be read with an option that has no default."""
    options = [key for key, value in reader.defaults.items() if value == ""]
    return any(f"option {key}" in export.problem for export in source.exports for key in options)


def show_found(reader: AppReader, source: AppSource, console: Console) -> None:
    """Print the recordings, their clients and words, and what isn't read."""
    vocabulary = reader.vocabulary(reader.options({"labels": _words(source)}))
    table = Table("recording", "clients", "annotations", "of")
    for export in source.usable[:MAX_SHOWN]:
        notes = Counter(note.text.strip() for note in export.annotations)
        clients = ", ".join(reader.clients_of(export, vocabulary).values())
        table.add_row(*(escape(cell) for cell in (export.name, clients, ", ".join(list(notes)[:5]), export.about)))
    if source.usable:
        console.print(table)
    console.print(f"{len(source.usable)} of {len(source.exports)} recordings can be read", markup=False)
    for words in _notes(source)[:MAX_SHOWN]:
        console.print(f"note      {words}", markup=False, soft_wrap=True)
    if found := _words(source):
        console.print(f"words     {', '.join(found)}: of annotations, or of names of folders and files", markup=False)


def _notes(source: AppSource) -> list[str]:
    """Return the reasons for what is left out, each once with its recordings."""
    same: dict[str, list[str]] = {}
    for remark in source.remarks:
        name, _, words = remark.partition(": ")
        same.setdefault(words, []).append(name)
    more = {words: f" (and {len(names) - 1} more)" if len(names) > 1 else "" for words, names in same.items()}
    return [*source.damaged, *(f"{names[0]}{more[words]}: {words}" for words, names in same.items())]


def _words(source: AppSource) -> list[str]:
    """Return possible activity words, most frequent first: annotation texts, else words of names."""
    texts = Counter(note.text.strip().lower() for export in source.usable for note in export.annotations)
    if not texts:
        texts = Counter(word for export in source.usable for word in name_words(export.name))
    return [text for text, _ in texts.most_common(MAX_SHOWN) if text and text not in ("stop", "end")]
