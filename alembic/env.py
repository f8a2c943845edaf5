"""Runs migrations, on the connection that app.db.migrate provides or, from the command line, on one of its own.

    alembic upgrade head                          the database of SCRIMP_DATABASE_URL, or the embedded home's
    alembic -x url=postgresql+psycopg://… check   another one
    alembic upgrade head --sql                    no database: prints the statements

The service itself calls app.db.migrate.upgrade().
"""

from __future__ import annotations

from alembic import context
from sqlalchemy import make_url
from sqlalchemy.engine import Connection

from app.db.migrate import migration_connection
from app.db.models import INDICES_OF_SOME, Base
from app.settings import get_settings


def main() -> None:
    url = context.get_x_argument(as_dictionary=True).get("url") or get_settings().effective_database_url
    given: Connection | None = context.config.attributes.get("connection")
    if context.is_offline_mode():
        context.configure(
            dialect_name=make_url(url).get_backend_name(),
            target_metadata=Base.metadata,
            literal_binds=True,
            dialect_opts={"paramstyle": "named"},
        )
        with context.begin_transaction():
            context.run_migrations()
    elif given is not None:
        run(given)
    else:
        with migration_connection(url) as connection:
            run(connection)


def run(connection: Connection) -> None:
    # Batch mode: SQLite changes a table by copying it.
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        # Indices of some rows are SQL in the models: a test compares them by their text.
        include_name=lambda name, kind, _parents: kind != "index" or name not in INDICES_OF_SOME,
    )
    with context.begin_transaction():
        context.run_migrations()


main()
