"""Keep which model a device can't use at all, and which versions were withdrawn for it."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("devices", sa.Column("refused_model", sa.String(64), nullable=False, server_default=""))
    op.add_column("devices", sa.Column("model_refusal", sa.Text(), nullable=False, server_default=""))
    op.add_column("model_versions", sa.Column("withdrawn", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("model_versions", "withdrawn")
    op.drop_column("devices", "model_refusal")
    op.drop_column("devices", "refused_model")
