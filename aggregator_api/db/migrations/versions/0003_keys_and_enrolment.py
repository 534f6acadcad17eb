"""keys, the enrolment of devices, and answers to repeated requests."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # plain ADD COLUMN: a batch would drop and make again a table that others refer to
    op.add_column("devices", sa.Column("enrolment", sa.String(length=16), nullable=False, server_default="open"))
    op.add_column("devices", sa.Column("public_key", sa.String(length=44), nullable=True))
    op.add_column("devices", sa.Column("claimed_at", sa.BigInteger(), nullable=True))
    _credentials()
    _enrolment_tokens()
    _idempotent_requests()


def downgrade() -> None:
    op.drop_table("idempotent_requests")
    op.drop_table("enrolment_tokens")
    op.drop_table("credentials")
    op.drop_column("devices", "claimed_at")
    op.drop_column("devices", "public_key")
    op.drop_column("devices", "enrolment")


def _credentials() -> None:
    op.create_table(
        "credentials",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("prefix", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("federation_id", sa.Integer(), nullable=True),
        sa.Column("device_id", sa.Integer(), nullable=True),
        sa.Column("secret_sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("used_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_credentials_federation_id")),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_credentials_device_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_credentials")),
        sa.UniqueConstraint("prefix", name=op.f("uq_credentials_prefix")),
    )
    op.create_index(op.f("ix_credentials_device_id"), "credentials", ["device_id"], unique=False)


def _enrolment_tokens() -> None:
    op.create_table(
        "enrolment_tokens",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("federation_id", sa.Integer(), nullable=False),
        sa.Column("token_sha256", sa.String(length=64), nullable=False),
        sa.Column("device", sa.String(length=64), nullable=True),
        sa.Column("auto_approve", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("used_at", sa.Double(), nullable=True),
        sa.Column("used_by", sa.String(length=64), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_enrolment_tokens_federation_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_enrolment_tokens")),
        sa.UniqueConstraint("token_sha256", name=op.f("uq_enrolment_tokens_token_sha256")),
    )
    op.create_index(op.f("ix_enrolment_tokens_federation_id"), "enrolment_tokens", ["federation_id"], unique=False)


def _idempotent_requests() -> None:
    op.create_table(
        "idempotent_requests",
        sa.Column("caller", sa.String(length=32), nullable=False),
        sa.Column("key", sa.String(length=128), nullable=False),
        sa.Column("request_sha256", sa.String(length=64), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("headers", sa.JSON(), nullable=False),
        sa.Column("body", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("caller", "key", name=op.f("pk_idempotent_requests")),
    )
    op.create_index(op.f("ix_idempotent_requests_created_at"), "idempotent_requests", ["created_at"], unique=False)
