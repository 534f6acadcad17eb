"""Devices that are suspended because their updates were refused again and again; whole numbers of 64 bits."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("devices", sa.Column("refused_updates", sa.Integer(), server_default="0", nullable=False))
    op.add_column("devices", sa.Column("suspended_at", sa.Double(), nullable=True))
    op.add_column("devices", sa.Column("suspension_reason", sa.Text(), server_default="", nullable=False))
    _widen()


def _widen() -> None:
    """Give every whole number 64 bits, and the sequences of ids too; SQLite's have them already."""
    bind = op.get_bind()
    if bind.dialect.name != "postgresql":
        return
    inspector = sa.inspect(bind)
    for table in inspector.get_table_names():
        for column in inspector.get_columns(table):
            if isinstance(column["type"], sa.Integer) and not isinstance(column["type"], sa.BigInteger):
                op.alter_column(table, column["name"], type_=sa.BigInteger())
    sequences = bind.execute(
        sa.text(
            "SELECT sequencename FROM pg_sequences "
            "WHERE schemaname = current_schema() AND data_type = 'integer'::regtype"
        )
    )
    for name in sequences.scalars().all():
        op.execute(f'ALTER SEQUENCE "{name}" AS BIGINT')
