"""epoch: how often the server was restored."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    table = op.create_table(
        "server_epoch",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("restored_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_server_epoch")),
    )
    op.bulk_insert(table, [{"id": 1, "epoch": 1, "restored_at": None}])


def downgrade() -> None:
    op.drop_table("server_epoch")
