"""Rename the metric of the trivial answer, which 0.2.0 named after classification's.

Without it a federation that was created before the upgrade would have no score of its versions until its next round.
"""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("UPDATE metrics SET name = 'macro_f1_trivial' WHERE name = 'macro_f1_most_frequent'")
