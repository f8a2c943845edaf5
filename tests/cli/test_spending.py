"""`scrimp ledger spending` sums what each key's jobs spent, whoever posted it, and says whose ledger it reads."""

from __future__ import annotations

from typing import Any

from scrimp.models import LedgerEntry
from scrimp.spending import by_key
from tests.cli.conftest import Cli
from tests.e2e.conftest import write_csv


def entry(seq: int, kind: str, job: str, actor: str, train: int) -> LedgerEntry:
    members: dict[str, Any] = {"version": 1, "dataset_id": "ds_1", "holdout": 0, "train_released": 0}
    members |= {"holdout_released": 0, "memo": {}, "created_at": "", "prev_hash": "", "hash": ""}
    return LedgerEntry.model_validate(
        members | {"seq": seq, "kind": kind, "job_id": job, "actor": actor, "train": train}
    )


def test_a_post_is_the_holder_s_and_a_charge_is_its_actor_s() -> None:
    entries = [
        entry(1, "hold", "job_a", "key_ann", 5),
        entry(2, "hold", "job_b", "key_bob", 7),
        entry(3, "post", "job_a", "worker", 4),
        entry(4, "void", "job_b", "worker", 7),
        entry(5, "post", "chg_c", "key_bob", 2),
    ]
    assert {key: sum(post.train for post in posts) for key, posts in by_key(entries).items()} == {
        "key_ann": 4,
        "key_bob": 2,
    }


def test_of_a_grown_data_set_it_says_that_it_is_one_block_s(cli: Cli, dataset: str) -> None:
    assert "One block's ledger" not in cli("ledger", "spending", dataset).output
    rows = str(write_csv(cli.folder / "month.csv", rows=200, seed=12))
    assert cli("blocks", "add", dataset, "2026-11", "--records", "200", "--file", rows).exit_code == 0
    assert "One block's ledger: that of `first`" in cli("ledger", "spending", dataset).output
