"""Devices that are left out of rounds for a while, because they were invited and did not answer."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    whole = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.add_column("devices", sa.Column("missed_rounds", whole, server_default="0", nullable=False))
    op.add_column("devices", sa.Column("left_out_until", sa.Double(), nullable=True))


def downgrade() -> None:
    for column in ("missed_rounds", "left_out_until"):
        op.drop_column("devices", column)
