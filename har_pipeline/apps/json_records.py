"""A JSON file that is one array of records, in constant memory."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any

from har_pipeline.description.files import Bytes
from har_pipeline.errors import SourceError

MAX_RECORD = 1 << 16
BLOCK_BYTES = 1 << 16
FIRST, BETWEEN = re.compile(r"\s*\["), re.compile(r"[\s,]*")


def json_records(stream: Bytes, name: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of an array one after another.

    Raises:
        SourceError: if it is no array of objects, or one is longer than MAX_RECORD characters.
    """
    blocks = _text_of(stream)
    decoder, text = json.JSONDecoder(), next(blocks, "")
    if not (first := FIRST.match(text)):
        raise SourceError(f"{name} is not an array of records: it begins with {text[:50]!r}")
    end = first.end()
    while True:
        between = BETWEEN.match(text, end)  # always, if only nothing
        at = between.end() if between else end
        try:
            record, end = decoder.raw_decode(text, at)
        except ValueError as error:
            block = next(blocks, "")
            if len(text) - at > MAX_RECORD or (not block and text[at:].strip() not in ("", "]")):
                raise SourceError(f"{name} is not an array of records: {str(error)[:100]}; export it again") from error
            if not block:
                return
            text, end = text[at:] + block, 0
            continue
        except RecursionError as error:
            raise SourceError(f"{name} is nested too deeply for an array of records") from error
        if not isinstance(record, dict):
            raise SourceError(f"{name} is not an array of records: it holds {str(record)[:50]!r}")
        yield record


def _text_of(stream: Bytes) -> Iterator[str]:
    """Yield a stream's text in blocks, none of them empty."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
    while data := stream.read(BLOCK_BYTES):
        if text := decoder.decode(data):
            yield text
    if text := decoder.decode(b"", final=True):
        yield text
