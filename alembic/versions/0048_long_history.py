"""What a long history is searched by: tags, names, times of ends; and from where a ledger's verification went on.

A trigger writes a job's tags in rows of their own with the statement that changes them, so that processes of the last
release do so too. The index in the order of submission has the columns of a search: it reads no row of a job.

Revision: 0048, after 0046
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0048"
down_revision = "0046"
branch_labels = None
depends_on = None

COLUMNS = "(tag, created_at, job_id)"
# A job's tags stand between commas: ",a,b,".
TAGS_OF = {
    "sqlite": (
        "SELECT part.value, {row}.created_at, {row}.id FROM {source}"
        "json_each('[' || replace(json_quote(trim({row}.tags, ',')), ',', '\",\"') || ']') AS part "
        "WHERE {row}.tags <> ''"
    ),
    "postgresql": (
        "SELECT part.value, {row}.created_at, {row}.id FROM {source}"
        "unnest(string_to_array(trim(both ',' from {row}.tags), ',')) AS part(value) WHERE {row}.tags <> ''"
    ),
}


def _insert(kind: str, row: str, source: str = "") -> str:
    return f"INSERT INTO job_tags {COLUMNS} {TAGS_OF[kind].format(row=row, source=source)}"


SQLITE = (
    f"CREATE TRIGGER jobs_tags_first AFTER INSERT ON jobs WHEN NEW.tags <> '' BEGIN {_insert('sqlite', 'NEW')}; END",
    "CREATE TRIGGER jobs_tags_changed AFTER UPDATE OF tags ON jobs WHEN NEW.tags <> OLD.tags BEGIN "
    f"DELETE FROM job_tags WHERE job_id = NEW.id; {_insert('sqlite', 'NEW')}; END",
)
POSTGRESQL = (
    "CREATE FUNCTION scrimp_tag_job() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
    f"DELETE FROM job_tags WHERE job_id = NEW.id; {_insert('postgresql', 'NEW')}; RETURN NULL; END $$",
    "CREATE TRIGGER jobs_tags_first AFTER INSERT ON jobs FOR EACH ROW WHEN (NEW.tags <> '') "
    "EXECUTE FUNCTION scrimp_tag_job()",
    "CREATE TRIGGER jobs_tags_changed AFTER UPDATE OF tags ON jobs FOR EACH ROW WHEN (NEW.tags <> OLD.tags) "
    "EXECUTE FUNCTION scrimp_tag_job()",
)


def upgrade() -> None:
    kind = op.get_context().dialect.name
    count = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.add_column("ledger_checks", sa.Column("went_on_after", count, nullable=True))
    op.add_column("ledger_checks", sa.Column("in_full_at", sa.DateTime(timezone=True), nullable=True))
    op.create_table(
        "job_tags",
        sa.Column("tag", sa.String(200), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("job_id", sa.String(200), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_tags_job_id_jobs")),
        sa.PrimaryKeyConstraint("tag", "created_at", "job_id", name=op.f("pk_job_tags")),
    )
    op.create_index("ix_job_tags_job", "job_tags", ["job_id"])
    if kind == "postgresql":  # no tag between the rows and the triggers
        op.execute("LOCK TABLE jobs IN SHARE ROW EXCLUSIVE MODE")
    op.execute(_insert(kind, "job", "jobs AS job, " if kind == "sqlite" else "jobs AS job CROSS JOIN "))
    for statement in POSTGRESQL if kind == "postgresql" else SQLITE:
        op.execute(statement)
    op.drop_index("ix_jobs_created", "jobs")
    op.create_index("ix_jobs_created", "jobs", ["created_at", "id", "parent_id", "dataset_id", "name"])
    op.create_index("ix_jobs_finished", "jobs", ["finished_at", "dataset_id", "status", "parent_id"])


def downgrade() -> None:
    is_server = op.get_context().dialect.name == "postgresql"
    for name in ("jobs_tags_changed", "jobs_tags_first"):
        op.execute(f"DROP TRIGGER {name}" + (" ON jobs" if is_server else ""))
    if is_server:
        op.execute("DROP FUNCTION scrimp_tag_job()")
    op.drop_index("ix_jobs_finished", "jobs")
    op.drop_index("ix_jobs_created", "jobs")
    op.create_index("ix_jobs_created", "jobs", ["created_at", "id"])
    op.drop_table("job_tags")
    for name in ("in_full_at", "went_on_after"):
        op.drop_column("ledger_checks", name)
