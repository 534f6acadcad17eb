"""the first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "federations",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column("upload_schema", sa.JSON(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_federations")),
        sa.UniqueConstraint("name", name=op.f("uq_federations_name")),
    )
    op.create_table(
        "devices",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("federation_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("examples", sa.Integer(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("enrolled_at", sa.Double(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_devices_federation_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_devices")),
        sa.UniqueConstraint("federation_id", "name", name=op.f("uq_devices_federation_id_name")),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("federation_id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("round_number", sa.Integer(), nullable=False),
        sa.Column("device", sa.String(length=64), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_events_federation_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("events", schema=None) as batch_op:
        batch_op.create_index("ix_events_federation_id_id", ["federation_id", "id"], unique=False)

    op.create_table(
        "model_versions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("federation_id", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("round_number", sa.Integer(), nullable=False),
        sa.Column("state_sha256", sa.String(length=64), nullable=False),
        sa.Column("broadcast_sha256", sa.String(length=64), nullable=False),
        sa.Column("broadcast_size", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_model_versions_federation_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_model_versions")),
        sa.UniqueConstraint("federation_id", "version", name=op.f("uq_model_versions_federation_id_version")),
    )
    with op.batch_alter_table("model_versions", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_model_versions_broadcast_sha256"), ["broadcast_sha256"], unique=False)

    op.create_table(
        "metrics",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("federation_id", sa.Integer(), nullable=False),
        sa.Column("device_id", sa.Integer(), nullable=False),
        sa.Column("round_number", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("recorded_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_metrics_device_id")),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_metrics_federation_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_metrics")),
        sa.UniqueConstraint(
            "federation_id",
            "round_number",
            "device_id",
            "name",
            name=op.f("uq_metrics_federation_id_round_number_device_id_name"),
        ),
    )
    op.create_table(
        "model_aliases",
        sa.Column("federation_id", sa.Integer(), nullable=False),
        sa.Column("alias", sa.String(length=16), nullable=False),
        sa.Column("version_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_model_aliases_federation_id")),
        sa.ForeignKeyConstraint(["version_id"], ["model_versions.id"], name=op.f("fk_model_aliases_version_id")),
        sa.PrimaryKeyConstraint("federation_id", "alias", name=op.f("pk_model_aliases")),
    )
    op.create_table(
        "rounds",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("federation_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("deadline_passed", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("base_version_id", sa.Integer(), nullable=False),
        sa.Column("deadline_at", sa.Double(), nullable=True),
        sa.Column("opened_at", sa.Double(), nullable=False),
        sa.Column("closed_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["base_version_id"], ["model_versions.id"], name=op.f("fk_rounds_base_version_id")),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_rounds_federation_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rounds")),
        sa.UniqueConstraint("federation_id", "number", name=op.f("uq_rounds_federation_id_number")),
    )
    op.create_table(
        "participations",
        sa.Column("round_id", sa.Integer(), nullable=False),
        sa.Column("device_id", sa.Integer(), nullable=False),
        sa.Column("invited", sa.Boolean(), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("rounds_late", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_participations_device_id")),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_participations_round_id")),
        sa.PrimaryKeyConstraint("round_id", "device_id", name=op.f("pk_participations")),
    )
    op.create_table(
        "updates",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("federation_id", sa.Integer(), nullable=False),
        sa.Column("device_id", sa.Integer(), nullable=False),
        sa.Column("round_id", sa.Integer(), nullable=True),
        sa.Column("update_id", sa.String(length=64), nullable=False),
        sa.Column("base_round", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("manifest", sa.JSON(), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_updates_device_id")),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_updates_federation_id")),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_updates_round_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_updates")),
        sa.UniqueConstraint("device_id", "update_id", name=op.f("uq_updates_device_id_update_id")),
        sa.UniqueConstraint("round_id", "device_id", name=op.f("uq_updates_round_id_device_id")),
    )
    with op.batch_alter_table("updates", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_updates_federation_id"), ["federation_id"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("updates", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_updates_federation_id"))

    op.drop_table("updates")
    op.drop_table("participations")
    op.drop_table("rounds")
    op.drop_table("model_aliases")
    op.drop_table("metrics")
    with op.batch_alter_table("model_versions", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_model_versions_broadcast_sha256"))

    op.drop_table("model_versions")
    with op.batch_alter_table("events", schema=None) as batch_op:
        batch_op.drop_index("ix_events_federation_id_id")

    op.drop_table("events")
    op.drop_table("devices")
    op.drop_table("federations")
