"""Keep why a device refuses its federation's plan, in its own signed words."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("devices", sa.Column("plan_refusal", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("devices", "plan_refusal")
