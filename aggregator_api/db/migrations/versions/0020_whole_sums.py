"""Keep which version has each device's masked sums by their number: every sum takes the place of the one before."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TABLE = "masked_contributions"


def upgrade() -> None:
    op.drop_index(f"ix_{TABLE}_federation_id_changed_at", TABLE)
    for name in ("batch", "changed_at", "leaving_at"):
        op.drop_column(TABLE, name)
    for name in ("sequence", "reported"):
        op.add_column(TABLE, sa.Column(name, WHOLE, server_default="0", nullable=False))
    op.create_index(f"ix_{TABLE}_federation_id_version", TABLE, ["federation_id", "version"])
    op.add_column("secure_sum_devices", sa.Column("sequence", WHOLE, server_default="0", nullable=False))
    op.drop_column("secure_sums", "added")
    op.drop_column("secure_sums", "is_anew")
    op.drop_column("federations", "anew_due_at")


def downgrade() -> None:
    op.add_column("federations", sa.Column("anew_due_at", sa.Double(), nullable=True))
    op.add_column("secure_sums", sa.Column("is_anew", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.add_column("secure_sums", sa.Column("added", sa.LargeBinary(), nullable=True))
    op.drop_column("secure_sum_devices", "sequence")
    op.drop_index(f"ix_{TABLE}_federation_id_version", TABLE)
    for name in ("sequence", "reported"):
        op.drop_column(TABLE, name)
    op.add_column(TABLE, sa.Column("batch", sa.String(length=64), server_default="", nullable=False))
    for name in ("changed_at", "leaving_at"):
        op.add_column(TABLE, sa.Column(name, sa.Double(), nullable=True))
    op.create_index(f"ix_{TABLE}_federation_id_changed_at", TABLE, ["federation_id", "changed_at"])
