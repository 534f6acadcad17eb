"""what a round spent of its clients' privacy."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("rounds", sa.Column("noise_multiplier", sa.Double(), nullable=True))
    op.add_column("rounds", sa.Column("epsilon", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("rounds", "epsilon")
    op.drop_column("rounds", "noise_multiplier")
