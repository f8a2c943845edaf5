"""What a certificate means, signed with it: who sees what, what is assumed, what composes, what else is lost.

In the words that a data protection officer reads. A holder of the file takes them from no other tool, and an earlier
certificate, which lacks them, is put into words by `scrimp certificates explain`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import Field

from core.contracts.base import Document, is_none
from core.privacy.numerics import NumericsReport
from core.privacy.profile import Profile


class ThreatModel(Document):
    """Who is trusted with what.

    Attributes:
        trust: "central": the service holds the records, and adds the noise.
        sees: each party, and what it sees.
        not_covered: what the guarantee is not about.
    """

    trust: Literal["central"] = "central"
    sees: tuple[str, ...]
    not_covered: tuple[str, ...]


class WorkerEnvironment(Document):
    """Where a job, or some trials of a study, ran.

    Attributes:
        packages: SHA-256 (hex) of the lines NAME==VERSION of all installed distributions, sorted.
        code: SHA-256 (hex) of the service's own sources there.
    """

    device: str
    torch: str
    kernels: str | None = Field(default=None, exclude_if=is_none)
    packages: str | None = Field(default=None, exclude_if=is_none)
    code: str | None = Field(default=None, exclude_if=is_none)


class Meaning(Document):
    """The members of a body that say what it means; bodies before version 3 have none of them.

    Attributes:
        composition: what holds for all jobs on the data set together.
        environment: each different worker that trained.
    """

    threat_model: ThreatModel
    assumptions: tuple[str, ...]
    composition: tuple[str, ...]
    profile: Profile
    environment: tuple[WorkerEnvironment, ...]


def threat_model(unit: str, *, reach: int = 1) -> ThreatModel:
    """Says who sees what.

    Args:
        reach: above 1 the model read records for other records' gradients: nodes of a graph.
    """
    not_covered = [
        "how long the job ran: its duration depends on the true number of records",
        "what was declared public: counts, classes, column names, public hold-outs, pretrained parts",
        "what a model's reader infers about people in general: that would be learned without any one of them",
    ]
    if unit == "example":
        not_covered.append("several records of one person: each is protected by itself")
    if reach > 1:
        not_covered.append(
            "that others list a node: ε protects a node's own row, with its label, columns and list; a list that "
            "names it is another node's"
        )
    return ThreatModel(
        sees=(
            "the service and its operator: the records",
            "the data set's owner: the records, and the errors of reading them",
            "everybody else: what left the service (`released`), which tells no more than ε and δ allow",
        ),
        not_covered=tuple(not_covered),
    )


def assumptions(unit: str, records_per_unit: int, public_side: str | None) -> tuple[str, ...]:
    """Says what must be true for ε to hold.

    Args:
        records_per_unit: k.
        public_side: the name of the data set whose gradients were used without noise.
    """
    lines = [
        "the service ran what is printed here; the signature says who vouches for that",
        "the keys of noise, sampling and order are secret, and each is used once",
        "what was declared public is public",
    ]
    if unit == "user":
        lines.append(
            f"records of one person have one id, and at most {records_per_unit} of them are used, in all blocks of the "
            "data set together"
        )
    if public_side is not None:
        lines.append(f"the data set {public_side} was used without noise: its owner declared it public")
    return tuple(lines)


def composition(filter_kind: str, ledger: str, blocks: Sequence[str] = ()) -> tuple[str, ...]:
    """Says what holds for all jobs together: on the ledgers that this one paid on, whatever was appended since.

    Args:
        ledger: the id of the one ledger.
        blocks: the labels of the blocks that the job names; each has a ledger.
    """
    subject = f"all jobs on the ledger {ledger}"
    if blocks:
        subject = f"for each of the blocks {', '.join(blocks)}: all jobs on its ledger"
    name = {"rdp": "a Rényi filter", "gdp": "a Gaussian-DP filter"}[filter_kind]
    return (
        f"{subject} together stay within its cap ({name}), also if each is chosen after the results of "
        "others, and if analysts collude",
        "the data set's owner may raise the cap: its ledger has the largest one",
    )


def environment(reports: Iterable[NumericsReport | None]) -> tuple[WorkerEnvironment, ...]:
    """Names each different worker once, in the order of the runs."""
    workers = (
        WorkerEnvironment(
            device=each.device_name, torch=each.torch, kernels=each.kernels, packages=each.packages, code=each.code
        )
        for each in reports
        if each is not None
    )
    return tuple(dict.fromkeys(workers))
