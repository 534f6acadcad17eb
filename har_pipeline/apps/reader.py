"""A reader of one app's exports: identifies its files, and their recordings' users and activities.

A recording's user is the one that the export names (a device's id), else the first folder of its path, unless that is
the recording itself or named after an activity, else "me". Its client is the user plus the device worn: `anna_phone`,
`anna_watch`. Its activities come from its annotations, else from its path.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from har_pipeline.apps.export import STOP_WORDS, ActivityWords, AppExport, AppTable
from har_pipeline.apps.files import FileHead, Inspect, as_file, each_member, read_heads
from har_pipeline.description.files import DescribedFile
from har_pipeline.description.samples import Part
from har_pipeline.description.sessions import SessionStore
from har_pipeline.errors import GroupedReport, Report, SettingsError, SourceError
from har_pipeline.readers.archive import Layout, Source, printable
from har_pipeline.readers.reader import Clients, Options, ReadRecordings, RecordingReader, chosen
from har_pipeline.recording import Categorical, Origin, Recording, device_of, subject_of

log = logging.getLogger(__name__)

FindExports = Callable[[Sequence[FileHead], Options], list[AppExport]]
NOBODY = "me"
LABEL_OPTIONS: dict[str, Any] = {
    "labels": [],
    "annotations": {},
    "stop_annotations": list(STOP_WORDS),
    "strict": False,
}
"""Options: the activities in the order of their indices; other words for them; annotations that end one; whether to
reject unreadable files instead of leaving them out."""
NOTHING = re.compile("(?!)")


@dataclass(frozen=True)
class AppSource(Source):
    """The exports of one app under a root; `remarks` say what is left out, `damaged` what is broken."""

    exports: tuple[AppExport, ...] = ()
    remarks: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()

    @property
    def usable(self) -> tuple[AppExport, ...]:
        """The readable exports."""
        return tuple(export for export in self.exports if not export.problem)


@dataclass(frozen=True, kw_only=True)
class AppReader(RecordingReader):
    """A data set of one app's files, in any folders and archives; accelerations are specific force.

    `looks_like` says whether the app wrote a file, `find` groups such files into exports, and `inspect` examines whole
    files whose beginning isn't enough. Labels come from the options.
    """

    app: str
    expects: str
    labels: Callable[[Options], tuple[str, ...]] = field(init=False, repr=False)
    layouts: Callable[[Options], tuple[Layout, ...]] = field(init=False, repr=False)
    defaults: Options = field(default_factory=lambda: LABEL_OPTIONS)
    recordings: ReadRecordings = field(init=False, repr=False)
    origin: Callable[[str], Origin] = field(init=False, repr=False)
    looks_like: Callable[[FileHead], bool] = field(repr=False)
    find: FindExports = field(repr=False)
    inspect: Inspect | None = field(default=None, repr=False)
    acceleration: Literal["specific force"] = "specific force"

    def __post_init__(self) -> None:
        """Set up labels, recordings and origins as for every app's reader."""
        object.__setattr__(self, "labels", self._labels)
        object.__setattr__(self, "layouts", lambda options: ())
        object.__setattr__(self, "recordings", partial(app_recordings, self))
        object.__setattr__(self, "origin", lambda client: Origin(self.name, subject_of(client), device_of(client)))

    def options(self, given: Options | None) -> dict[str, Any]:
        """Merge the given options with the defaults; raise SettingsError for an unknown option or a wrong type."""
        options = super().options(given)
        for key in ("labels", "stop_annotations"):
            if not isinstance(options[key], list | tuple) or not all(isinstance(entry, str) for entry in options[key]):
                raise SettingsError(f'{self.name}: {key} is {options[key]!r}; expected a list, as in ["walking"]')
        if not isinstance(options["strict"], bool):
            raise SettingsError(f"{self.name}: strict is {options['strict']!r}; expected true or false")
        annotations = options["annotations"]
        if not isinstance(annotations, dict) or not all(isinstance(activity, str) for activity in annotations.values()):
            raise SettingsError(f'{self.name}: annotations is {annotations!r}; expected as in {{"up": "stairs_up"}}')
        if len(set(options["labels"])) < len(options["labels"]):
            raise SettingsError(f"{self.name}: labels names an activity twice; name each once")
        return options

    def expected(self, options: Options) -> str:
        """Say which files are looked for."""
        return self.expects

    def recognizes(self, root: Path | str) -> bool:
        """Whether the app wrote a file in a folder or archive, or the file itself."""
        return any(self.looks_like(head) for head in read_heads(Path(root), lambda words: None))

    def open(self, root: Path | str | None, options: Options) -> AppSource:
        """Find the app's exports under root; raise SourceError if none can be read."""
        if root is None:
            raise SourceError(f"{self.name} needs its data: give --data-root DATA; expected {self.expects}")
        if not Path(root).exists():
            raise SourceError(f"{root} does not exist; expected {self.expects}")
        source = self.look(Path(root), options)
        problems = [f"{export.name}: {export.problem}" for export in source.exports if export.problem]
        if len(problems) == len(source.exports):
            first = problems[0] if problems else f"no export of {self.app} under {root}; expected {self.expects}"
            more = f" (and {len(problems) - 1} more recordings can't be read)" if len(problems) > 1 else ""
            raise SourceError("; ".join([f"{first}{more}", *source.damaged]))
        return source

    def look(self, root: Path, options: Options) -> AppSource:
        """Find the app's exports under root, readable or not."""
        damaged = list[str]()
        heads = [head for head in read_heads(root, damaged.append, self.inspect) if self.looks_like(head)]
        folder = printable(root.resolve().name)
        exports = [
            replace(export, name=folder) if export.name == "." else export for export in self.find(heads, options)
        ]
        problems = [f"{export.name}: {export.problem}" for export in exports if export.problem]
        remarks = (*problems, *(f"{export.name}: {words}" for export in exports for words in export.remarks))
        inputs = tuple(sorted({path for export in exports for path in export.paths}))
        layout = Layout(NOTHING, NOTHING, self.expects)
        return AppSource(root, "", layout, len(exports), inputs, tuple(exports), remarks, tuple(damaged))

    def clients_of(self, export: AppExport, vocabulary: ActivityWords) -> dict[str, str]:
        """Name the client of each device in an export."""
        folders = PurePosixPath(export.name).parts[:-1]
        named = folders and not vocabulary.activity_in_name(folders[0])
        user = export.user or (folders[0] if named else NOBODY)
        return {device: f"{user}_{device}" for device in dict.fromkeys(table.device for table in export.tables)}

    def vocabulary(self, options: Options) -> ActivityWords:
        """Return the words' meanings by the options; raise SettingsError for an activity that isn't a label."""
        vocabulary = ActivityWords(options["labels"], options["annotations"], options["stop_annotations"])
        if vocabulary.unknown:
            raise SettingsError(
                f"{self.name}: annotations maps a word to {vocabulary.unknown[0]!r}, which isn't a label; labels are "
                f"{list(vocabulary.labels)}"
            )
        return vocabulary

    def _labels(self, options: Options) -> tuple[str, ...]:
        if not options["labels"]:
            raise SettingsError(
                f"{self.name}: labels are missing, the activities in the order of their indices; give them as in "
                """--options '{"labels": ["sitting", "walking"]}' or --set 'data.labels=["sitting", "walking"]'; """
                "`python -m har_pipeline describe PATH` lists the recordings' words"
            )
        return tuple(options["labels"])


