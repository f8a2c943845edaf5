"""What a campaign has found so far: a journal of its rounds, one line each, and the report that is made of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

ABOUT = {
    "races": "many submit at once what does not all fit; some twice, some cancel",
    "kills": "kill -9 of API, relay, worker and attempt while jobs are submitted and run",
    "clocks": "a relay and the only worker with wrong clocks (libfaketime); over SQLite all have the machine's",
    "rewinds": "every process dies, the database is restored from a backup made before a paid job",
    "tampering": "a rewritten chain, a tail rolled back, an account's row, an entry, a model's byte",
}
INVARIANTS = (
    "Checked after every round: no entry overspends either account; each hold is taken once and settled once, for what",
    "was held; the account's row says what the entries add up to; each job that was admitted has ended and is settled;",
    "each model that succeeded is handed out with the hash in its row; `verify` finds the ledger valid, and invalid",
    "while it is changed; after a rewind or a change the data set admits nothing.",
)


@dataclass
class Result:
    """What came of one round. `number` and the campaign's seed say what it did."""

    number: int
    backing: str
    attack: str
    took_s: float
    counts: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


@dataclass
class Journal:
    """The rounds of one campaign, on the disk as they end: what is killed goes on from there."""

    path: Path
    seed: int
    results: list[Result] = field(default_factory=list)

    @classmethod
    def begin(cls, path: Path, seed: int) -> Journal:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"seed": seed}) + "\n")
        return cls(path, seed)

    @classmethod
    def resume(cls, path: Path) -> Journal:
        """Reads what is there; a last line that was cut off is a round that did not end."""
        first, *rest = path.read_text().split("\n")
        whole = rest[:-1]
        made = cls(path, json.loads(first)["seed"], [Result(**json.loads(line)) for line in whole])
        path.write_text("\n".join([first, *whole, ""]))
        return made

    def add(self, result: Result) -> None:
        self.results.append(result)
        with self.path.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")

    @property
    def next_number(self) -> int:
        return max((each.number for each in self.results), default=0) + 1

    @property
    def took_s(self) -> float:
        return sum(each.took_s for each in self.results)

    @property
    def faults(self) -> list[str]:
        return [fault for each in self.results for fault in each.faults]


def text(journal: Journal, notes: Iterable[str] = ()) -> str:
    """The report, dated today."""
    lines = [
        "# Chaos",
        "",
        f"`make nightly-chaos`, {datetime.now(UTC):%Y-%m-%d}, seed {journal.seed}: {len(journal.results)} rounds in "
        f"{journal.took_s:.0f} s against real",
        "processes (one API, one relay, two workers) on each database.",
        "",
        *INVARIANTS,
        "",
        "| attack | database | rounds | did | failed |",
        "|---|---|---|---|---|",
    ]
    kinds = sorted({(each.attack, each.backing) for each in journal.results})
    for attack, backing in kinds:
        rounds = [each for each in journal.results if (each.attack, each.backing) == (attack, backing)]
        did: Counter[str] = sum((Counter(each.counts) for each in rounds), Counter())
        counted = ", ".join(f"{count} {what}" for what, count in sorted(did.items())) or "-"
        failed = sum(bool(each.faults) for each in rounds)
        lines.append(f"| {attack} | {backing} | {len(rounds)} | {counted} | {failed} |")
    lines += ["", *(f"* {attack}: {ABOUT[attack]}" for attack in sorted({attack for attack, _ in kinds}))]
    lines += [f"* {note}" for note in notes]
    for each in journal.results:
        if each.faults:
            again = f"python -m tests.chaos.nightly --seed {journal.seed} --round {each.number}"
            lines += ["", f"## Round {each.number}: {each.attack} on {each.backing}", "", f"`{again}`", ""]
            lines += [f"* {fault}" for fault in each.faults]
    return "\n".join(lines) + "\n"
