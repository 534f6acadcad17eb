"""norms of updates: what is usual in a round survives a restart."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("updates", sa.Column("norms", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("updates", "norms")
