"""The cap and the closing of an account change only together with the entry that states them.

`cap_epsilon`, `largest_cap_epsilon` and `joined_into` change in the statement that moves the head, to an entry of kind
`cap` with this cap and closing; the largest cap becomes the larger of the old one and that. Before, they could change
in a statement that only counted `entries` up, and the entry that came next did not have to state them.

SQLite checks it in the statement. PostgreSQL checks it at the commit, as it writes entry and head in one statement.

Revision: 0033, after 0032
"""

from __future__ import annotations

from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

BALANCES = (
    "entries",
    "train_budget",
    "train_spent",
    "train_held",
    "holdout_budget",
    "holdout_spent",
    "holdout_held",
)
CAPS = ("cap_epsilon", "largest_cap_epsilon", "joined_into")
REFUSAL = "the cap of an account changes only with the ledger entry that states it"


def _differs(columns: tuple[str, ...], differs: str) -> str:
    return " OR ".join(f"OLD.{each} {differs} NEW.{each}" for each in columns)


def _counted_sqlite(columns: tuple[str, ...]) -> str:
    return (
        f"CREATE TRIGGER accounts_counted BEFORE UPDATE ON accounts WHEN ({_differs(columns, 'IS NOT')}) "
        "AND (NEW.entries <> OLD.entries + 1 OR NEW.head <> OLD.head) "
        "BEGIN SELECT RAISE(ABORT, 'the balances of an account move only with a ledger entry'); END"
    )


def _counted_postgresql(columns: tuple[str, ...]) -> str:
    return (
        f"CREATE TRIGGER accounts_counted BEFORE UPDATE ON accounts FOR EACH ROW "
        f"WHEN (({_differs(columns, 'IS DISTINCT FROM')}) "
        "AND (NEW.entries <> OLD.entries + 1 OR NEW.head <> OLD.head)) EXECUTE FUNCTION scrimp_refuse()"
    )


SQLITE = [
    "DROP TRIGGER accounts_counted",
    _counted_sqlite(BALANCES),
    # Its decimal numbers may be read with an error in the last bit.
    f"CREATE TRIGGER accounts_caps BEFORE UPDATE ON accounts WHEN ({_differs(CAPS, 'IS NOT')}) "
    "AND (NEW.head = OLD.head OR NEW.largest_cap_epsilon <> max(OLD.largest_cap_epsilon, NEW.cap_epsilon) "
    "OR NOT EXISTS (SELECT 1 FROM ledger_entries WHERE dataset_id = NEW.dataset_id AND seq = NEW.entries "
    "AND hash = NEW.head AND kind = 'cap' "
    "AND abs(json_extract(memo, '$.cap_epsilon') - NEW.cap_epsilon) <= 1e-14 * NEW.cap_epsilon "
    "AND json_extract(memo, '$.joined_into') IS NEW.joined_into)) "
    f"BEGIN SELECT RAISE(ABORT, '{REFUSAL}'); END",
]
POSTGRESQL = [
    "DROP TRIGGER accounts_counted ON accounts",
    _counted_postgresql(BALANCES),
    "CREATE FUNCTION scrimp_require_stated_cap() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
    "IF NEW.head = OLD.head OR NEW.largest_cap_epsilon <> greatest(OLD.largest_cap_epsilon, NEW.cap_epsilon) "
    "OR NOT EXISTS (SELECT 1 FROM ledger_entries AS entry WHERE entry.dataset_id = NEW.dataset_id "
    "AND entry.seq = NEW.entries AND entry.hash = NEW.head AND entry.kind = 'cap' "
    "AND CAST(entry.memo #>> '{cap_epsilon}' AS double precision) = NEW.cap_epsilon "
    "AND entry.memo #>> '{joined_into}' IS NOT DISTINCT FROM NEW.joined_into) "
    f"THEN RAISE EXCEPTION '{REFUSAL}: %', NEW.dataset_id; END IF; RETURN NULL; END $$",
    "CREATE CONSTRAINT TRIGGER accounts_caps AFTER UPDATE ON accounts DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
    f"WHEN ({_differs(CAPS, 'IS DISTINCT FROM')}) EXECUTE FUNCTION scrimp_require_stated_cap()",
]


def upgrade() -> None:
    for statement in POSTGRESQL if _is_postgresql() else SQLITE:
        op.execute(statement)


def downgrade() -> None:
    before = (*BALANCES, "cap_epsilon", "joined_into")
    if _is_postgresql():
        op.execute("DROP TRIGGER accounts_caps ON accounts")
        op.execute("DROP FUNCTION scrimp_require_stated_cap()")
        op.execute("DROP TRIGGER accounts_counted ON accounts")
        op.execute(_counted_postgresql(before))
        return
    op.execute("DROP TRIGGER accounts_caps")
    op.execute("DROP TRIGGER accounts_counted")
    op.execute(_counted_sqlite(before))


def _is_postgresql() -> bool:
    return op.get_context().dialect.name == "postgresql"
