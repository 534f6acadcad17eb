"""Keep what each device has in the sums of a continuous federation; rename the feature model's columns."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

COLUMNS = (
    ("federations", "light_model_sha256", "feature_model_sha256"),
    ("federations", "light_model_size", "feature_model_size"),
)
"""Table, old and new name; both databases rename in place."""


def upgrade() -> None:
    for table, old, new in COLUMNS:
        op.execute(f"ALTER TABLE {table} RENAME COLUMN {old} TO {new}")
    whole = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    sha256 = sa.String(length=64)
    op.create_table(
        "contributions",
        sa.Column("id", whole, nullable=False),
        sa.Column("federation_id", whole, nullable=False),
        sa.Column("device_id", whole, nullable=True),
        sa.Column("sequence", whole, nullable=False),
        sa.Column("update_id", sa.String(length=64), nullable=False),
        sa.Column("update_sha256", sha256, nullable=False),
        sa.Column("sha256", sha256, nullable=True),
        sa.Column("size", whole, nullable=True),
        sa.Column("examples", whole, nullable=False),
        sa.Column("class_counts", sa.JSON(), nullable=True),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.Column("changed_at", sa.Double(), nullable=True),
        sa.Column("round_id", whole, nullable=True),
        sa.Column("taken_sha256", sha256, nullable=True),
        sa.Column("taken_update_id", sa.String(length=64), nullable=True),
        sa.Column("published_sha256", sha256, nullable=True),
        sa.Column("published_version", whole, nullable=True),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_contributions_federation_id")),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_contributions_device_id")),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_contributions_round_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_contributions")),
        sa.UniqueConstraint("device_id", name=op.f("uq_contributions_device_id")),
    )
    op.create_index("ix_contributions_federation_id_changed_at", "contributions", ["federation_id", "changed_at"])
    op.create_index(op.f("ix_contributions_sha256"), "contributions", ["sha256"])


def downgrade() -> None:
    op.drop_table("contributions")
    for table, old, new in COLUMNS:
        op.execute(f"ALTER TABLE {table} RENAME COLUMN {new} TO {old}")
