"""Name what becomes of an update `deferred` and `excluded`, in rows, in the journal and in a round's counter."""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

STATUSES = (("held", "deferred"), ("left_out", "excluded"))
"""Old and new name; `model.held` in the journal is about a model, and stays."""


def upgrade() -> None:
    op.execute("ALTER TABLE rounds RENAME COLUMN left_out TO excluded")
    for old, new in STATUSES:
        _rename(old, new)


def downgrade() -> None:
    for old, new in STATUSES:
        _rename(new, old)
    op.execute("ALTER TABLE rounds RENAME COLUMN excluded TO left_out")


def _rename(old: str, new: str) -> None:
    op.execute(f"UPDATE updates SET status = '{new}' WHERE status = '{old}'")
    op.execute(f"UPDATE events SET kind = 'update.{new}' WHERE kind = 'update.{old}'")
