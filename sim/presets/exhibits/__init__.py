"""Each paper's tables and figures: our commands, both results, or why there is none; one TOML file per paper."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib.resources import files

from pydantic import BaseModel, ConfigDict, Field, model_validator

PAPERS = ("ek2024", "tan2022", "michieli2021", "qiao2023")
"""As the presets' names begin."""
NONE = "–"


class Exhibit(BaseModel):
    """A table or figure of a paper; a command that makes ours, or the reason why there is none."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: str = Field(description="as the paper has it, such as Table 1 or Fig. 4")
    shows: str
    commands: tuple[str, ...] = ()
    theirs: str = NONE
    ours: str = NONE
    reason: str = ""

    @model_validator(mode="after")
    def _is_made_or_explained(self) -> Exhibit:
        if not self.commands and not self.reason:
            raise ValueError(f"{self.number}: give the commands that make it, or the reason why there are none")
        return self


class Paper(BaseModel):
    """A paper and all of its tables and figures, in its own order."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    exhibit: tuple[Exhibit, ...]


def paper_named(name: str) -> Paper:
    """Read a paper's tables and figures."""
    return Paper.model_validate(tomllib.loads(files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8")))


def all_papers() -> Iterator[tuple[str, Paper]]:
    """Yield every paper by its name."""
    return ((name, paper_named(name)) for name in PAPERS)


def markdown(paper: Paper) -> list[str]:
    """Return the lines of a paper's section in a document: the tables and figures of which there is one of ours."""
    lines = [f"### {paper.title}", "", "| | shows | theirs | ours | note |", "| --- | --- | --- | --- | --- |"]
    return lines + [
        f"| {exhibit.number} | {exhibit.shows} | {exhibit.theirs} | {exhibit.ours} | {exhibit.reason} |"
        for exhibit in paper.exhibit
        if exhibit.ours != NONE
    ]
