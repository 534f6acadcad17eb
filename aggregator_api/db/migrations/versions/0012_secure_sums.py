"""Keep the stages of secure sums, and what their numbers mean."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    whole = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.add_column("federations", sa.Column("sum_layout", sa.JSON(), nullable=True))
    op.create_table(
        "secure_sums",
        sa.Column("round_id", whole, nullable=False),
        sa.Column("stage", sa.String(length=16), nullable=False),
        sa.Column("request", sa.LargeBinary(), nullable=False),
        sa.Column("members", sa.LargeBinary(), nullable=False),
        sa.Column("dealers", sa.JSON(), nullable=False),
        sa.Column("included", sa.LargeBinary(), nullable=False),
        sa.Column("total", sa.LargeBinary(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("listed_devices", whole, nullable=False),
        sa.Column("summed_devices", whole, nullable=False),
        sa.Column("deadline_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_secure_sums_round_id")),
        sa.PrimaryKeyConstraint("round_id", name=op.f("pk_secure_sums")),
    )
    said = ("identity", "keys", "shares", "vector", "signature", "opened")
    op.create_table(
        "secure_sum_devices",
        sa.Column("round_id", whole, nullable=False),
        sa.Column("device_id", whole, nullable=False),
        *(sa.Column(name, sa.LargeBinary(), nullable=False) for name in said),
        sa.Column("uploaded", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_secure_sum_devices_round_id")),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_secure_sum_devices_device_id")),
        sa.PrimaryKeyConstraint("round_id", "device_id", name=op.f("pk_secure_sum_devices")),
    )


def downgrade() -> None:
    op.drop_table("secure_sum_devices")
    op.drop_table("secure_sums")
    op.drop_column("federations", "sum_layout")
