"""Histories that grow: a post finds the charge that it belongs to by an index.

The trigger of 0036 looked for earlier posts of a charge with an OR that no index answers: PostgreSQL read the ledger at
each post. The sums of before are added up again: a post without a holder is a charge of its own there, as in the
trigger. And the queue has an index in the order of claims: the ranking of all queued jobs took a second of 100,000.

Revision: 0040, after 0038
"""

from __future__ import annotations

from alembic import op

revision = "0040"
down_revision = "0038"
branch_labels = None
depends_on = None

COLUMNS = "dataset_id, key_id, day, charges, family_charges, train, holdout, last_at"
SUMS = ("charges", "family_charges", "train", "holdout")
MOVED = ", ".join(f"{name} = spent_by_key.{name} + excluded.{name}" for name in SUMS)
ON_CONFLICT = f"ON CONFLICT (dataset_id, key_id, day) DO UPDATE SET {MOVED}, last_at = excluded.last_at"


def _is_first(holder: str, where: str) -> str:
    """1 if no other post of the charge is there: two look-ups of an index, as one with an OR would be none.

    `kind = 'post'` would let SQLite choose an index of posts alone, which has no job.
    """
    post = f"entry.kind NOT IN ('hold', 'void') AND {where}"
    own = f"SELECT 1 FROM ledger_entries AS entry WHERE entry.job_id = {holder} AND {post}"
    trials = (  # SQLite keeps the order of a CROSS JOIN
        "SELECT 1 FROM jobs AS trial CROSS JOIN ledger_entries AS entry "
        f"WHERE trial.parent_id = {holder} AND entry.job_id = trial.id AND {post}"
    )
    return f"CASE WHEN EXISTS ({own}) THEN 0 WHEN EXISTS ({trials}) THEN 0 ELSE 1 END"


def _of_post(holder: str, day: str) -> str:
    """Adds the post NEW to both of its sums."""
    here = "entry.dataset_id = NEW.dataset_id AND entry.seq <> NEW.seq"
    root = "SELECT coalesce(parent_id, id) FROM datasets WHERE id = NEW.dataset_id"
    elsewhere = (
        f"entry.dataset_id IN (SELECT id FROM datasets WHERE id = ({root}) OR parent_id = ({root})) "
        "AND NOT (entry.dataset_id = NEW.dataset_id AND entry.seq = NEW.seq)"
    )
    payer = f"SELECT actor FROM ledger_entries WHERE dataset_id = NEW.dataset_id AND once = 'hold:' || {holder}"
    return (
        f"INSERT INTO spent_by_key ({COLUMNS}) SELECT NEW.dataset_id, coalesce(({payer}), NEW.actor), period.day, "
        f"{_is_first(holder, here)}, {_is_first(holder, elsewhere)}, "
        f"NEW.train, NEW.holdout, NEW.created_at FROM (SELECT '' AS day UNION ALL SELECT {day}) AS period "
        f"WHERE true {ON_CONFLICT};"
    )


def _of_all(holder: str, day: str) -> str:
    """Adds up all posts of before."""

    def is_first(of: str, order: str) -> str:
        place = f"row_number() OVER (PARTITION BY {of}, {holder} ORDER BY {order})"
        return f"CASE WHEN {holder} IS NULL OR {place} = 1 THEN 1 ELSE 0 END"

    family = is_first("coalesce(named.parent_id, named.id)", "post.seq, post.created_at, post.dataset_id")
    posts = (
        f"SELECT post.dataset_id, post.train, post.holdout, post.created_at, {day} AS day, "
        "coalesce(hold.actor, post.actor) AS key_id, "
        f"{is_first('post.dataset_id', 'post.seq')} AS is_first, {family} AS is_first_of_family "
        "FROM ledger_entries AS post JOIN datasets AS named ON named.id = post.dataset_id "
        f"LEFT JOIN ledger_entries AS hold ON hold.dataset_id = post.dataset_id AND hold.once = 'hold:' || {holder} "
        "WHERE post.kind = 'post'"
    )
    sums = "sum(is_first), sum(is_first_of_family), sum(train), sum(holdout), max(created_at)"
    return (
        f"INSERT INTO spent_by_key ({COLUMNS}) WITH posts AS ({posts}) "
        f"SELECT dataset_id, key_id, '', {sums} FROM posts GROUP BY dataset_id, key_id "
        f"UNION ALL SELECT dataset_id, key_id, day, {sums} FROM posts GROUP BY dataset_id, key_id, day"
    )


HOLDER = {
    "sqlite": "coalesce(json_extract({}.memo, '$.hold'), {}.job_id)",
    "postgresql": "coalesce({}.memo ->> 'hold', {}.job_id)",
}
DAY = {
    "sqlite": "substr({}.created_at, 1, 10)",
    "postgresql": "to_char({}.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD')",
}
BACKFILL = {kind: _of_all(HOLDER[kind].format("post", "post"), DAY[kind].format("post")) for kind in HOLDER}
POST = {kind: _of_post(HOLDER[kind].format("NEW", "NEW"), DAY[kind].format("NEW")) for kind in HOLDER}
TRIGGERS = {
    "sqlite": (
        "CREATE TRIGGER ledger_entries_spent AFTER INSERT ON ledger_entries WHEN NEW.kind = 'post' BEGIN "
        f"{POST['sqlite']} END"
    ),
    "postgresql": (
        "CREATE OR REPLACE FUNCTION scrimp_add_spent() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"{POST['postgresql']} RETURN NULL; END $$"
    ),
}
PRIORITY = {
    "sqlite": "coalesce(json_extract(spec, '$.priority'), 0)",
    "postgresql": "coalesce((spec ->> 'priority')::integer, 0)",
}


def upgrade() -> None:
    kind = op.get_context().dialect.name
    if kind == "postgresql":  # no entry between the sums and the trigger
        op.execute("LOCK TABLE ledger_entries IN SHARE ROW EXCLUSIVE MODE")
    op.execute("DELETE FROM spent_by_key")
    op.execute(BACKFILL[kind])
    if kind == "sqlite":
        op.execute("DROP TRIGGER ledger_entries_spent")
    op.execute(TRIGGERS[kind])
    op.execute(
        f"CREATE INDEX ix_jobs_queue ON jobs (key_id, dataset_id, {PRIORITY[kind]} DESC, created_at, id) "
        "WHERE NOT (status <> 'queued') AND study IS NULL"
    )


def downgrade() -> None:
    """The trigger stays: it adds up the same."""
    op.drop_index("ix_jobs_queue", "jobs")
