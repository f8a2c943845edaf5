"""The annex of a data protection impact assessment (DPIA), from an egress: what is answered, and what a person adds.

The answers are the signed folder's own, word by word (`answers/ico-dpia.md`). What they mark as "Not covered" is listed
once more, as a form.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scrimp.egress import MANIFEST, Examined
from scrimp.models import Safeguard

ANSWERS = "answers/ico-dpia.md"
OPEN = "**Not covered**"
# Where a sentence begins: after the end of another one, or of a list's mark.
SENTENCE = re.compile(r"(?<=[.!?])\s+|^\* ", re.MULTILINE)


@dataclass(frozen=True)
class Missing:
    """What the folder does not say: the DPIA's step, the subject ("" is the whole step), and why, if it is told."""

    step: str
    subject: str
    why: str


def missing(answers: str) -> list[Missing]:
    """What answers leave open, in their order.

    >>> missing("## 3. Consult\\n\\n**Not covered**.\\n\\n## 4. Assess\\n\\nBasis: **Not covered**: none. Held.\\n")
    [Missing(step='3. Consult', subject='', why=''), Missing(step='4. Assess', subject='Basis', why='none')]
    """
    return list(_missing(answers))


def _missing(answers: str) -> Iterator[Missing]:
    for section in re.split(r"^## ", answers, flags=re.MULTILINE)[1:]:
        step, _, text = section.partition("\n")
        for sentence in SENTENCE.split(text):
            text_before, mark, text_after = sentence.partition(OPEN)
            if mark:
                subject = text_before.replace("**", "").strip().removesuffix(":")
                yield Missing(step.strip(), subject, text_after.strip().removeprefix(":").strip().removesuffix("."))


def annex(folder: Path, examined: Examined, safeguards: Sequence[Safeguard] = ()) -> str:
    """The annex, in Markdown.

    Args:
        examined: the folder as `scrimp.egress.examine` found it.
        safeguards: of the service that made it, as it states them now: nobody signed them.

    Raises:
        ValueError: it does not hold: what nobody signed is no annex.
    """
    if not examined.holds:
        raise ValueError("; ".join(examined.faults))
    answers = answers_of(folder)
    m = examined.manifest
    digest = hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()
    signer = "a key that the reader named" if examined.signer_checked else "**a key that nobody checked**"
    parts = (
        "# Annex to a data protection impact assessment",
        f"From egress {m['egress']} of job {m['job']}, made at {m['made_at']}. Its manifest has the SHA-256 `{digest}` "
        f"and is signed by {signer}. All files are those that were signed.",
        answers.partition("\n")[2].strip(),
        *stated(safeguards),
        "## To be added by a person",
        _form(missing(answers)),
    )
    return "\n\n".join(parts) + "\n"


def stated(safeguards: Sequence[Safeguard]) -> Iterator[str]:
    """What protects a service, as parts of a Markdown page; nothing where it was not asked."""
    if not safeguards:
        return
    yield "## Safeguards of the service"
    yield "As its settings say them on the day of this page. They are not signed."
    lines = (f"| {each.subject} | {'yes' if each.in_force else '**no**'} | {each.says} |" for each in safeguards)
    yield "\n".join(("| safeguard | in force | the service says |", "|---|---|---|", *lines))


def answers_of(folder: Path) -> str:
    """The folder's answers in the order of the ICO's DPIA steps."""
    return (folder / ANSWERS).read_text(encoding="utf-8")


def _form(items: Sequence[Missing]) -> str:
    lines = [f"* [ ] {each.step}{_about(each)}" for each in items]
    return "\n".join(lines) or "Nothing: the folder answers every step."


def _about(item: Missing) -> str:
    reason = f" ({item.why})" if item.why else ""
    return f": {item.subject}{reason}" if item.subject else reason
