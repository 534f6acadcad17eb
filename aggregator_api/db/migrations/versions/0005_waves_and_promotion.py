"""How far a rollout has reached, who forced it, what `latest` names, and why `stable` stays."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("rollouts") as batch:
        batch.add_column(sa.Column("reach", sa.Integer(), nullable=False, server_default="0"))
        batch.add_column(sa.Column("forced", sa.Text(), nullable=False, server_default=""))
    with op.batch_alter_table("model_aliases") as batch:
        batch.add_column(sa.Column("note", sa.Text(), nullable=False, server_default=""))
        batch.add_column(sa.Column("held_at", sa.Integer(), nullable=False, server_default="0"))
    with op.batch_alter_table("federations") as batch:
        batch.add_column(sa.Column("stable_note", sa.Text(), nullable=False, server_default=""))
        batch.add_column(sa.Column("regression", sa.Text(), nullable=False, server_default=""))
    _note_reach()
    # until now rounds started from `stable`
    op.execute(
        "INSERT INTO model_aliases (federation_id, alias, version_id) "
        "SELECT federation_id, 'latest', version_id FROM model_aliases AS named WHERE alias = 'stable' "
        "AND NOT EXISTS (SELECT 1 FROM model_aliases AS other "
        "WHERE other.federation_id = named.federation_id AND other.alias = 'latest')"
    )


def _note_reach() -> None:
    """Keep the model where rollouts have brought it: until now they reached the share of their wave."""
    connection = op.get_bind()
    rows = connection.execute(sa.text("SELECT id, wave, settings FROM rollouts")).all()
    for row in rows:
        settings = json.loads(row.settings) if isinstance(row.settings, str) else row.settings
        shares = [wave for wave in settings.get("waves", [1.0])[: row.wave + 1] if not isinstance(wave, dict)]
        reach = round(1_000_000 * max(shares, default=0))
        connection.execute(sa.text("UPDATE rollouts SET reach = :reach WHERE id = :id"), {"reach": reach, "id": row.id})
