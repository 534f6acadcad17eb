"""Python is held to `secure_sums.json`, to which a phone's JavaScript is held as well."""

from __future__ import annotations

from tests.vectors.secure_sums import PATH, text, vectors


def test_the_file_says_what_python_says() -> None:
    assert text(vectors()) == PATH.read_text(encoding="utf-8")
