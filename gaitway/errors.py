"""The root of every error that one of the packages raises on purpose; each package draws its own tree below it."""

from __future__ import annotations


class GaitwayError(Exception):
    """What came, what was expected, and what to do; anything else that is raised is a bug."""
