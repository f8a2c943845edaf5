"""Who spent what of a data set's budget, from its ledger's entries, as the dashboard's page for owners says it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrimp.errors import NotAllowed
from scrimp.models import LedgerEntry

if TYPE_CHECKING:
    from scrimp.client import Client


@dataclass(frozen=True)
class Spending:
    """What a key's jobs spent; `train` and `holdout` are in the unit of the data set's filter."""

    key: str
    name: str
    teams: list[str]
    charges: int
    train: int
    holdout: int


def spending(client: Client, dataset: str) -> list[Spending]:
    """What each key spent, the largest amount first. Names are those that the caller may read, else ids."""
    entries = list(client.ledger_entries(dataset))
    names = key_names(client, dataset)
    budgets = [(each.name, each.keys or []) for each in client.budgets(dataset)]
    found = []
    for key, posts in by_key(entries).items():
        teams = sorted(name for name, keys in budgets if key in keys and name != key)
        train, holdout = sum(each.train for each in posts), sum(each.holdout for each in posts)
        found.append(Spending(key, names.get(key, key), teams, len(posts), train, holdout))
    return sorted(found, key=lambda each: -max(each.train, each.holdout))


def by_key(entries: Iterable[LedgerEntry]) -> dict[str, list[LedgerEntry]]:
    """The entries that spent, by the key whose hold they settle: another may have posted them."""
    holders: dict[str | None, str] = {}
    posts: dict[str, list[LedgerEntry]] = {}
    for entry in entries:
        if entry.kind == "hold":
            holders[entry.job_id] = entry.actor
        elif entry.kind == "post":
            posts.setdefault(holders.get(entry.job_id, entry.actor), []).append(entry)
    return posts


def key_names(client: Client, dataset: str) -> dict[str, str]:
    """The names of keys by their ids: of all for an admin, of those with a grant for the owner, else of the own key."""
    own = client.own_key()
    names = {own.id: own.name}
    with suppress(NotAllowed):  # what the caller may not read stays an id
        names |= {each.key_id: each.key_name for each in client.grants(dataset)}
        every = list(client.keys())
        names |= {each.id: each.name for each in every}
    return names
