"""sizes beyond 2 GiB, which hostile manifests announce; an INTEGER of SQLite holds them already."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

SIZES = (("updates", "size"), ("model_versions", "broadcast_size"), ("participations", "broadcast_size"))


def upgrade() -> None:
    _alter(sa.Integer(), sa.BigInteger())


def downgrade() -> None:
    _alter(sa.BigInteger(), sa.Integer())


def _alter(before: sa.types.TypeEngine[int], after: sa.types.TypeEngine[int]) -> None:
    if op.get_bind().dialect.name == "postgresql":
        for table, column in SIZES:
            op.alter_column(table, column, existing_type=before, type_=after)
