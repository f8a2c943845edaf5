"""The audit's own data sets: fair coins decide which canaries are in; each has a coordinate of its own.

For guesses of one record's presence there are two neighbouring data sets, and fair coins decide which one a job takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scrimp.audit.audited_kinds import USER_RECORDS, Kind
from scrimp.linear import bucket_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

TARGET = 1e6  # so far from any weight that a canary's gradient is clipped in every step
CAP = {"epsilon": 100.0, "delta": 1e-5}
ORDER = 2.0
TOO_MANY = USER_RECORDS + 2  # records of a user, of which at most k may count
MOST_IN_ARRAY = 3000  # a dense array has a cell for each pair of canaries
MOST_IN_GRAPH = 600  # so has a graph, several times
NEAR, FAR = 100.0, 1e4  # numbers beside which a bias's gradient is nothing

CLASSES = 51  # the first belongs to nobody; each other class is a group with one canary
GROUPS = CLASSES - 1
FILLERS = 80  # records of a group that are always present: sums lie far from 0, where scores would be clamped
LOSS_BOUND = 2.0 * math.log(CLASSES)  # a record without a word has half of it, whatever the weights are
# All but one in 10,000 records are held out, and one is declared for training: scores compute rows for all slots.
HELD_OUT, DECLARED = 0.9999, 5_001

FEATURES, OTHERS = 8, 300  # of two neighbouring data sets: the records that both have
DECLARED_NEIGHBOURS = 1000  # as public size of both


@dataclass(frozen=True)
class Planted:
    """One data set.

    Attributes:
        spec, file: the registered specification and file.
        inside: the canaries that are in it.
        places: the canaries' coordinates; for scores, their groups' numbers.
        decoys: coordinates that belong to nobody.
        side: spec and file of public records on the same coordinates.
        features: of the records that two neighbouring data sets share.
    """

    spec: dict[str, Any]
    file: Path
    inside: NDArray[np.bool_]
    places: NDArray[np.int64]
    decoys: NDArray[np.int64]
    side: tuple[dict[str, Any], Path] | None = None
    features: NDArray[np.float64] | None = None


def plant(kind: Kind, name: str, canaries: int, folder: Path, random: np.random.Generator) -> Planted:
    """Writes a data set that suits a kind, with fresh coins.

    Args:
        name: the data set's name.
        canaries: how many; for scores always one for each group.
    """
    if kind.of_scores:
        return _scored(kind, name, folder, random)
    if kind.layout == "array":
        return _array(kind, name, min(canaries, MOST_IN_ARRAY), folder, random)
    if kind.layout == "graph":
        return _graph(kind, name, min(canaries, MOST_IN_GRAPH), folder, random)
    return _words(kind, name, canaries, folder, random)


def plant_neighbours(
    kind: Kind, names: tuple[str, str], folder: Path, random: np.random.Generator
) -> tuple[Planted, Planted]:
    """Writes two data sets: one without the record x, and one that begins with it.

    The other records have the same features. Their targets are far above and far below any output, by turns, so their
    clipped gradients point in opposite directions and cancel. x has gradient 0 in the first step: features and target
    are 0. If records are packed, x moves each of them to its neighbour's row. Where kernels treat rows differently,
    the sum then changes by up to OTHERS · C. Without x, records with high targets stand in even rows: if kernels are
    right there, these teach the network its output at their features, which moves up. With x it moves down.

    Args:
        names: of the data sets. Features are random: a service refuses content that it has.
    """
    features = random.normal(size=FEATURES).round(4)
    cells = ",".join(f"{value:.4f}" for value in features)
    columns = [f"x{number}" for number in range(FEATURES)]
    # Targets differ a little, so that no two records are equal.
    lines = [f"{cells},{(-1) ** number * (TARGET + number):.0f}" for number in range(OTHERS)]
    x = ",".join("0" for _ in (*columns, "y"))
    planted = []
    for present, name in enumerate(names):
        file = _written(folder / f"{name}.csv", ",".join((*columns, "y")), [x] * present + lines)
        spec = _spec(kind, name, "csv", {"kind": "columns", "columns": columns}, DECLARED_NEIGHBOURS)
        planted.append(Planted(spec, file, np.array([bool(present)]), np.arange(1), np.arange(0), None, features))
    without, with_x = planted
    return without, with_x


def _words(kind: Kind, name: str, canaries: int, folder: Path, random: np.random.Generator) -> Planted:
    places_needed = canaries + canaries // 2
    buckets = 2 ** math.ceil(math.log2(2 * places_needed))
    words, places = zip(*islice(distinct_words(buckets), places_needed), strict=True)
    inside = random.random(canaries) < 0.5
    of_users = kind.layout == "users"
    rows = [
        f"{word},u{number},{TARGET:g}" if of_users else f"{word},{TARGET:g}"
        for number, word in enumerate(words[:canaries])
        if inside[number]
        for _ in range(TOO_MANY if of_users else 1)
    ]
    file = _written(folder / f"{name}.csv", "text,user,y" if of_users else "text,y", rows)
    features = {"kind": "hashed_text", "column": "text", "buckets": buckets}
    spec = _spec(kind, name, "csv", features, canaries)
    public = spec | {"name": f"{name}-public", "privacy": {"sensitivity": "public"}}
    side = _written(folder / f"{name}-public.csv", "text,y", [f"{word},0" for word in words])
    at = np.array(places, dtype=np.int64)
    return Planted(spec, file, inside, at[:canaries], at[canaries:], (public, side))


def _array(kind: Kind, name: str, canaries: int, folder: Path, random: np.random.Generator) -> Planted:
    inside = random.random(canaries) < 0.5
    at = np.flatnonzero(inside)
    x = np.zeros((len(at), canaries + canaries // 2), dtype=np.float32)
    x[np.arange(len(at)), at] = 1.0
    file = folder / f"{name}.npz"
    np.savez_compressed(file, x=x, y=np.full(len(at), TARGET))
    spec = _spec(kind, name, "npz", {"kind": "tensor", "array": "x"}, canaries)
    return Planted(spec, file, inside, np.arange(canaries), np.arange(canaries, x.shape[1]))


def _graph(kind: Kind, name: str, canaries: int, folder: Path, random: np.random.Generator) -> Planted:
    """Each canary is a node that two others may read, of which `neighbours` = 1 lets one.

    Each of these two may read another node too, of the opposite number, and has no numbers of its own. Where it reads
    the canary its clipped gradient turns round: 2c. The canary's own gradient, by a node that it alone reads, is c in
    the same direction. All are on the weight of the neighbours' mean at the canary's coordinate. So one reader makes
    3c = C, which is the claim, and two make 5c. Decoys are coordinates whose canary is never there.
    """
    inside = random.random(canaries) < 0.5
    width = canaries + canaries // 2
    rows = []
    for place in range(width):
        nodes = [(f"to{at}", 0.0, "") for at in range(2)]
        nodes += [(f"other{at}", -NEAR, f"to{at}") for at in range(2)] + [("own", FAR, "canary")]
        nodes += [("canary", 3.0 * NEAR, "to0 to1")] if place < canaries and inside[place] else []
        for node, number, neighbours in nodes:
            cells = ["0"] * width
            cells[place] = f"{number:g}"
            links = " ".join(f"{each}.{place}" for each in neighbours.split())
            rows.append(",".join((f"{node}.{place}", *cells, links, f"{TARGET:g}")))
    columns = [f"x{place}" for place in range(width)]
    file = _written(folder / f"{name}.csv", ",".join(("id", *columns, "links", "y")), rows)
    features = {"kind": "nodes", "columns": columns, "neighbours": "links", "keep": 2}
    spec = _spec(kind, name, "csv", features, 5 * width + canaries // 2)
    return Planted(spec, file, inside, width + np.arange(canaries), width + np.arange(canaries, width))


def _scored(kind: Kind, name: str, folder: Path, random: np.random.Generator) -> Planted:
    """For each class the fillers, and a canary with a word, whose weights are noise and whose loss is
    above the bound."""
    inside = random.random(GROUPS) < 0.5
    of_users = kind.layout == "users"
    rows = [f"{'!' * (n + 1)},f{c}-{n},{c}" for c in range(CLASSES) for n in range(FILLERS)]
    for group in np.flatnonzero(inside):
        rows += [f"canary{group},u{group},{group + 1}"] * (TOO_MANY if of_users else 1)
    if not of_users:
        rows = [",".join(row.split(",")[::2]) for row in rows]
    file = _written(folder / f"{name}.csv", "text,user,y" if of_users else "text,y", rows)
    features = {"kind": "hashed_text", "column": "text", "buckets": 1024}
    spec = _spec(kind, name, "csv", features, DECLARED if kind.on == "holdout" else len(rows))
    spec["task"] = {"kind": "classification", "label": "y", "classes": list(range(CLASSES))}
    spec["holdout"] = {"kind": "split", "fraction": HELD_OUT} if kind.on == "holdout" else None
    return Planted(spec, file, inside, np.arange(GROUPS), np.arange(0))


def _spec(kind: Kind, name: str, format_: str, features: dict[str, Any], records: int) -> dict[str, Any]:
    privacy: dict[str, Any] = {"sensitivity": "private", "records": records, "cap": CAP}
    # One admits sampled jobs too; the other is exact.
    exact = kind.of_scores or kind.layout in ("array", "graph")
    privacy |= {"filter": "gdp"} if exact else {"filter": "rdp", "order": ORDER}
    if kind.layout == "users":
        privacy |= {"unit": "user", "user_column": "user", "max_records_per_user": USER_RECORDS}
    task = {"kind": "regression", "label": "y"}
    return {"name": name, "format": format_, "task": task, "features": features, "privacy": privacy}


def _written(path: Path, header: str, rows: list[str]) -> Path:
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def distinct_words(buckets: int) -> Iterator[tuple[str, int]]:
    """Words and their hashed features, without collisions: signed MurmurHash3, without its sign, modulo."""
    taken: set[int] = set()
    for number in count():
        word = f"canary{number}"
        place = bucket_of(word, buckets)
        if place not in taken:
            taken.add(place)
            yield word, place
