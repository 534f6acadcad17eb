"""Keep how much devices' models gain over the shared one: each device's report in the sums, and each version's sums."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

TABLES = ("model_versions", "contributions")


def upgrade() -> None:
    for table in TABLES:
        op.add_column(table, sa.Column("gains", sa.JSON(), nullable=True))


def downgrade() -> None:
    for table in TABLES:
        op.drop_column(table, "gains")
