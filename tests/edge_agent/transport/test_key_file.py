"""The key of a device that has not enrolled comes from a file; what enrolment brought goes before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.errors import ConfigError
from edge_agent.storage.credentials import key_of


def test_a_key_is_read_from_its_file_and_without_one_there_is_none(tmp_path: Path) -> None:
    assert key_of(None) is None
    (tmp_path / "key").write_text("gw_0a1b2c3d4e5f_secret\n")
    assert key_of(tmp_path / "key") == "gw_0a1b2c3d4e5f_secret"


@pytest.mark.parametrize("text", ["", "\n", "two words", "a\nb", "x" * 2000, "gw_\x00"])
def test_what_is_no_key_is_said_and_not_shown(tmp_path: Path, text: str) -> None:
    (tmp_path / "key").write_text(text)
    with pytest.raises(ConfigError, match="contains no API key; expected one line"):
        key_of(tmp_path / "key")
    with pytest.raises(ConfigError, match="cannot be read"):
        key_of(tmp_path / "none")
