"""The shell blocks of a Markdown document, fenced or indented, with the word before them that says why one is not run.

`<!-- not run: needs root -->` on the line above a block says that no test runs it, and why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SHELL = ("bash", "sh", "shell", "console")
_NOT_RUN = re.compile(r"<!--\s*not run:\s*(.*?)\s*-->", re.S)
_COMMAND = re.compile(
    r"^(?:[A-Z_]+=\S+ )*(?:sudo |\.venv/|~/|/opt/)?"
    r"(?:python3?|pip|make|curl|gaitway|ray|systemctl|journalctl|docker|apt(?:-get)?|mosquitto\w*|cd|cp|install|export|git|"
    r"pkg|proot-distro|psql|pg_\w+|openssl|echo|nginx|caddy|kubectl|sed|uv|promtool|bin/\S+|gaitway/bin/\S+|docs/\S+\.sh|"
    r"GAITWAY_\w+=\S+)(?:\s|$)"
)


class Block(NamedTuple):
    """One block; `not_run` is the reason, empty for one that is to be run; `heading` is the nearest one above."""

    file: Path
    line: int
    heading: str
    text: str
    not_run: str

    @property
    def name(self) -> str:
        """Where it is, for messages."""
        return f"{self.file.name}:{self.line}"


def shell_blocks(file: Path) -> Iterator[Block]:
    """Yield a document's shell blocks, top to bottom.

    A fence is one by its language; an indented block if its first line that is no comment begins with a command.
    """
    lines = file.read_text().splitlines()
    heading, remark, index = "", "", 0
    while index < len(lines):
        line = lines[index]
        if line.startswith("#"):
            heading, remark = line.lstrip("# "), ""
        elif line.startswith("<!--"):
            end = next(i for i in range(index, len(lines)) if "-->" in lines[i])
            found = _NOT_RUN.search("\n".join(lines[index : end + 1]))
            remark, index = " ".join(found[1].split()) if found else "", end
        elif line.lstrip().startswith("```"):
            indent = len(line) - len(line.lstrip())
            end = next(i for i in range(index + 1, len(lines)) if lines[i].strip() == "```")
            if line.strip()[3:].strip() in SHELL:
                text = "\n".join(body_line[indent:] for body_line in lines[index + 1 : end])
                yield Block(file, index + 2, heading, text, remark)
            remark, index = "", end
        elif line.startswith("    ") and (index == 0 or not lines[index - 1].strip()):
            end = index
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            text = "\n".join(
                body_line.strip() if not body_line.strip() else body_line[4:] for body_line in lines[index:end]
            ).rstrip()
            if _is_shell(text):
                yield Block(file, index + 1, heading, text, remark)
            remark, index = "", end - 1
        elif line.strip():
            remark = ""
        index += 1


def _is_shell(text: str) -> bool:
    first = next((line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")), "")
    return _COMMAND.match(first) is not None
