"""Keep what secure sums that failed say of their devices, and what the rounds after them are of."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("secure_sums", sa.Column("finding", sa.Text(), server_default="", nullable=False))
    op.add_column("secure_sums", sa.Column("retry", sa.Text(), server_default="", nullable=False))


def downgrade() -> None:
    op.drop_column("secure_sums", "retry")
    op.drop_column("secure_sums", "finding")