def app_recordings(
    reader: AppReader, source: Source | None, clients: Clients, options: Options, report: Report = log.warning
) -> Iterator[Recording]:
    """Yield the recordings of an app's exports, each client's in order of time; report what is left out."""
    if not isinstance(source, AppSource):
        raise SettingsError(f"the reader {reader.name} needs files; open it with a root")
    vocabulary = reader.vocabulary(options)
    wanted: dict[str, list[tuple[AppExport, AppTable, str]]] = {}
    for export in source.usable:
        names = reader.clients_of(export, vocabulary)
        for table in export.tables:
            if chosen(names[table.device], clients):
                wanted.setdefault(table.name, []).append((export, table, names[table.device]))
    with GroupedReport(report) as grouped, SessionStore(grouped) as store:
        for words in (*source.damaged, *source.remarks):
            grouped(words)
        _tell_words(source, vocabulary, grouped)
        refused = list[SourceError]()
        for member in each_member(source.root, lambda words: None, source.inputs):
            for export, table, client in wanted.get(member.name, []):
                store.begin_file(member.name)
                try:
                    for part, recording in _labelled(export, table, as_file(member), client, vocabulary):
                        store.add(part, recording)
                except SourceError as error:
                    if len(source.usable) == 1 or options["strict"]:
                        raise
                    refused.append(error)
                    grouped(f"{error}. The file is left out")
                    store.forget_file()
        if refused and len(refused) == store.file_count:
            raise refused[0]
        yield from store.recordings()


def _labelled(
    export: AppExport, table: AppTable, file: DescribedFile, client: str, vocabulary: ActivityWords
) -> Iterator[tuple[Part, Recording]]:
    """Yield a table's samples with their activities."""
    activity: str | Categorical = vocabulary.activity_in_name(export.name)
    for part, times_s, values, line in table.read(file):
        if export.annotations:
            activity = Categorical.of(vocabulary.activities_at(times_s, export.annotations))
        sensor: Literal["acc", "gyro"] = "gyro" if part == "gyro" else "acc"
        yield part, Recording(client, export.name, activity, sensor, times_s, values, file.name, line)


def _tell_words(source: AppSource, vocabulary: ActivityWords, report: Report) -> None:
    """Report unknown annotations, and recordings without any activity."""
    if not vocabulary.labels:
        return
    texts = Counter(note.text.strip() for export in source.usable for note in export.annotations)
    unknown = [text for text in texts if vocabulary.activity_of(text) is None]
    if unknown:
        report(
            f"unknown annotations, after which nothing is labelled: {', '.join(map(repr, unknown[:10]))}"
            f"{f' and {len(unknown) - 10} more' if len(unknown) > 10 else ''}; "
            "name them in annotations or stop_annotations"
        )
    unnamed = [
        export.name
        for export in source.usable
        if not export.annotations and not vocabulary.activity_in_name(export.name)
    ]
    if unnamed:
        more = f" and {len(unnamed) - 3} more" if len(unnamed) > 3 else ""
        report(
            f"unlabelled, since there is no annotation and no folder or file is named after one activity: "
            f"{', '.join(unnamed[:3])}{more}"
        )
