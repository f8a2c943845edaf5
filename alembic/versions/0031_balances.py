"""The balances of an account change only with the ledger entry that states them.

    1. Budgets, spent, held, cap and closing change only in a statement that counts `entries` up by one.
    2. The head changes only to the hash of the entry with that number, which states exactly these balances.
    3. `largest_cap_epsilon` only grows.

PostgreSQL checks the second rule at the commit, so it also refuses a move that was counted and has no entry. SQLite has
no check at a commit: there such a row stays without its entry, and the service moves nothing more on it
(app.ledger.agreement).

Revision: 0031, after 0030
"""

from __future__ import annotations

from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

MOVED = (
    "entries",
    "train_budget",
    "train_spent",
    "train_held",
    "holdout_budget",
    "holdout_spent",
    "holdout_held",
    "cap_epsilon",
    "joined_into",
)
STATED = [(part, kind) for part in ("train", "holdout") for kind in ("budget", "spent", "held")]


def _moved(differs: str) -> str:
    return " OR ".join(f"OLD.{each} {differs} NEW.{each}" for each in MOVED)


SQLITE = [
    f"CREATE TRIGGER accounts_counted BEFORE UPDATE ON accounts WHEN ({_moved('IS NOT')}) "
    "AND (NEW.entries <> OLD.entries + 1 OR NEW.head <> OLD.head) "
    "BEGIN SELECT RAISE(ABORT, 'the balances of an account move only with a ledger entry'); END",
    "CREATE TRIGGER accounts_stated BEFORE UPDATE ON accounts WHEN NEW.head <> OLD.head AND NOT EXISTS ("
    "SELECT 1 FROM ledger_entries WHERE dataset_id = NEW.dataset_id AND seq = NEW.entries AND hash = NEW.head "
    + " ".join(f"AND json_extract(memo, '$.balance.{part}.{kind}') = NEW.{part}_{kind}" for part, kind in STATED)
    + ") BEGIN SELECT RAISE(ABORT, 'the head of an account is the hash of an entry that states its balances'); END",
    "CREATE TRIGGER accounts_largest_cap BEFORE UPDATE ON accounts "
    "WHEN NEW.largest_cap_epsilon < OLD.largest_cap_epsilon "
    "BEGIN SELECT RAISE(ABORT, 'the largest cap of an account only grows'); END",
]

POSTGRESQL = [
    f"CREATE TRIGGER accounts_counted BEFORE UPDATE ON accounts FOR EACH ROW WHEN (({_moved('IS DISTINCT FROM')}) "
    "AND (NEW.entries <> OLD.entries + 1 OR NEW.head <> OLD.head)) EXECUTE FUNCTION scrimp_refuse()",
    "CREATE TRIGGER accounts_largest_cap BEFORE UPDATE ON accounts FOR EACH ROW "
    "WHEN (NEW.largest_cap_epsilon < OLD.largest_cap_epsilon) EXECUTE FUNCTION scrimp_refuse()",
    "CREATE FUNCTION scrimp_require_stated() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
    "IF NOT EXISTS (SELECT 1 FROM accounts JOIN ledger_entries AS entry ON entry.dataset_id = accounts.dataset_id "
    "AND entry.seq = accounts.entries AND entry.hash = accounts.head WHERE accounts.dataset_id = NEW.dataset_id "
    + " ".join(
        f"AND CAST(entry.memo #>> '{{balance,{part},{kind}}}' AS bigint) = accounts.{part}_{kind}"
        for part, kind in STATED
    )
    + ") THEN RAISE EXCEPTION 'accounts: no entry states the balances of %', NEW.dataset_id; END IF; "
    "RETURN NULL; END $$",
    # At the commit: a move comes before its entry, and a transaction may make several.
    "CREATE CONSTRAINT TRIGGER accounts_stated AFTER UPDATE ON accounts DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
    "WHEN (OLD.entries <> NEW.entries OR OLD.head <> NEW.head) EXECUTE FUNCTION scrimp_require_stated()",
]
TRIGGERS = ("accounts_counted", "accounts_stated", "accounts_largest_cap")


def upgrade() -> None:
    for statement in POSTGRESQL if _is_postgresql() else SQLITE:
        op.execute(statement)


def downgrade() -> None:
    for name in TRIGGERS:
        op.execute(f"DROP TRIGGER {name} ON accounts" if _is_postgresql() else f"DROP TRIGGER {name}")
    if _is_postgresql():
        op.execute("DROP FUNCTION scrimp_require_stated()")


def _is_postgresql() -> bool:
    return op.get_context().dialect.name == "postgresql"
