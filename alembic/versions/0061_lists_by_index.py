"""A list of jobs walks an index that has all that it orders and filters by: of a tag, a status, a data set, a name.

Rows of tags are written anew with the job's name and data set, and without those of trials, which no list shows.

Revision: 0061, after 0060
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0061"
down_revision = "0060"
branch_labels = None
depends_on = None

LAST_COLUMNS = ("tag", "created_at", "job_id")
COLUMNS = (*LAST_COLUMNS, "name", "dataset_id")
# A job's tags stand between commas: ",a,b,".
PARTS = {
    "sqlite": "json_each('[' || replace(json_quote(trim({row}.tags, ',')), ',', '\",\"') || ']') AS part",
    "postgresql": "unnest(string_to_array(trim(both ',' from {row}.tags), ',')) AS part(value)",
}
TOP = "parent_id IS NULL"
INDICES = {  # the columns of the last release, and those added
    "ix_jobs_dataset_created": (("dataset_id", "created_at", "id"), ("parent_id", "name"), ""),
    "ix_jobs_name": (("name", "id"), ("dataset_id",), TOP),
    "ix_jobs_top_status": (("status", "created_at", "id"), ("dataset_id", "name"), TOP),
    "ix_jobs_top_dataset": (("dataset_id", "status"), ("created_at", "id", "name"), TOP),
}


def upgrade() -> None:
    _drop_tags()
    _make_tags(COLUMNS, f" AND NEW.{TOP}")
    op.create_index("ix_job_tags_name", "job_tags", ["tag", "name", "job_id"])
    for name, (columns, added, condition) in INDICES.items():
        _make_index(name, (*columns, *added), condition)


def downgrade() -> None:
    for name, (columns, _added, condition) in INDICES.items():
        _make_index(name, columns, condition)
    op.drop_index("ix_job_tags_name", "job_tags")
    _drop_tags()
    _make_tags(LAST_COLUMNS, "")


def _make_index(name: str, columns: tuple[str, ...], condition: str) -> None:
    op.drop_index(name, "jobs")
    where = f" WHERE {condition}" if condition else ""
    op.execute(f"CREATE INDEX {name} ON jobs ({', '.join(columns)}){where}")


def _drop_tags() -> None:
    is_server = op.get_context().dialect.name == "postgresql"
    if is_server:  # no tag between the rows and the triggers
        op.execute("LOCK TABLE jobs IN SHARE ROW EXCLUSIVE MODE")
    for name in ("jobs_tags_changed", "jobs_tags_first"):
        op.execute(f"DROP TRIGGER {name}" + (" ON jobs" if is_server else ""))
    if is_server:
        op.execute("DROP FUNCTION scrimp_tag_job()")
    op.drop_table("job_tags")


def _make_tags(columns: tuple[str, ...], condition: str) -> None:
    """Makes the table, its rows and the triggers that write it.

    Args:
        condition: on NEW, a job that has tags.
    """
    kind = op.get_context().dialect.name
    types = {"created_at": sa.DateTime(timezone=True)}
    op.create_table(
        "job_tags",
        *(sa.Column(name, types.get(name, sa.String(200)), nullable=False) for name in columns),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_tags_job_id_jobs")),
        sa.PrimaryKeyConstraint(*LAST_COLUMNS, name=op.f("pk_job_tags")),
    )
    op.create_index("ix_job_tags_job", "job_tags", ["job_id"])
    of_row = {"tag": "part.value", "created_at": "{row}.created_at", "job_id": "{row}.id"}

    def insert(row: str, source: str) -> str:
        values = ", ".join(of_row.get(name, f"{{row}}.{name}") for name in columns)
        rows = f"SELECT {values} FROM {source}{PARTS[kind]} WHERE {{row}}.tags <> ''"
        return f"INSERT INTO job_tags ({', '.join(columns)}) {rows.format(row=row)}"

    op.execute(insert("job", "jobs AS job CROSS JOIN ") + condition.replace("NEW.", "job."))
    if kind == "postgresql":
        op.execute(
            "CREATE FUNCTION scrimp_tag_job() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"DELETE FROM job_tags WHERE job_id = NEW.id; {insert('NEW', '')}{condition}; RETURN NULL; END $$"
        )
        act, after = "EXECUTE FUNCTION scrimp_tag_job()", "ON jobs FOR EACH ROW WHEN"
        op.execute(f"CREATE TRIGGER jobs_tags_first AFTER INSERT {after} (NEW.tags <> '') {act}")
        op.execute(f"CREATE TRIGGER jobs_tags_changed AFTER UPDATE OF tags {after} (NEW.tags <> OLD.tags) {act}")
        return
    act = f"BEGIN DELETE FROM job_tags WHERE job_id = NEW.id; {insert('NEW', '')}{condition}; END"
    op.execute(f"CREATE TRIGGER jobs_tags_first AFTER INSERT ON jobs WHEN NEW.tags <> '' {act}")
    op.execute(f"CREATE TRIGGER jobs_tags_changed AFTER UPDATE OF tags ON jobs WHEN NEW.tags <> OLD.tags {act}")
