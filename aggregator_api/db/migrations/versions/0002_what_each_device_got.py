"""what each device got, and which federation of a name it is."""

from uuid import uuid4

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # plain ADD COLUMN: a batch would drop and make again tables that others refer to
    op.add_column("federations", sa.Column("instance", sa.String(length=32), nullable=False, server_default=""))
    op.add_column("participations", sa.Column("broadcast_sha256", sa.String(length=64), nullable=True))
    op.add_column("participations", sa.Column("broadcast_size", sa.Integer(), nullable=True))
    op.create_index(op.f("ix_participations_broadcast_sha256"), "participations", ["broadcast_sha256"], unique=False)
    _fill()


def downgrade() -> None:
    op.drop_index(op.f("ix_participations_broadcast_sha256"), "participations")
    op.drop_column("participations", "broadcast_size")
    op.drop_column("participations", "broadcast_sha256")
    op.drop_column("federations", "instance")


def _fill() -> None:
    """Give old federations an instance; until now every invited device got the round's one broadcast."""
    connection = op.get_bind()
    for (row_id,) in connection.execute(sa.text("SELECT id FROM federations")).all():
        connection.execute(
            sa.text("UPDATE federations SET instance = :instance WHERE id = :id"),
            {"instance": uuid4().hex, "id": row_id},
        )
    for column in ("broadcast_sha256", "broadcast_size"):
        connection.execute(
            sa.text(
                f"UPDATE participations SET {column} = (SELECT v.{column} FROM model_versions v JOIN rounds r "
                "ON r.base_version_id = v.id WHERE r.id = participations.round_id) WHERE invited"
            )
        )
