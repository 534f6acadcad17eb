"""Sessions of browsers that look at the operator's pages."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "web_sessions",
        sa.Column("token_sha256", sa.String(length=64), nullable=False),
        sa.Column("credential_id", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["credential_id"],
            ["credentials.id"],
            name=op.f("fk_web_sessions_credential_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("token_sha256", name=op.f("pk_web_sessions")),
    )
    op.create_index(op.f("ix_web_sessions_credential_id"), "web_sessions", ["credential_id"], unique=False)
    op.create_index(op.f("ix_web_sessions_expires_at"), "web_sessions", ["expires_at"], unique=False)
