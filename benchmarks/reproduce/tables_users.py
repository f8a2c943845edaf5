"""What `auto` reaches where a user has up to k records, each clipped to C/k, beside other C and rates.

    python -m benchmarks.reproduce.tables_users

The update is that of benchmarks.reproduce.tables, with a noise k times as large and the number of users as divisor.
Two tables have people of their own; of `wives` and `vietnam` five records at random are a user. All with 16 bins,
δ = 1e-5, a quarter of the users as test split, two seeds. Kept in benchmarks/reports/reproduce/tables_users.json.gz.
"""

from __future__ import annotations

import itertools
import math
import sys
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from app.hpo.rates import TABLES, PublicNumbers, norm_of, rate_of, steps_of
from benchmarks.reproduce.rate_data import _table
from benchmarks.reproduce.runs import REPORTS, read_archive, write_archive
from benchmarks.reproduce.tables import DELTA, MOMENTUM, auc, trained
from benchmarks.reproduce.tables_data import SOURCES, Source, Split, as_split
from core.contracts.optimizers import DpSgd
from core.privacy.gdp import mu_from_epsilon

KEPT = REPORTS / "tables_users.json.gz"
RECORDS, EPSILONS, SEEDS = (1, 3, 8), (1.0, 4.0), (0, 1)
CLIPS, RATES = (0.5, 1.0, 2.0), (0.25, 0.5, 1.0, 2.0, 4.0)  # of what `auto` chooses


class People(NamedTuple):
    """A table with the column that says whose a record is; None: five records at random are a user."""

    source: Source
    user: str | None


PEOPLE = {
    "out of work": People(
        Source(
            "COUNT/rwm5yr",
            "outwork",
            "year age female married kids hhninc educ self",
            lambda out: out == 1,
        ),
        "id",
    ),
    "unions": People(
        Source(
            "plm/Males",
            "union",
            "year school exper ethn married health wage industry occupation residence",
            lambda member: member == "yes",
        ),
        "nr",
    ),
    "wives": People(SOURCES["wives"], None),
    "vietnam": People(SOURCES["vietnam"], None),
}


def kept(users: NDArray[np.int64], most: int, seed: int) -> NDArray[np.int64]:
    """The places of at most so many random records of each user."""
    order = np.random.default_rng(seed).permutation(len(users))
    seen: dict[int, int] = {}
    places = []
    for place in order:
        user = int(users[place])
        seen[user] = seen.get(user, 0) + 1
        if seen[user] <= most:
            places.append(place)
    return np.sort(np.array(places))


def cell(name: str, k: int, epsilon: float) -> dict[str, Any]:
    """T, η, C, and AUC for each C and rate, in the order of the product; the mean of the seeds."""
    source, column = PEOPLE[name]
    frame = _table(source.path).dropna(subset=[source.label])
    features, whole = as_split(frame, source, "bins")
    draw = np.random.default_rng(0)
    users = (
        draw.integers(0, len(frame) // 5, len(frame))
        if column is None
        else np.unique(frame[column], return_inverse=True)[1]
    )
    is_test = draw.random(users.max() + 1)[users] < 0.25
    test = Split(whole.x[is_test], whole.y[is_test])
    places = np.flatnonzero(~is_test)
    L = len(set(users[places]))
    places = places[kept(users[places], k, seed=1)]
    train = Split(whole.x[places], whole.y[places])
    optimizer, length = DpSgd(momentum=MOMENTUM), features.length(features.width)
    mu, norm = mu_from_epsilon(epsilon, DELTA), k * norm_of(length, 2, TABLES).value

    def numbers(steps: int, sigma: float, clip: float) -> PublicNumbers:
        spread = features.spread(features.width)
        return PublicNumbers(steps, L, sigma, clip, length, 2, spread=spread, scale=float(k))

    steps = int(steps_of(optimizer, numbers(1, 1.0, norm), mu, TABLES).value)
    sigma = math.sqrt(steps) / mu
    rate = rate_of(optimizer, numbers(steps, sigma, norm), TABLES).value
    asked = list(itertools.product(CLIPS, RATES))
    norms = torch.tensor([clip * norm / k for clip, _ in asked])
    # The noise of the largest η C is that of `auto` where C changes alone.
    rates = torch.tensor([times * rate / clip * len(places) / L for clip, times in asked])
    scores = [
        auc(test.x @ trained(train, steps, norms, torch.full_like(norms, sigma * k), rates, seed).numpy(), test.y)
        for seed in SEEDS
    ]
    mean = [round(float(each), 4) for each in np.mean(scores, axis=0)]
    return {"users": L, "records": len(places), "steps": steps, "rate": rate, "auc": mean}


def main() -> None:
    torch.set_num_threads(1)
    cells: dict[str, Any] = read_archive(KEPT)
    auto = CLIPS.index(1.0) * len(RATES) + RATES.index(1.0)
    print("| table | users | k | records a user | auto, ε = 1 | best of 15 | ε = 4 | best of 15 |")
    print("|" + "---|" * 8)
    for name, k in itertools.product(PEOPLE, RECORDS):
        row = []
        for epsilon in EPSILONS:
            asked = f"{name}/k={k}/ε={epsilon:g}"
            if asked not in cells:
                cells[asked] = cell(name, k, epsilon)
                write_archive(KEPT, cells)
                print(asked, file=sys.stderr, flush=True)
            scores = cells[asked]["auc"]
            row += [f"{100 * scores[auto]:.1f}", f"{100 * max(scores):.1f}"]
        found = cells[f"{name}/k={k}/ε=1"]
        print(f"| {name} | {found['users']:,} | {k} | {found['records'] / found['users']:.1f} |", " | ".join(row), "|")


if __name__ == "__main__":
    main()
