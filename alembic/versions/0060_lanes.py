"""What a claim reads of a job's specification, in columns: its lane and its priority. The queue's index has both.

A trigger writes them from `spec` and `device`, so that processes of the last release do so too. Rows are filled of jobs
that have not ended; the others are not read.

Revision: 0060, after 0059
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0060"
down_revision = "0059"
branch_labels = None
depends_on = None

QUEUED = "WHERE NOT (status <> 'queued') AND study IS NULL"
PARTS = {
    "sqlite": {
        "device": "json_extract({row}spec, '$.runtime.device')",
        "processes": "CAST(json_extract({row}spec, '$.runtime.processes') AS TEXT)",
        "priority": "coalesce(json_extract({row}spec, '$.priority'), 0)",
    },
    "postgresql": {
        "device": "{row}spec -> 'runtime' ->> 'device'",
        "processes": "{row}spec -> 'runtime' ->> 'processes'",
        "priority": "coalesce(({row}spec ->> 'priority')::integer, 0)",
    },
}
# The kind of device, and the fewest ranks: 1 once an attempt was ready, as the job goes on with fewer.
LANE = (
    "CASE WHEN coalesce({row}device, {device}, 'auto') = 'cuda' THEN 'cuda:' ELSE 'cpu:' END || "
    "CASE WHEN {row}device IS NOT NULL THEN '1' ELSE coalesce(nullif({processes}, 'auto'), '1') END"
)


def _values(kind: str, row: str) -> dict[str, str]:
    parts = {name: text.format(row=row) for name, text in PARTS[kind].items()}
    return {"lane": LANE.format(row=row, **parts), "priority": parts["priority"]}


def _update(kind: str, row: str, where: str) -> str:
    values = ", ".join(f"{name} = {value}" for name, value in _values(kind, row).items())
    return f"UPDATE jobs SET {values} WHERE {where}"


def _triggers(kind: str) -> tuple[str, ...]:
    if kind == "sqlite":
        body = f"BEGIN {_update(kind, 'NEW.', 'id = NEW.id')}; END"
        return (
            f"CREATE TRIGGER jobs_lane_first AFTER INSERT ON jobs {body}",
            f"CREATE TRIGGER jobs_lane_changed AFTER UPDATE OF spec, device ON jobs {body}",
        )
    assignments = " ".join(f"NEW.{name} := {value};" for name, value in _values(kind, "NEW.").items())
    function = f"CREATE FUNCTION scrimp_set_lane() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {assignments} "
    return (
        f"{function} RETURN NEW; END $$",
        "CREATE TRIGGER jobs_lane_first BEFORE INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION scrimp_set_lane()",
        "CREATE TRIGGER jobs_lane_changed BEFORE UPDATE OF spec, device ON jobs FOR EACH ROW "
        "EXECUTE FUNCTION scrimp_set_lane()",
    )


def upgrade() -> None:
    kind = op.get_context().dialect.name
    op.add_column("jobs", sa.Column("lane", sa.String(200), server_default="cpu:1", nullable=False))
    whole = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.add_column("jobs", sa.Column("priority", whole, server_default="0", nullable=False))
    op.execute(_update(kind, "", "finished_at IS NULL"))
    for statement in _triggers(kind):
        op.execute(statement)
    op.drop_index("ix_jobs_queue", "jobs")
    columns = "key_id, dataset_id, lane, priority DESC, created_at, id"
    op.execute(f"CREATE INDEX ix_jobs_queue ON jobs ({columns}) {QUEUED}")


def downgrade() -> None:
    kind = op.get_context().dialect.name
    for name in ("jobs_lane_changed", "jobs_lane_first"):
        op.execute(f"DROP TRIGGER {name}" + (" ON jobs" if kind == "postgresql" else ""))
    if kind == "postgresql":
        op.execute("DROP FUNCTION scrimp_set_lane()")
    op.drop_index("ix_jobs_queue", "jobs")
    priority = PARTS[kind]["priority"].format(row="")
    op.execute(f"CREATE INDEX ix_jobs_queue ON jobs (key_id, dataset_id, {priority} DESC, created_at, id) {QUEUED}")
    for name in ("priority", "lane"):
        op.drop_column("jobs", name)
