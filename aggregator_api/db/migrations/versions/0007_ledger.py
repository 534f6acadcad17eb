"""The ledger of ended accesses: triggers note them, and what a restore could not check is held until confirmed."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

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
        "ended_access",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("subject", sa.String(length=64), nullable=False),
        sa.Column("federation", sa.String(length=64), nullable=False),
        sa.Column("until", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ended_access")),
    )
    ledger = op.create_table(
        "ledger",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("ledger", sa.String(length=32), nullable=True),
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ledger")),
    )
    op.bulk_insert(ledger, [{"id": 1, "ledger": None, "number": 0}])
    for table in ("credentials", "enrolment_tokens"):
        op.add_column(table, sa.Column("held_at", sa.Double(), nullable=True))
    for name, event, condition, noted in TRIGGERS:
        _note_ends(name, event, condition, noted)


def downgrade() -> None:
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    for name, event, _, _ in TRIGGERS:
        op.execute(f"DROP TRIGGER {name}" if is_sqlite else f"DROP TRIGGER {name} ON {event.rpartition(' ')[2]}")
        if not is_sqlite:
            op.execute(f"DROP FUNCTION note_{name}()")
    for table in ("credentials", "enrolment_tokens"):
        op.drop_column(table, "held_at")
    op.drop_table("ledger")
    op.drop_table("ended_access")


def _note_ends(name: str, event: str, condition: str, noted: str) -> None:
    note = f"INSERT INTO ended_access (kind, subject, federation, until) VALUES ({noted})"
    if op.get_bind().dialect.name == "sqlite":
        op.execute(f"CREATE TRIGGER {name} AFTER {event} FOR EACH ROW WHEN {condition} BEGIN {note}; END")
        return
    op.execute(
        f"CREATE FUNCTION note_{name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {note}; RETURN NULL; END $$"
    )
    op.execute(f"CREATE TRIGGER {name} AFTER {event} FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION note_{name}()")
