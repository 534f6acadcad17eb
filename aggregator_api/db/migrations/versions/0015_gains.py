"""Keep with each version how much its devices' models gain over the shared one, in sums."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("model_versions", sa.Column("gains", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("model_versions", "gains")
