"""The vendored libraries are those of their releases, with their licences."""

from __future__ import annotations

import hashlib

from aggregator_api.http.web.phone import FILES, MEDIA_TYPES


def test_the_vendored_files_are_those_of_the_releases() -> None:
    listed = dict(reversed(line.split()) for line in (FILES / "SHA256SUMS").read_text().splitlines()[1:])
    assert set(listed) == {"LICENSE-htmx", "LICENSE-uPlot", "htmx.min.js", "uPlot.iife.min.js", "uPlot.min.css"}
    for name, expected in listed.items():
        assert hashlib.sha256((FILES / name).read_bytes()).hexdigest() == expected, name


def test_every_file_is_served_or_says_where_another_is_from() -> None:
    assert {path.name for path in FILES.iterdir()} == {*MEDIA_TYPES, "LICENSE-htmx", "LICENSE-uPlot", "SHA256SUMS"}
