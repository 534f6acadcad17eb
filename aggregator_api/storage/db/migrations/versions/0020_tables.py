"""The tables of 0.4.0, as the models describe them, with the triggers of the audit and of the ledger.

Until 0.4.0 is released, this file changes with the models; from then on, a revision of its own brings each change.
"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = None
branch_labels = None
depends_on = None

WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
NAME, SHA256 = sa.String(length=64), sa.String(length=64)
BEGINS_A_PHASE = sa.text("kind IN ('round.announced', 'round.collecting', 'round.aggregating')")
APPEND_ONLY = "the audit is append-only"
KEY, TOKEN, DEVICE, DELETED = (
    "'key', OLD.prefix, '', OLD.expires_at",
    "'token', OLD.token_sha256, '', OLD.expires_at",
    "'device', OLD.name, (SELECT name FROM federations WHERE id = OLD.federation_id), NULL",
    "'device-deleted', OLD.name, (SELECT name FROM federations WHERE id = OLD.federation_id), NULL",
)
OTHER_KEY = "OLD.public_key IS NOT NULL AND (NEW.public_key IS NULL OR NEW.public_key <> OLD.public_key)"
TRIGGERS = (
    (
        "key_revoked",
        "UPDATE OF revoked_at ON credentials",
        "OLD.revoked_at IS NULL AND NEW.revoked_at IS NOT NULL",
        KEY,
    ),
    ("key_deleted", "DELETE ON credentials", "OLD.revoked_at IS NULL", KEY),
    ("token_used", "UPDATE OF used_at ON enrolment_tokens", "OLD.used_at IS NULL AND NEW.used_at IS NOT NULL", TOKEN),
    (
        "token_revoked",
        "UPDATE OF revoked_at ON enrolment_tokens",
        "OLD.revoked_at IS NULL AND NEW.revoked_at IS NOT NULL",
        TOKEN,
    ),
    ("token_deleted", "DELETE ON enrolment_tokens", "OLD.used_at IS NULL AND OLD.revoked_at IS NULL", TOKEN),
    (
        "device_revoked",
        "UPDATE OF enrolment ON devices",
        "OLD.enrolment <> 'revoked' AND NEW.enrolment = 'revoked'",
        DEVICE,
    ),
    ("device_key_replaced", "UPDATE OF public_key ON devices", OTHER_KEY, DEVICE),
    ("device_deleted", "DELETE ON devices", "OLD.id IS NOT NULL", DELETED),
)
"""Name, event, condition, and what is noted."""


def upgrade() -> None:
    op.create_table(
        "audit_entries",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("actor", sa.String(length=96), nullable=False),
        sa.Column("address", NAME, nullable=False),
        sa.Column("action", NAME, nullable=False),
        sa.Column("federation", NAME, nullable=False),
        sa.Column("device", NAME, nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("count", WHOLE, nullable=False),
        sa.Column("digest", SHA256, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_entries")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_audit_entries_action"), "audit_entries", ["action"])
    op.create_index(op.f("ix_audit_entries_at"), "audit_entries", ["at"])
    op.create_table(
        "ended_access",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("subject", NAME, nullable=False),
        sa.Column("federation", NAME, nullable=False),
        sa.Column("until", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ended_access")),
    )
    op.create_table(
        "federations",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("name", NAME, nullable=False),
        sa.Column("instance", sa.String(length=32), server_default="", nullable=False),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column("revision", WHOLE, server_default="0", nullable=False),
        sa.Column("upload_schema", sa.JSON(), nullable=False),
        sa.Column("sum_layout", sa.JSON(), nullable=True),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("feature_model_sha256", SHA256, nullable=True),
        sa.Column("feature_model_size", WHOLE, nullable=True),
        sa.Column("program_state", sa.String(length=16), server_default="none", nullable=False),
        sa.Column("program_note", sa.Text(), server_default="", nullable=False),
        sa.Column("program_sha256", SHA256, nullable=True),
        sa.Column("program_size", WHOLE, nullable=True),
        sa.Column("stable_note", sa.Text(), server_default="", nullable=False),
        sa.Column("regression", sa.Text(), server_default="", nullable=False),
        sa.Column("revoked_identities", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_federations")),
        sa.UniqueConstraint("name", name=op.f("uq_federations_name")),
    )
    op.create_table(
        "idempotent_requests",
        sa.Column("caller", sa.String(length=32), nullable=False),
        sa.Column("key", sa.String(length=128), nullable=False),
        sa.Column("request_sha256", SHA256, nullable=False),
        sa.Column("status", WHOLE, nullable=True),
        sa.Column("headers", sa.JSON(), nullable=False),
        sa.Column("body", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("caller", "key", name=op.f("pk_idempotent_requests")),
    )
    op.create_index(op.f("ix_idempotent_requests_created_at"), "idempotent_requests", ["created_at"])
    ledger = op.create_table(
        "ledger",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("ledger", sa.String(length=32), nullable=True),
        sa.Column("size", WHOLE, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ledger")),
    )
    server_epoch = op.create_table(
        "server_epoch",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("epoch", WHOLE, nullable=False),
        sa.Column("restored_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_server_epoch")),
    )
    op.create_table(
        "devices",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("federation_id", WHOLE, nullable=False),
        sa.Column("name", NAME, nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("examples", WHOLE, nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("enrolled_at", sa.Double(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.Column("enrolment", sa.String(length=16), server_default="open", nullable=False),
        sa.Column("public_key", sa.String(length=44), nullable=True),
        sa.Column("claimed_at", sa.BigInteger(), nullable=True),
        sa.Column("cloned_at", sa.Double(), nullable=True),
        sa.Column("refused_updates", WHOLE, server_default="0", nullable=False),
        sa.Column("suspended_at", sa.Double(), nullable=True),
        sa.Column("suspension_reason", sa.Text(), server_default="", nullable=False),
        sa.Column("missed_rounds", WHOLE, server_default="0", nullable=False),
        sa.Column("left_out_until", sa.Double(), nullable=True),
        sa.Column("adoption", sa.String(length=16), nullable=True),
        sa.Column("adoption_reason", sa.Text(), server_default="", nullable=False),
        sa.Column("plan_refusal", sa.Text(), server_default="", nullable=False),
        sa.Column("refused_model", NAME, server_default="", nullable=False),
        sa.Column("model_refusal", sa.Text(), server_default="", nullable=False),
        sa.Column("voucher", sa.Text(), server_default="", nullable=False),
        sa.Column("voucher_expires_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_devices_federation_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_devices")),
        sa.UniqueConstraint("federation_id", "name", name=op.f("uq_devices_federation_id_name")),
    )
    op.create_index("ix_devices_federation_id_state", "devices", ["federation_id", "state"])
    op.create_table(
        "enrolment_tokens",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("federation_id", WHOLE, nullable=False),
        sa.Column("token_sha256", SHA256, nullable=False),
        sa.Column("device", NAME, nullable=True),
        sa.Column("auto_approve", sa.Boolean(), nullable=False),
        sa.Column("tags", sa.JSON(), server_default="[]", nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("used_at", sa.Double(), nullable=True),
        sa.Column("used_by", NAME, nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.Column("held_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_enrolment_tokens_federation_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_enrolment_tokens")),
        sa.UniqueConstraint("token_sha256", name=op.f("uq_enrolment_tokens_token_sha256")),
    )
    op.create_index(op.f("ix_enrolment_tokens_federation_id"), "enrolment_tokens", ["federation_id"])
    op.create_table(
        "events",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("federation_id", WHOLE, nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("round_number", WHOLE, nullable=False),
        sa.Column("device", NAME, nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_events_federation_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_federation_id_id", "events", ["federation_id", "id"])
    op.create_index(
        "ix_events_federation_id_round_number",
        "events",
        ["federation_id", "round_number"],
        sqlite_where=BEGINS_A_PHASE,
        postgresql_where=BEGINS_A_PHASE,
    )
    op.create_table(
        "leases",
        sa.Column("federation_id", WHOLE, nullable=False),
        sa.Column("holder", sa.String(length=128), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("notifications", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_leases_federation_id")),
        sa.PrimaryKeyConstraint("federation_id", name=op.f("pk_leases")),
    )
    op.create_table(
        "model_versions",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("federation_id", WHOLE, nullable=False),
        sa.Column("version", WHOLE, nullable=False),
        sa.Column("round_number", WHOLE, nullable=False),
        sa.Column("state_sha256", SHA256, nullable=False),
        sa.Column("broadcast_sha256", SHA256, nullable=False),
        sa.Column("broadcast_size", WHOLE, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("deleted_at", sa.Double(), nullable=True),
        sa.Column("gains", sa.JSON(), nullable=True),
        sa.Column("withdrawn", sa.Text(), server_default="", nullable=False),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_model_versions_federation_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_model_versions")),
        sa.UniqueConstraint("federation_id", "version", name=op.f("uq_model_versions_federation_id_version")),
    )
    op.create_index(op.f("ix_model_versions_broadcast_sha256"), "model_versions", ["broadcast_sha256"])
    op.create_table(
        "scores",
        sa.Column("federation_id", WHOLE, nullable=False),
        sa.Column("round_number", WHOLE, autoincrement=False, nullable=False),
        sa.Column("name", NAME, nullable=False),
        sa.Column("devices", WHOLE, nullable=False),
        sa.Column("total", sa.Double(), nullable=False),
        sa.Column("squares", sa.Double(), nullable=False),
        sa.Column("measured", WHOLE, nullable=False),
        sa.Column("measured_total", sa.Double(), nullable=False),
        sa.Column("trivial", sa.Double(), nullable=False),
        sa.Column("working", WHOLE, nullable=False),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_scores_federation_id")),
        sa.PrimaryKeyConstraint("federation_id", "round_number", "name", name=op.f("pk_scores")),
    )
    op.create_table(
        "adoptions",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("federation_id", WHOLE, nullable=False),
        sa.Column("device_id", WHOLE, nullable=False),
        sa.Column("round_number", WHOLE, nullable=False),
        sa.Column("source", sa.String(length=16), nullable=False),
        sa.Column("answer", sa.String(length=16), nullable=False),
        sa.Column("score", sa.Double(), nullable=True),
        sa.Column("trivial", sa.Double(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("recorded_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_adoptions_device_id")),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_adoptions_federation_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_adoptions")),
        sa.UniqueConstraint(
            "device_id", "round_number", "source", name=op.f("uq_adoptions_device_id_round_number_source")
        ),
    )
    op.create_index("ix_adoptions_federation_id_round_number", "adoptions", ["federation_id", "round_number"])
    op.create_table(
        "credentials",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("prefix", sa.String(length=16), nullable=False),
        sa.Column("name", NAME, nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("federation_id", WHOLE, nullable=True),
        sa.Column("device_id", WHOLE, nullable=True),
        sa.Column("secret_sha256", SHA256, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("used_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.Column("held_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_credentials_device_id")),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_credentials_federation_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_credentials")),
        sa.UniqueConstraint("prefix", name=op.f("uq_credentials_prefix")),
    )
    op.create_index(op.f("ix_credentials_device_id"), "credentials", ["device_id"])
    op.create_table(
        "device_tags",
        sa.Column("device_id", WHOLE, nullable=False),
        sa.Column("tag", NAME, nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_device_tags_device_id")),
        sa.PrimaryKeyConstraint("device_id", "tag", name=op.f("pk_device_tags")),
    )
    op.create_index(op.f("ix_device_tags_tag"), "device_tags", ["tag"])
    op.create_table(
        "masked_contributions",
        sa.Column("device_id", WHOLE, nullable=False),
        sa.Column("federation_id", WHOLE, nullable=False),
        sa.Column("version", WHOLE, nullable=True),
        sa.Column("sequence", WHOLE, server_default="0", nullable=False),
        sa.Column("reported", WHOLE, server_default="0", nullable=False),
        sa.Column("seen", WHOLE, server_default="0", nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_masked_contributions_device_id")),
        sa.ForeignKeyConstraint(
            ["federation_id"], ["federations.id"], name=op.f("fk_masked_contributions_federation_id")
        ),
        sa.PrimaryKeyConstraint("device_id", name=op.f("pk_masked_contributions")),
    )
    op.create_index(
        "ix_masked_contributions_federation_id_version", "masked_contributions", ["federation_id", "version"]
    )
    op.create_table(
        "metrics",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("federation_id", WHOLE, nullable=False),
        sa.Column("device_id", WHOLE, nullable=False),
        sa.Column("round_number", WHOLE, nullable=False),
        sa.Column("name", NAME, nullable=False),
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
    op.create_index(
        "ix_metrics_federation_id_round_number_name_value",
        "metrics",
        ["federation_id", "round_number", "name", "value"],
    )
    op.create_table(
        "model_aliases",
        sa.Column("federation_id", WHOLE, nullable=False),
        sa.Column("alias", sa.String(length=16), nullable=False),
        sa.Column("version_id", WHOLE, nullable=False),
        sa.Column("note", sa.Text(), server_default="", nullable=False),
        sa.Column("held_at", WHOLE, server_default="0", nullable=False),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_model_aliases_federation_id")),
        sa.ForeignKeyConstraint(["version_id"], ["model_versions.id"], name=op.f("fk_model_aliases_version_id")),
        sa.PrimaryKeyConstraint("federation_id", "alias", name=op.f("pk_model_aliases")),
    )
    op.create_table(
        "rollouts",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("federation_id", WHOLE, nullable=False),
        sa.Column("number", WHOLE, nullable=False),
        sa.Column("version_id", WHOLE, nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("serial", WHOLE, nullable=False),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("wave", WHOLE, nullable=False),
        sa.Column("wave_started_at", sa.Double(), nullable=False),
        sa.Column("members", WHOLE, nullable=False),
        sa.Column("successes", WHOLE, nullable=False),
        sa.Column("failures", WHOLE, nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("last_checked_device_id", WHOLE, nullable=False),
        sa.Column("reach", WHOLE, server_default="0", nullable=False),
        sa.Column("forced", sa.Text(), server_default="", nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_rollouts_federation_id")),
        sa.ForeignKeyConstraint(["version_id"], ["model_versions.id"], name=op.f("fk_rollouts_version_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rollouts")),
        sa.UniqueConstraint("federation_id", "number", name=op.f("uq_rollouts_federation_id_number")),
    )
    op.create_index(op.f("ix_rollouts_phase"), "rollouts", ["phase"])
    op.create_index(op.f("ix_rollouts_serial"), "rollouts", ["serial"])
    op.create_table(
        "rounds",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("federation_id", WHOLE, nullable=False),
        sa.Column("number", WHOLE, nullable=False),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("deadline_passed", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("pending", WHOLE, nullable=False),
        sa.Column("received", WHOLE, nullable=False),
        sa.Column("noise_multiplier", sa.Double(), nullable=True),
        sa.Column("epsilon", sa.Double(), nullable=True),
        sa.Column("capped", WHOLE, server_default="0", nullable=False),
        sa.Column("excluded", WHOLE, server_default="0", nullable=False),
        sa.Column("norms", sa.JSON(), nullable=True),
        sa.Column("base_version_id", WHOLE, nullable=False),
        sa.Column("deadline_at", sa.Double(), nullable=True),
        sa.Column("opened_at", sa.Double(), nullable=False),
        sa.Column("closed_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["base_version_id"], ["model_versions.id"], name=op.f("fk_rounds_base_version_id")),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_rounds_federation_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rounds")),
        sa.UniqueConstraint("federation_id", "number", name=op.f("uq_rounds_federation_id_number")),
    )
    op.create_table(
        "contributions",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("federation_id", WHOLE, nullable=False),
        sa.Column("device_id", WHOLE, nullable=True),
        sa.Column("sequence", WHOLE, nullable=False),
        sa.Column("update_id", NAME, nullable=False),
        sa.Column("update_sha256", SHA256, nullable=False),
        sa.Column("sha256", SHA256, nullable=True),
        sa.Column("size", WHOLE, nullable=True),
        sa.Column("examples", WHOLE, nullable=False),
        sa.Column("class_counts", sa.JSON(), nullable=True),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.Column("changed_at", sa.Double(), nullable=True),
        sa.Column("round_id", WHOLE, nullable=True),
        sa.Column("taken_sha256", SHA256, nullable=True),
        sa.Column("taken_update_id", NAME, nullable=True),
        sa.Column("published_sha256", SHA256, nullable=True),
        sa.Column("published_version", WHOLE, nullable=True),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_contributions_device_id")),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_contributions_federation_id")),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_contributions_round_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_contributions")),
        sa.UniqueConstraint("device_id", name=op.f("uq_contributions_device_id")),
    )
    op.create_index("ix_contributions_federation_id_changed_at", "contributions", ["federation_id", "changed_at"])
    op.create_index(op.f("ix_contributions_sha256"), "contributions", ["sha256"])
    op.create_table(
        "participations",
        sa.Column("round_id", WHOLE, nullable=False),
        sa.Column("device_id", WHOLE, nullable=False),
        sa.Column("invited", sa.Boolean(), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("rounds_late", WHOLE, nullable=True),
        sa.Column("broadcast_sha256", SHA256, nullable=True),
        sa.Column("broadcast_size", WHOLE, nullable=True),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_participations_device_id")),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_participations_round_id")),
        sa.PrimaryKeyConstraint("round_id", "device_id", name=op.f("pk_participations")),
    )
    op.create_index(op.f("ix_participations_broadcast_sha256"), "participations", ["broadcast_sha256"])
    op.create_index("ix_participations_round_id_broadcast_size", "participations", ["round_id", "broadcast_size"])
    op.create_table(
        "rollout_devices",
        sa.Column("rollout_id", WHOLE, nullable=False),
        sa.Column("device_id", WHOLE, nullable=False),
        sa.Column("wave", WHOLE, nullable=False),
        sa.Column("answer", sa.String(length=16), nullable=False),
        sa.Column("score", sa.Double(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("notified_at", sa.Double(), nullable=False),
        sa.Column("answered_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_rollout_devices_device_id")),
        sa.ForeignKeyConstraint(["rollout_id"], ["rollouts.id"], name=op.f("fk_rollout_devices_rollout_id")),
        sa.PrimaryKeyConstraint("rollout_id", "device_id", name=op.f("pk_rollout_devices")),
    )
    op.create_table(
        "secure_sum_devices",
        sa.Column("round_id", WHOLE, nullable=False),
        sa.Column("device_id", WHOLE, nullable=False),
        sa.Column("identity", sa.LargeBinary(), nullable=False),
        sa.Column("keys", sa.LargeBinary(), nullable=False),
        sa.Column("shares", sa.LargeBinary(), nullable=False),
        sa.Column("vector", sa.LargeBinary(), nullable=False),
        sa.Column("signature", sa.LargeBinary(), nullable=False),
        sa.Column("opened", sa.LargeBinary(), nullable=False),
        sa.Column("uploaded", sa.JSON(), nullable=False),
        sa.Column("sequence", WHOLE, server_default="0", nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_secure_sum_devices_device_id")),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_secure_sum_devices_round_id")),
        sa.PrimaryKeyConstraint("round_id", "device_id", name=op.f("pk_secure_sum_devices")),
    )
    op.create_table(
        "secure_sums",
        sa.Column("round_id", WHOLE, nullable=False),
        sa.Column("stage", sa.String(length=16), nullable=False),
        sa.Column("request", sa.LargeBinary(), nullable=False),
        sa.Column("members", sa.LargeBinary(), nullable=False),
        sa.Column("dealers", sa.JSON(), nullable=False),
        sa.Column("included", sa.LargeBinary(), nullable=False),
        sa.Column("total", sa.LargeBinary(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("listed_devices", WHOLE, nullable=False),
        sa.Column("summed_devices", WHOLE, nullable=False),
        sa.Column("deadline_at", sa.Double(), nullable=True),
        sa.Column("shared_sha256", SHA256, nullable=True),
        sa.Column("shared_size", WHOLE, nullable=True),
        sa.Column("finding", sa.Text(), server_default="", nullable=False),
        sa.Column("retry", sa.Text(), server_default="", nullable=False),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_secure_sums_round_id")),
        sa.PrimaryKeyConstraint("round_id", name=op.f("pk_secure_sums")),
    )
    op.create_table(
        "updates",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("federation_id", WHOLE, nullable=False),
        sa.Column("device_id", WHOLE, nullable=False),
        sa.Column("round_id", WHOLE, nullable=True),
        sa.Column("update_id", NAME, nullable=False),
        sa.Column("base_round", WHOLE, nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("sha256", SHA256, nullable=False),
        sa.Column("size", WHOLE, nullable=False),
        sa.Column("manifest", sa.JSON(), nullable=False),
        sa.Column("norms", sa.JSON(), nullable=True),
        sa.Column("counted_examples", WHOLE, nullable=True),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_updates_device_id")),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_updates_federation_id")),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_updates_round_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_updates")),
        sa.UniqueConstraint("device_id", "update_id", name=op.f("uq_updates_device_id_update_id")),
        sa.UniqueConstraint("round_id", "device_id", name=op.f("uq_updates_round_id_device_id")),
    )
    op.create_index(op.f("ix_updates_federation_id"), "updates", ["federation_id"])
    op.create_index("ix_updates_round_id_size", "updates", ["round_id", "size"])
    op.create_table(
        "web_sessions",
        sa.Column("token_sha256", SHA256, nullable=False),
        sa.Column("credential_id", WHOLE, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["credential_id"], ["credentials.id"], name=op.f("fk_web_sessions_credential_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("token_sha256", name=op.f("pk_web_sessions")),
    )
    op.create_index(op.f("ix_web_sessions_credential_id"), "web_sessions", ["credential_id"])
    op.create_index(op.f("ix_web_sessions_expires_at"), "web_sessions", ["expires_at"])
    op.bulk_insert(server_epoch, [{"id": 1, "epoch": 1, "restored_at": None}])
    op.bulk_insert(ledger, [{"id": 1, "ledger": None, "size": 0}])
    _forbid_changes_of_the_audit()
    for name, event, condition, noted in TRIGGERS:
        _note_ends(name, event, condition, noted)


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


def _note_ends(name: str, event: str, condition: str, noted: str) -> None:
    note = f"INSERT INTO ended_access (kind, subject, federation, until) VALUES ({noted})"
    if op.get_bind().dialect.name == "sqlite":
        op.execute(f"CREATE TRIGGER {name} AFTER {event} FOR EACH ROW WHEN {condition} BEGIN {note}; END")
        return
    op.execute(
        f"CREATE FUNCTION note_{name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {note}; RETURN NULL; END $$"
    )
    op.execute(f"CREATE TRIGGER {name} AFTER {event} FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION note_{name}()")
