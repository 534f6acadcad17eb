"""Name columns after what they hold; every row stays as it is."""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

COLUMNS = (
    ("rounds", "awaited", "pending"),
    ("rollouts", "wave_at", "wave_started_at"),
    ("rollouts", "good", "successes"),
    ("rollouts", "bad", "failures"),
    ("rollouts", "enlisted_to", "last_checked_device_id"),
    ("rollout_devices", "told_at", "notified_at"),
)
"""Table, old and new name. SQLite and PostgreSQL both rename in place, so no table is copied and no key breaks."""


def upgrade() -> None:
    for table, old, new in COLUMNS:
        op.execute(f"ALTER TABLE {table} RENAME COLUMN {old} TO {new}")


def downgrade() -> None:
    for table, old, new in COLUMNS:
        op.execute(f"ALTER TABLE {table} RENAME COLUMN {new} TO {old}")
