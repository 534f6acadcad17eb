"""Keep which batch has each device's masked sums, and what the newest batch has added."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    whole = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.add_column("secure_sums", sa.Column("added", sa.LargeBinary(), nullable=True))
    op.create_table(
        "masked_contributions",
        sa.Column("device_id", whole, nullable=False),
        sa.Column("federation_id", whole, nullable=False),
        sa.Column("batch", sa.String(length=64), nullable=False),
        sa.Column("version", whole, nullable=True),
        sa.Column("changed_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_masked_contributions_device_id")),
        sa.ForeignKeyConstraint(
            ["federation_id"], ["federations.id"], name=op.f("fk_masked_contributions_federation_id")
        ),
        sa.PrimaryKeyConstraint("device_id", name=op.f("pk_masked_contributions")),
    )
    columns = ["federation_id", "changed_at"]
    op.create_index("ix_masked_contributions_federation_id_changed_at", "masked_contributions", columns)


def downgrade() -> None:
    op.drop_table("masked_contributions")
    op.drop_column("secure_sums", "added")
