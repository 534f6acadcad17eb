"""rounds count their clients, so that no event reads them all."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for column, outcome in (("awaited", "waiting"), ("received", "received")):
        op.add_column("rounds", sa.Column(column, sa.Integer(), nullable=False, server_default="0"))
        op.execute(
            f"UPDATE rounds SET {column} = (SELECT count(*) FROM participations p "
            f"WHERE p.round_id = rounds.id AND p.outcome = '{outcome}')"
        )
    op.create_index("ix_devices_federation_id_state", "devices", ["federation_id", "state"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_devices_federation_id_state", "devices")
    for column in ("received", "awaited"):
        op.drop_column("rounds", column)
