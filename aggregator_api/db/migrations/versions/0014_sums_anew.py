"""Keep what all members of a large sum are told as a blob, and whose sums are collected again without them."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    whole = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.add_column("secure_sums", sa.Column("shared_sha256", sa.String(length=64), nullable=True))
    op.add_column("secure_sums", sa.Column("shared_size", whole, nullable=True))
    op.add_column("secure_sums", sa.Column("is_anew", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.add_column("masked_contributions", sa.Column("leaving_at", sa.Double(), nullable=True))
    op.add_column("federations", sa.Column("anew_due_at", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("federations", "anew_due_at")
    op.drop_column("masked_contributions", "leaving_at")
    for name in ("is_anew", "shared_size", "shared_sha256"):
        op.drop_column("secure_sums", name)
