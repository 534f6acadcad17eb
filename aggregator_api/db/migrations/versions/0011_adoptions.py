"""adoptions: what devices have found about the models that they might have used."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "adoptions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("federation_id", sa.Integer(), nullable=False),
        sa.Column("device_id", sa.Integer(), nullable=False),
        sa.Column("round_number", sa.Integer(), nullable=False),
        sa.Column("source", sa.String(length=16), nullable=False),
        sa.Column("answer", sa.String(length=16), nullable=False),
        sa.Column("score", sa.Double(), nullable=True),
        sa.Column("most_frequent", sa.Double(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("recorded_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["federation_id"], ["federations.id"], name=op.f("fk_adoptions_federation_id")),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_adoptions_device_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_adoptions")),
        sa.UniqueConstraint(
            "device_id", "round_number", "source", name=op.f("uq_adoptions_device_id_round_number_source")
        ),
    )
    op.create_index(
        op.f("ix_adoptions_federation_id_round_number"), "adoptions", ["federation_id", "round_number"], unique=False
    )
    op.add_column("devices", sa.Column("adoption", sa.String(length=16), nullable=True))
    op.add_column("devices", sa.Column("adoption_reason", sa.Text(), server_default="", nullable=False))


def downgrade() -> None:
    op.drop_column("devices", "adoption_reason")
    op.drop_column("devices", "adoption")
    op.drop_index(op.f("ix_adoptions_federation_id_round_number"), table_name="adoptions")
    op.drop_table("adoptions")
