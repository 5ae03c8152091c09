"""Entry point of Alembic: runs the migrations on the connection of `router.storage.sql.schema.upgrade`."""

from alembic import context

from ragbandit.router.storage.sql.tables import metadata

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("run the migrations with: `ragbandit migrate`")
if not connection.in_transaction():
    connection.begin()  # joins the transaction of the caller, who commits it
context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
