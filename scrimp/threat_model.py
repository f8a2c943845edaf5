"""The threat model on one page: what is promised, to whom, and what this service's own settings do for it.

docs/threat-model.md is `TEXT`: tests/cli compares them.
"""

from __future__ import annotations

from collections.abc import Sequence

from scrimp.dpia import stated
from scrimp.models import Safeguard

WHO = (  # who, what they see, what they are trusted with
    ("the operator (hosts, database, secrets)", "records, noise secret, signing key", "everything"),
    (
        "machines of a Ray cluster",
        "as a worker: their jobs' records and keys ([decision 70](decisions/0070-ranks-on-several-machines.md))",
        "everything that their jobs read; the cluster is Scrimp's alone",
    ),
    (
        "a data set's owner",
        "its records, reading errors, its ledger",
        "true declarations: unit, public counts, what is public",
    ),
    (
        "keys with a grant",
        "what was released and paid for; ledger; certificates",
        "nothing; they may collude, and choose each job after all results",
    ),
    ("a recipient of an egress or a certificate", "its files", "nothing"),
    ("a witness", "checkpoints: sizes and hashes", "not to sign two histories"),
)
ROWS = "\n".join(f"| {' | '.join(each)} |" for each in WHO)
TEXT = f"""\
# Threat model

Central differential privacy: the service is trusted with the records, everybody else with nothing.

| who | sees | is trusted with |
|---|---|---|
{ROWS}

**Promised.** Everything that left the service about a data set is (ε, δ)-differentially private for one unit, within
its cap, for ever, whoever shares what. No crash, race, restart or restored backup spends more than is recorded. A
certificate says what ran; a changed ledger, certificate or egress is found by its reader, offline.

**Held by.** An append-only ledger with conditional updates and checks in the database; steps recorded before they run;
keyed noise that never covers two gradients; training in a process without network, files and secrets; signed
checkpoints outside the database; one exit for numbers.

**Not covered.**

* A malicious operator: the signature says who vouches. Audits with canaries and replays make it harder.
* Durations: they depend on the true number of records.
* What is declared public, and wrong declarations: a unit that is a record protects no person with several.
* The same people in other data sets, or in two registrations of different owners.
* What a model says about people in general.
* Two persons who are one: the service believes the owner about who holds which key.
"""


def page(safeguards: Sequence[Safeguard]) -> str:
    """The page of one service, in Markdown.

    Args:
        safeguards: as the service states them now: nobody signed them.
    """
    return "\n\n".join((TEXT.rstrip(), *stated(safeguards))) + "\n"
