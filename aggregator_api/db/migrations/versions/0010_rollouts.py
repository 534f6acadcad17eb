"""rollouts: the staged release of model versions, and what devices have answered."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "rollouts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("federation_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("version_id", sa.Integer(), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("serial", sa.Integer(), nullable=False),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("wave", sa.Integer(), nullable=False),
        sa.Column("wave_at", sa.Double(), nullable=False),
        sa.Column("members", sa.Integer(), nullable=False),
        sa.Column("good", sa.Integer(), nullable=False),
        sa.Column("bad", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("enlisted_to", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_rollouts_federation_id")),
        sa.ForeignKeyConstraint(["version_id"], ["model_versions.id"], name=op.f("fk_rollouts_version_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rollouts")),
        sa.UniqueConstraint("federation_id", "number", name=op.f("uq_rollouts_federation_id_number")),
    )
    op.create_index(op.f("ix_rollouts_serial"), "rollouts", ["serial"], unique=False)
    op.create_index(op.f("ix_rollouts_phase"), "rollouts", ["phase"], unique=False)
    op.create_table(
        "rollout_devices",
        sa.Column("rollout_id", sa.Integer(), nullable=False),
        sa.Column("device_id", sa.Integer(), nullable=False),
        sa.Column("wave", sa.Integer(), nullable=False),
        sa.Column("answer", sa.String(length=16), nullable=False),
        sa.Column("score", sa.Double(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("told_at", sa.Double(), nullable=False),
        sa.Column("answered_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["rollout_id"], ["rollouts.id"], name=op.f("fk_rollout_devices_rollout_id")),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_rollout_devices_device_id")),
        sa.PrimaryKeyConstraint("rollout_id", "device_id", name=op.f("pk_rollout_devices")),
    )


def downgrade() -> None:
    op.drop_table("rollout_devices")
    op.drop_table("rollouts")
