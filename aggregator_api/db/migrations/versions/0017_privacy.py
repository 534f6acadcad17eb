"""Keep why a device refuses its federation's plan, and who vouches for its key."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

COLUMNS = (("devices", "plan_refusal"), ("devices", "voucher"), ("federations", "revoked_identities"))


def upgrade() -> None:
    for table, column in COLUMNS:
        op.add_column(table, sa.Column(column, sa.Text(), nullable=False, server_default=""))
    op.add_column("devices", sa.Column("voucher_expires_at", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("devices", "voucher_expires_at")
    for table, column in COLUMNS:
        op.drop_column(table, column)
