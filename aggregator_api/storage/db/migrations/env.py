"""Alembic's environment, which runs on the connection from `aggregator_api.storage.db.database`."""

from alembic import context

from aggregator_api.storage.db.models import Base

context.configure(
    connection=context.config.attributes["connection"], target_metadata=Base.metadata, render_as_batch=True
)
with context.begin_transaction():
    context.run_migrations()
