"""The kinds of job: what differs between them before any number is computed.

A new kind needs its name and its rule here, then one case in each of four matches, which mypy names: what it releases
(core.privacy.derive), its rules and its `Work` (app.admission.job_rules, app.admission.work), and its attempt
(worker.attempt.child).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, assert_never, get_args

JobKind = Literal["training", "statistics", "synthetic"]
KINDS: tuple[JobKind, ...] = get_args(JobKind)
ANSWERS_FILE = "answers.json"  # what a statistics job delivers; ANSWERS_TABLE holds the same as rows
ANSWERS_TABLE = "answers.csv"
ROWS_FILE = "rows.csv"  # what a synthetic job delivers; ROWS_TABLE holds the same rows, with types
ROWS_TABLE = "rows.parquet"
UTILITY_FILE = "utility.json"  # how near they are to the noisy tables


@dataclass(frozen=True)
class KindRule:
    """What differs between kinds.

    Attributes:
        members: the members of a JobSpec that it may have, and that not every kind has.
        needs: one of them that it cannot do without, with an example in JSON; None: it has defaults for all.
        trains: it has a model, steps and scores, and admission chooses what it leaves out. The others are one release.
        delivers: the file that a finished job delivers; None: the weights of its model.
        certified: the member of a certificate with that file's SHA-256.
        released: the member of a certificate's `released` that tells whether the file left.
    """

    members: frozenset[str]
    needs: tuple[str, str] | None
    trains: bool
    delivers: str | None
    certified: Literal["model_sha256", "answers_sha256", "rows_sha256"]
    released: Literal["weights", "answers", "rows"]

    @cached_property
    def foreign(self) -> tuple[str, ...]:
        """The members that only other kinds have, by name."""
        every = frozenset[str]().union(*(rule_of(each).members for each in KINDS))
        return tuple(sorted(every - self.members))


def rule_of(kind: JobKind) -> KindRule:
    """The rule of a kind.

    >>> rule_of("statistics").trains, rule_of("training").delivers
    (False, None)
    """
    match kind:
        case "training":
            return _TRAINING
        case "statistics":
            return _STATISTICS
        case "synthetic":
            return _SYNTHETIC
        case _:
            assert_never(kind)


_TRAINING = KindRule(
    members=frozenset(
        (
            *("model", "optimizer", "clipping", "sampling", "noise", "class_weights", "augmentation", "length"),
            *("evaluation", "seed", "hpo", "audit"),
        )
    ),
    needs=None,
    trains=True,
    delivers=None,
    certified="model_sha256",
    released="weights",
)
_STATISTICS = KindRule(
    members=frozenset(("queries", "where")),
    needs=("queries", '[{"kind": "count"}]'),
    trains=False,
    delivers=ANSWERS_FILE,
    certified="answers_sha256",
    released="answers",
)
_SYNTHETIC = KindRule(
    members=frozenset(("columns", "target", "rows", "method", "bins")),
    needs=None,
    trains=False,
    delivers=ROWS_FILE,
    certified="rows_sha256",
    released="rows",
)


def kinds_with(member: str) -> tuple[JobKind, ...]:
    """The kinds that may have a member.

    >>> kinds_with("queries")
    ('statistics',)
    """
    return tuple(each for each in KINDS if member in rule_of(each).members)
