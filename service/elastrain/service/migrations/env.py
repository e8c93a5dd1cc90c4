"""Run by alembic for every command: one transaction on the connection that `migrate` opened."""

from alembic import context
from sqlalchemy import Connection, text

from elastrain.service.store.schema import metadata

# any number, the same in every service process: PostgreSQL's advisory locks have no names
MIGRATION_LOCK = 0x656C6173


def run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        render_as_batch=True,
        transactional_ddl=True,  # SQLite too: a migration that is cut short leaves nothing half done
    )
    with context.begin_transaction():
        if connection.dialect.name == "postgresql":
            connection.execute(text(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"))
        context.run_migrations()


run(context.config.attributes["connection"])
