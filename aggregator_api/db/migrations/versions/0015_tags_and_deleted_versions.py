"""tags of devices and of enrolment tokens; model versions whose bytes were deleted."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "device_tags",
        sa.Column("device_id", sa.Integer(), nullable=False),
        sa.Column("tag", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_device_tags_device_id")),
        sa.PrimaryKeyConstraint("device_id", "tag", name=op.f("pk_device_tags")),
    )
    op.create_index(op.f("ix_device_tags_tag"), "device_tags", ["tag"], unique=False)
    op.add_column("enrolment_tokens", sa.Column("tags", sa.JSON(), nullable=False, server_default="[]"))
    op.add_column("model_versions", sa.Column("deleted_at", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("model_versions", "deleted_at")
    op.drop_column("enrolment_tokens", "tags")
    op.drop_table("device_tags")
