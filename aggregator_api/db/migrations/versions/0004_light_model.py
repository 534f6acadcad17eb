"""The model for devices that cannot train."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("federations") as batch:
        batch.add_column(sa.Column("light_model_sha256", sa.String(length=64), nullable=True))
        batch.add_column(
            sa.Column("light_model_size", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True)
        )
