"""leases: which server process drives a federation."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "leases",
        sa.Column("federation_id", sa.Integer(), nullable=False),
        sa.Column("holder", sa.String(length=128), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("nudges", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_leases_federation_id")),
        sa.PrimaryKeyConstraint("federation_id", name=op.f("pk_leases")),
    )


def downgrade() -> None:
    op.drop_table("leases")
