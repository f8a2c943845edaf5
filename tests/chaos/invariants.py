"""What holds after every attack, looked for in the service's own answers."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

Json = dict[str, Any]
ACCOUNTS = ("train", "holdout")
ENDED = ("succeeded", "failed", "cancelled")


class Asked(Protocol):
    """A service that answers."""

    def get(self, path: str, /) -> Any: ...

    def content(self, path: str, /) -> bytes: ...

    def verification(self, dataset: str, /) -> Json: ...


def ledger_faults(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Replays a ledger from nothing: never overspent at any entry, each hold taken once and settled once, no more."""
    budget, spent = dict.fromkeys(ACCOUNTS, 0), dict.fromkeys(ACCOUNTS, 0)
    holds: dict[str, Json] = {}
    ends: defaultdict[str, list[str]] = defaultdict(list)
    faults: list[str] = []
    for entry in entries:
        kind, job, at = entry["kind"], entry["job_id"], f"entry {entry['seq']}"
        if kind in ("open", "cap"):
            budget = {name: entry[name] for name in ACCOUNTS}
        elif kind == "hold":
            faults += [f"{at}: {job} is held twice"] if job in holds else []
            holds[job] = {name: entry[name] for name in ACCOUNTS}
        else:
            held = holds.get(job) if not ends[job] else None
            ends[job].append(at)
            if job is not None and held is None:
                faults.append(f"{at}: {job} is settled twice, or was never held")
            for name in ACCOUNTS:
                spent[name] += entry[name]
                if held is not None and entry[name] + entry[f"{name}_released"] != held[name]:
                    faults.append(f"{at}: {job} is settled for another amount than was held")
        for name in ACCOUNTS:
            open_holds = sum(amounts[name] for held_by, amounts in holds.items() if not ends[held_by])
            if spent[name] + open_holds > budget[name]:
                faults.append(f"{at}: the {name} account is overspent")
    return faults + [f"the hold of {job} is not settled" for job in holds if not ends[job]]


def entries_of(asked: Asked, dataset: str) -> list[Json]:
    found: list[Json] = []
    after = ""
    while True:
        page = asked.get(f"/v1/datasets/{dataset}/ledger/entries?limit=100{after}")
        found += page["items"]
        if page["next"] is None:
            return found
        after = f"&after={page['next']}"


def dataset_faults(asked: Asked, dataset: str, jobs: Iterable[str], *, valid: bool = True) -> list[str]:
    """Of a data set at rest: its ledger, its row, its jobs and their models.

    Args:
        jobs: all that were admitted.
        valid: what `verify` must say.
    """
    entries = entries_of(asked, dataset)
    faults = ledger_faults(entries)
    accounts = asked.get(f"/v1/datasets/{dataset}/ledger")["accounts"]
    for name in ACCOUNTS:
        posted = sum(entry[name] for entry in entries if entry["kind"] == "post")
        if (accounts[name]["spent"], accounts[name]["held"]) != (posted, 0):
            faults.append(f"the {name} account says {accounts[name]}, the entries {posted} spent and nothing held")
    verified = asked.verification(dataset)
    if verified["valid"] is not valid:
        faults.append(f"verify says {verified}")
    settled = {entry["job_id"] for entry in entries if entry["kind"] in ("post", "void")}
    for job in jobs:
        faults += [] if job in settled else [f"{job} was admitted and is in no settlement"]
        faults += job_faults(asked, job)
    return faults


def job_faults(asked: Asked, job: str) -> list[str]:
    """Of a job at its end: one that succeeded has its model, with the hash of its row."""
    found = asked.get(f"/v1/jobs/{job}")
    if found["status"] not in ENDED:
        return [f"{job} has not ended: {found['status']}"]
    if found["status"] != "succeeded":
        return []
    faults = [] if any(each["name"] == "model.safetensors" for each in found["artifacts"]) else [f"{job} has no model"]
    for artifact in found["artifacts"]:
        digest = hashlib.sha256(asked.content(f"/v1/jobs/{job}/artifacts/{artifact['name']}")).hexdigest()
        if digest != artifact["sha256"]:
            faults.append(f"{artifact['name']} of {job} is not what its row says")
    return faults
