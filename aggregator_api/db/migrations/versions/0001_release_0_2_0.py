"""The tables of release 0.2.0."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

APPEND_ONLY = "the audit is append-only"


def upgrade() -> None:
    op.create_table(
        "audit_entries",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("actor", sa.String(length=96), nullable=False),
        sa.Column("address", sa.String(length=64), nullable=False),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("federation", sa.String(length=64), nullable=False),
        sa.Column("device", sa.String(length=64), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_entries")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_audit_entries_action"), "audit_entries", ["action"], unique=False)
    op.create_index(op.f("ix_audit_entries_at"), "audit_entries", ["at"], unique=False)
    op.create_table(
        "federations",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("instance", sa.String(length=32), server_default="", nullable=False),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column("revision", sa.Integer(), server_default="0", nullable=False),
        sa.Column("upload_schema", sa.JSON(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_federations")),
        sa.UniqueConstraint("name", name=op.f("uq_federations_name")),
    )
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
    server_epoch = op.create_table(
        "server_epoch",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("restored_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_server_epoch")),
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
        sa.Column("enrolment", sa.String(length=16), server_default="open", nullable=False),
        sa.Column("public_key", sa.String(length=44), nullable=True),
        sa.Column("claimed_at", sa.BigInteger(), nullable=True),
        sa.Column("cloned_at", sa.Double(), nullable=True),
        sa.Column("adoption", sa.String(length=16), nullable=True),
        sa.Column("adoption_reason", sa.Text(), server_default="", nullable=False),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_devices_federation_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_devices")),
        sa.UniqueConstraint("federation_id", "name", name=op.f("uq_devices_federation_id_name")),
    )
    op.create_index("ix_devices_federation_id_state", "devices", ["federation_id", "state"], unique=False)
    op.create_table(
        "enrolment_tokens",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("federation_id", sa.Integer(), nullable=False),
        sa.Column("token_sha256", sa.String(length=64), nullable=False),
        sa.Column("device", sa.String(length=64), nullable=True),
        sa.Column("auto_approve", sa.Boolean(), nullable=False),
        sa.Column("tags", sa.JSON(), server_default="[]", nullable=False),
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
    op.create_index("ix_events_federation_id_id", "events", ["federation_id", "id"], unique=False)
    op.create_table(
        "leases",
        sa.Column("federation_id", sa.Integer(), nullable=False),
        sa.Column("holder", sa.String(length=128), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("notifications", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_leases_federation_id")),
        sa.PrimaryKeyConstraint("federation_id", name=op.f("pk_leases")),
    )
    op.create_table(
        "model_versions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("federation_id", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("round_number", sa.Integer(), nullable=False),
        sa.Column("state_sha256", sa.String(length=64), nullable=False),
        sa.Column("broadcast_sha256", sa.String(length=64), nullable=False),
        sa.Column("broadcast_size", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("deleted_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_model_versions_federation_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_model_versions")),
        sa.UniqueConstraint("federation_id", "version", name=op.f("uq_model_versions_federation_id_version")),
    )
    op.create_index(op.f("ix_model_versions_broadcast_sha256"), "model_versions", ["broadcast_sha256"], unique=False)
    op.create_table(
        "adoptions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("federation_id", sa.Integer(), nullable=False),
        sa.Column("device_id", sa.Integer(), nullable=False),
        sa.Column("round_number", sa.Integer(), nullable=False),
        sa.Column("source", sa.String(length=16), nullable=False),
        sa.Column("answer", sa.String(length=16), nullable=False),
        sa.Column("score", sa.Double(), nullable=True),
        sa.Column("most_frequent", sa.Double(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("recorded_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_adoptions_device_id")),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_adoptions_federation_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_adoptions")),
        sa.UniqueConstraint(
            "device_id", "round_number", "source", name=op.f("uq_adoptions_device_id_round_number_source")
        ),
    )
    op.create_index(
        "ix_adoptions_federation_id_round_number", "adoptions", ["federation_id", "round_number"], unique=False
    )
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
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_credentials_device_id")),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_credentials_federation_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_credentials")),
        sa.UniqueConstraint("prefix", name=op.f("uq_credentials_prefix")),
    )
    op.create_index(op.f("ix_credentials_device_id"), "credentials", ["device_id"], unique=False)
    op.create_table(
        "device_tags",
        sa.Column("device_id", sa.Integer(), nullable=False),
        sa.Column("tag", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_device_tags_device_id")),
        sa.PrimaryKeyConstraint("device_id", "tag", name=op.f("pk_device_tags")),
    )
    op.create_index(op.f("ix_device_tags_tag"), "device_tags", ["tag"], unique=False)
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
    op.create_index(op.f("ix_rollouts_phase"), "rollouts", ["phase"], unique=False)
    op.create_index(op.f("ix_rollouts_serial"), "rollouts", ["serial"], unique=False)
    op.create_table(
        "rounds",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("federation_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("deadline_passed", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("awaited", sa.Integer(), nullable=False),
        sa.Column("received", sa.Integer(), nullable=False),
        sa.Column("noise_multiplier", sa.Double(), nullable=True),
        sa.Column("epsilon", sa.Double(), nullable=True),
        sa.Column("capped", sa.Integer(), server_default="0", nullable=False),
        sa.Column("left_out", sa.Integer(), server_default="0", nullable=False),
        sa.Column("norms", sa.JSON(), nullable=True),
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
        sa.Column("broadcast_sha256", sa.String(length=64), nullable=True),
        sa.Column("broadcast_size", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_participations_device_id")),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_participations_round_id")),
        sa.PrimaryKeyConstraint("round_id", "device_id", name=op.f("pk_participations")),
    )
    op.create_index(op.f("ix_participations_broadcast_sha256"), "participations", ["broadcast_sha256"], unique=False)
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
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_rollout_devices_device_id")),
        sa.ForeignKeyConstraint(["rollout_id"], ["rollouts.id"], name=op.f("fk_rollout_devices_rollout_id")),
        sa.PrimaryKeyConstraint("rollout_id", "device_id", name=op.f("pk_rollout_devices")),
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
        sa.Column("size", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("manifest", sa.JSON(), nullable=False),
        sa.Column("norms", sa.JSON(), nullable=True),
        sa.Column("counted_examples", sa.Integer(), nullable=True),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_updates_device_id")),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_updates_federation_id")),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_updates_round_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_updates")),
        sa.UniqueConstraint("device_id", "update_id", name=op.f("uq_updates_device_id_update_id")),
        sa.UniqueConstraint("round_id", "device_id", name=op.f("uq_updates_round_id_device_id")),
    )
    op.create_index(op.f("ix_updates_federation_id"), "updates", ["federation_id"], unique=False)
    op.bulk_insert(server_epoch, [{"id": 1, "epoch": 1, "restored_at": None}])
    _forbid_changes_of_the_audit()


def downgrade() -> None:
    op.drop_index(op.f("ix_updates_federation_id"), table_name="updates")
    op.drop_table("updates")
    op.drop_table("rollout_devices")
    op.drop_index(op.f("ix_participations_broadcast_sha256"), table_name="participations")
    op.drop_table("participations")
    op.drop_table("rounds")
    op.drop_index(op.f("ix_rollouts_serial"), table_name="rollouts")
    op.drop_index(op.f("ix_rollouts_phase"), table_name="rollouts")
    op.drop_table("rollouts")
    op.drop_table("model_aliases")
    op.drop_table("metrics")
    op.drop_index(op.f("ix_device_tags_tag"), table_name="device_tags")
    op.drop_table("device_tags")
    op.drop_index(op.f("ix_credentials_device_id"), table_name="credentials")
    op.drop_table("credentials")
    op.drop_index("ix_adoptions_federation_id_round_number", table_name="adoptions")
    op.drop_table("adoptions")
    op.drop_index(op.f("ix_model_versions_broadcast_sha256"), table_name="model_versions")
    op.drop_table("model_versions")
    op.drop_table("leases")
    op.drop_index("ix_events_federation_id_id", table_name="events")
    op.drop_table("events")
    op.drop_index(op.f("ix_enrolment_tokens_federation_id"), table_name="enrolment_tokens")
    op.drop_table("enrolment_tokens")
    op.drop_index("ix_devices_federation_id_state", table_name="devices")
    op.drop_table("devices")
    op.drop_table("server_epoch")
    op.drop_index(op.f("ix_idempotent_requests_created_at"), table_name="idempotent_requests")
    op.drop_table("idempotent_requests")
    op.drop_table("federations")
    op.drop_index(op.f("ix_audit_entries_at"), table_name="audit_entries")
    op.drop_index(op.f("ix_audit_entries_action"), table_name="audit_entries")
    op.drop_table("audit_entries")
    if op.get_bind().dialect.name != "sqlite":
        op.execute("DROP FUNCTION refuse_audit_change()")


def _forbid_changes_of_the_audit() -> None:
    if op.get_bind().dialect.name == "sqlite":
        for event in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER audit_entries_no_{event.lower()} BEFORE {event} ON audit_entries "
                f"BEGIN SELECT RAISE(ABORT, '{APPEND_ONLY}'); END"
            )
        return
    op.execute(
        "CREATE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{APPEND_ONLY}'; END $$"
    )
    op.execute(
        "CREATE TRIGGER audit_entries_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_entries "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_change()"
    )
