"""Published data sets whose layout a description says: a TOML file for each beside this one, read as anybody's is.

Its section `description` is what docs/data.md explains; it is strict, because a published set is as it was
published, or refused. The keys above that section say what the set is called, where it is found and whose it is:

- `archives`: an expression of the archives' names that are worth opening; `expected`: what is looked for, in words
- `client`: how the client is written, such as "s{:0>2}" for s07; words of paths are in lower case
- `device`, `place`: those of all clients, or "{suffix}": what follows the last _ of the client; or a table by suffix
- `options`: each stands in for a group of `files` where the path lacks it
- `settings`: what differs from the pipeline's defaults
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from importlib.resources import files

from gaitway.python310 import tomllib
from har_pipeline.description.files import DescribedFile, DescribedFiles, Matched, joined
from har_pipeline.description.model import description_of
from har_pipeline.description.sessions import recordings
from har_pipeline.origin import Origin
from har_pipeline.readers.archive import Layout, Source
from har_pipeline.readers.reader import Clients, Options, RecordingReader, chosen, require_source
from har_pipeline.recording import Recording, device_of, subject_of
from har_pipeline.settings import PipelineSettings


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
