"""Data sets with a described layout: anyone's recordings, and published sets with a TOML file next to this one.

Anybody's description is in the options, as `har_pipeline describe` writes it. A published set's TOML file has it in the
section `description` (see docs/data.md); it is strict, because a published set is as it was
published, or refused. The keys above that section say what the set is called, where it is found and whose it is:

- `archives`: an expression of the archives' names that are worth opening; `expected`: what is looked for, in words
- `client`: how the client is written, such as "s{:0>2}" for s07; words of paths are in lower case
- `device`, `place`: those of all clients, or "{suffix}": what follows the last _ of the client; or a table by suffix
- `options`: each stands in for a group of `files` where the path lacks it
- `settings`: what differs from the pipeline's defaults

Acceleration: a description declares it, and its recordings leave as specific force (`Description.values`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from gaitway.python310 import tomllib
from har_pipeline.description.files import DescribedFile, DescribedFiles, Matched, find_files, joined
from har_pipeline.description.model import description_of
from har_pipeline.description.sessions import recordings
from har_pipeline.errors import SettingsError
from har_pipeline.readers.archive import Layout, Source
from har_pipeline.readers.reader import Clients, Options, RecordingReader, chosen, require_source
from har_pipeline.recording import Origin, Recording, device_of, subject_of
from har_pipeline.settings import PipelineSettings
from har_pipeline.units import AccelerationConvention


def published_reader(name: str) -> RecordingReader:
    """Read what `name`.toml says of a data set."""
    facts = tomllib.loads(files(__package__).joinpath(f"{name}.toml").read_text("utf-8"))
    description = description_of({"strict": True, **facts["description"]})
    # the reader turns accelerations round by what it declares, so they must not have been before
    as_written = description.model_copy(update={"acceleration": "specific force"})
    layout = Layout(
        re.compile(rf"(?:(?<=/)|^)(?:{description.files})$"), re.compile(facts["archives"]), facts["expected"]
    )
    instead: Mapping[str, Mapping[str, str]] = facts.get("options", {})

    def matched(match: re.Match[str], options: Options) -> Matched:
        words = match.groupdict()
        for option, group in instead.items():
            words[group["group"]] = words[group["group"]] or str(options[option])
        captured = {role: word.lower() for role, word in joined(words).items()}
        captured["client"] = facts.get("client", "{}").format(captured["client"])
        return Matched(captured, match.string)

    def read(source: Source | None, clients: Clients, options: Options) -> Iterator[Recording]:
        found = require_source(source, name)
        known = {attribute.name: getattr(found, attribute.name) for attribute in fields(Source)}
        chosen_files = _ChosenFiles(**known, matched=lambda match: matched(match, options), clients=clients)
        return recordings(as_written, chosen_files, clients)

    def origin(client: str) -> Origin:
        device, place = (_of_suffix(facts.get(what, ""), device_of(client)) for what in ("device", "place"))
        return Origin(name, subject_of(client), device, place)

    return RecordingReader(
        name=name,
        summary=facts["summary"],
        labels=lambda options: description.labels.names,
        layouts=lambda options: (layout,),
        recordings=read,
        acceleration=description.acceleration,
        origin=origin,
        defaults={option: group["default"] for option, group in instead.items()},
        settings=PipelineSettings(**facts.get("settings", {})),
    )


@dataclass(frozen=True, kw_only=True)
class _ChosenFiles(DescribedFiles):
    """The files of a layout that are of the chosen clients; `matched` says what a path says."""

    matched: Callable[[re.Match[str]], Matched] = field(repr=False)
    clients: Clients

    def each(self) -> Iterator[DescribedFile]:
        """Yield them in the container's order."""
        for match, member in self.members():
            path = self.matched(match)
            if chosen(path.captured["client"], self.clients):
                yield DescribedFile(member.name, member.path, path, member.open)


def _of_suffix(fact: str | Mapping[str, str], suffix: str) -> str:
    return fact.format(suffix=suffix) if isinstance(fact, str) else fact.get(suffix, "")


DESCRIBED = "described"
USAGE = (
    "give --describe data.toml, which `python -m har_pipeline describe PATH --out data.toml` writes a first version of"
)


class DescribedReader(RecordingReader):
    """A set whose files and labels are what its options say."""

    def options(self, given: Options | None) -> dict[str, Any]:
        """Check a description, and return it as JSON; raises SettingsError."""
        if given is None or given == {}:
            raise SettingsError(f"{DESCRIBED}: no description of the files; {USAGE}")
        return description_of(given).to_json()

    def open(self, root: Path | str | None, options: Options) -> DescribedFiles:
        """Find the files under root; raises SourceError where there is none."""
        return find_files(description_of(options), root)

    def leaves_out(self, options: Options) -> bool:
        """Whether what cannot be read is left out, by the description."""
        return not description_of(options).strict

    def convention(self, options: Options) -> AccelerationConvention:
        """Return what the description declares; its recordings are specific force already."""
        return description_of(options).acceleration if options else self.acceleration

    def expected(self, options: Options) -> str:
        """Say which files are looked for."""
        return f"files = '{description_of(options).files}'" if options else "the files in --describe data.toml"


def _number(options: Options) -> str:
    described = description_of(options).number if options else None
    return described.label if described else ""


def _labels(options: Options) -> tuple[str, ...]:
    if not options:
        return ()
    names = description_of(options).labels.names
    if not names and not _number(options):
        raise SettingsError(f'{DESCRIBED}: it needs labels, as in labels = ["walking", "sitting"]; {USAGE}')
    return names


def _recordings(source: Source | None, clients: Clients, options: Options) -> Iterator[Recording]:
    if not isinstance(source, DescribedFiles):
        raise SettingsError(f"the reader {DESCRIBED} needs files; open it with a root")
    yield from recordings(description_of(options), source, clients)


READER = DescribedReader(
    name=DESCRIBED,
    summary="any recordings in text files, with a description in TOML (--describe data.toml)",
    labels=_labels,
    layouts=lambda options: (),
    recordings=_recordings,
    acceleration="specific force",
    declared_hz=lambda options: description_of(options).declared_hz,
    number=_number,
    origin=lambda client: Origin(DESCRIBED, subject_of(client), device_of(client)),
)
