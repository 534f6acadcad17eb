"""clones: when two programs were last heard under one device's name."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("devices", sa.Column("cloned_at", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("devices", "cloned_at")
