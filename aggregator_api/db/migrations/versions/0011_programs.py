"""Keep the program of each federation, for devices without torch; those that are there have none."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

NOTE = "the federation was created before servers made programs; create another one from its model"


def upgrade() -> None:
    whole = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.add_column(
        "federations", sa.Column("program_state", sa.String(length=16), nullable=False, server_default="none")
    )
    op.add_column("federations", sa.Column("program_note", sa.Text(), nullable=False, server_default=""))
    op.add_column("federations", sa.Column("program_sha256", sa.String(length=64), nullable=True))
    op.add_column("federations", sa.Column("program_size", whole, nullable=True))
    op.execute(f"UPDATE federations SET program_note = '{NOTE}'")


def downgrade() -> None:
    for name in ("program_size", "program_sha256", "program_note", "program_state"):
        op.drop_column("federations", name)
