"""screening: whose weight a round has capped, whose update it has left out, and the norms that were usual in it."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("rounds", sa.Column("capped", sa.Integer(), server_default="0", nullable=False))
    op.add_column("rounds", sa.Column("left_out", sa.Integer(), server_default="0", nullable=False))
    op.add_column("rounds", sa.Column("norms", sa.JSON(), nullable=True))
    op.add_column("updates", sa.Column("counted_examples", sa.Integer(), nullable=True))


def downgrade() -> None:
    op.drop_column("updates", "counted_examples")
    op.drop_column("rounds", "norms")
    op.drop_column("rounds", "left_out")
    op.drop_column("rounds", "capped")
