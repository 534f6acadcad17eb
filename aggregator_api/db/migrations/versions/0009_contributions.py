"""Name the columns of the network below the head after what it is."""

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


def downgrade() -> None:
    for table, old, new in COLUMNS:
        op.execute(f"ALTER TABLE {table} RENAME COLUMN {new} TO {old}")
