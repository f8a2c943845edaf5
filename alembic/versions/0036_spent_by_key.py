"""Running sums of what each key spent, in all and by day, moved by a trigger on the ledger's entries.

A view that adds up posts reads each of them. The trigger adds a post to its sums in the statement that writes it, so
sums and entries commit together, also where a process of the last release writes the entry. The payer of a post is the
key of the hold that it draws on. A charge counts once in a ledger, and once in all blocks of a data set.

Entries of before are added up here; the chain itself is not touched.

Revision: 0036, after 0035
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None

COLUMNS = "dataset_id, key_id, day, charges, family_charges, train, holdout, last_at"
SUMS = ("charges", "family_charges", "train", "holdout")
MOVED = ", ".join(f"{name} = spent_by_key.{name} + excluded.{name}" for name in SUMS)
ON_CONFLICT = f"ON CONFLICT (dataset_id, key_id, day) DO UPDATE SET {MOVED}, last_at = excluded.last_at"


def _of_post(holder: str, day: str) -> str:
    """Adds the post NEW to both of its sums."""
    of_charge = f"(job_id = {holder} OR job_id IN (SELECT id FROM jobs WHERE parent_id = {holder}))"
    before = f"SELECT 1 FROM ledger_entries WHERE kind = 'post' AND {of_charge}"
    here = "dataset_id = NEW.dataset_id AND seq <> NEW.seq"
    root = "SELECT coalesce(parent_id, id) FROM datasets WHERE id = NEW.dataset_id"
    elsewhere = f"dataset_id IN (SELECT id FROM datasets WHERE id = ({root}) OR parent_id = ({root}))"
    other = "NOT (dataset_id = NEW.dataset_id AND seq = NEW.seq)"
    payer = f"SELECT actor FROM ledger_entries WHERE dataset_id = NEW.dataset_id AND once = 'hold:' || {holder}"
    return (
        f"INSERT INTO spent_by_key ({COLUMNS}) SELECT NEW.dataset_id, coalesce(({payer}), NEW.actor), period.day, "
        f"CASE WHEN EXISTS ({before} AND {here}) THEN 0 ELSE 1 END, "
        f"CASE WHEN EXISTS ({before} AND {elsewhere} AND {other}) THEN 0 ELSE 1 END, "
        f"NEW.train, NEW.holdout, NEW.created_at FROM (SELECT '' AS day UNION ALL SELECT {day}) AS period "
        f"WHERE true {ON_CONFLICT};"
    )


def _of_all(holder: str, day: str) -> str:
    """Adds up all posts of before."""
    posts = (
        f"SELECT post.dataset_id, post.train, post.holdout, post.created_at, {day} AS day, "
        "coalesce(hold.actor, post.actor) AS key_id, "
        f"CASE WHEN row_number() OVER (PARTITION BY post.dataset_id, {holder} ORDER BY post.seq) = 1 "
        "THEN 1 ELSE 0 END AS is_first, "
        f"CASE WHEN row_number() OVER (PARTITION BY coalesce(named.parent_id, named.id), {holder} "
        "ORDER BY post.created_at, post.dataset_id, post.seq) = 1 THEN 1 ELSE 0 END AS is_first_of_family "
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


SQLITE = (
    "CREATE TRIGGER ledger_entries_spent AFTER INSERT ON ledger_entries WHEN NEW.kind = 'post' BEGIN "
    + _of_post("coalesce(json_extract(NEW.memo, '$.hold'), NEW.job_id)", "substr(NEW.created_at, 1, 10)")
    + " END",
)
POSTGRESQL = (
    "CREATE FUNCTION scrimp_add_spent() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
    + _of_post("coalesce(NEW.memo ->> 'hold', NEW.job_id)", "to_char(NEW.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD')")
    + " RETURN NULL; END $$",
    "CREATE TRIGGER ledger_entries_spent AFTER INSERT ON ledger_entries FOR EACH ROW WHEN (NEW.kind = 'post') "
    "EXECUTE FUNCTION scrimp_add_spent()",
)
BACKFILL = {
    "sqlite": _of_all("coalesce(json_extract(post.memo, '$.hold'), post.job_id)", "substr(post.created_at, 1, 10)"),
    "postgresql": _of_all(
        "coalesce(post.memo ->> 'hold', post.job_id)", "to_char(post.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD')"
    ),
}


def upgrade() -> None:
    count = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "spent_by_key",
        sa.Column("dataset_id", sa.String(200), nullable=False),
        sa.Column("key_id", sa.String(200), nullable=False),
        sa.Column("day", sa.String(10), nullable=False),
        *(sa.Column(name, count, nullable=False) for name in SUMS),
        sa.Column("last_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["dataset_id"], ["accounts.dataset_id"], name=op.f("fk_spent_by_key_dataset_id_accounts")
        ),
        sa.PrimaryKeyConstraint("dataset_id", "key_id", "day", name=op.f("pk_spent_by_key")),
    )
    kind = op.get_context().dialect.name
    if kind == "postgresql":  # no entry between the sums and the trigger
        op.execute("LOCK TABLE ledger_entries IN SHARE ROW EXCLUSIVE MODE")
    op.execute(BACKFILL[kind])
    for statement in POSTGRESQL if kind == "postgresql" else SQLITE:
        op.execute(statement)


def downgrade() -> None:
    is_server = op.get_context().dialect.name == "postgresql"
    op.execute("DROP TRIGGER ledger_entries_spent" + (" ON ledger_entries" if is_server else ""))
    if is_server:
        op.execute("DROP FUNCTION scrimp_add_spent()")
    op.drop_table("spent_by_key")
