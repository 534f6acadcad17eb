"""What all tables share: column types, naming of constraints, blobs."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from sqlalchemy import BigInteger, Integer, MetaData, String
from sqlalchemy.orm import DeclarativeBase

NAME = String(64)
SHA256 = String(64)
NAMES_A_DEVICE = "names a device"
"""In the `info` of a column that holds devices' names, so that its rows are deleted with the device."""
SIZE = BigInteger().with_variant(Integer(), "sqlite")  # an INTEGER of SQLite holds 64 bits


class Blob(NamedTuple):
    """A blob as rows name it: its sha256, and its size in bytes."""

    sha256: str
    size: int


class Base(DeclarativeBase):
    """Names every constraint, so that a later migration can change it on any database.

    A whole number has 64 bits on any database: cursors and numbers of rounds come from outside as large as that.
    """

    type_annotation_map: ClassVar[dict[Any, Any]] = {int: SIZE}
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
