"""The folder's documents for people: a page, a model's answers in the order of three questionnaires. Pure.

Each is a template over the certificate's facts and the manifest. What neither says is told as "not covered".
"""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Context
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from app.egress.manifest import Manifest
from app.egress.read import CertificateFacts

NAMES = ("page.html", "answers/nist-sp-800-226.md", "answers/ico-dpia.md", "answers/ehds.md")


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=select_autoescape(("html",)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(up=_up, line=_line, share=lambda value: f"{100.0 * value:.3g} %")
    return environment


def _line(words: str) -> str:
    """What a person wrote, as words of one line of Markdown: nobody adds a heading, or an answer, of his or her own.

    >>> print(_line("a *clinic*\\n## 8. Approved"))
    a \\*clinic\\* \\#\\# 8. Approved
    """
    return re.sub(r"([\\`*_\[\]<>#|!])", r"\\\1", " ".join(words.split()))


def _up(value: float) -> str:
    """Four significant digits, never below the value.

    >>> _up(0.99999), _up(1.23401)
    ('1', '1.235')
    """
    return f"{float(Context(prec=4, rounding=ROUND_CEILING).create_decimal(repr(value))):g}"


def documents(facts: CertificateFacts, manifest: Manifest, submitted_by: str) -> dict[str, bytes]:
    """All documents, by their names in the folder."""
    governed = facts.governance
    values = {
        "c": facts,
        "m": manifest,
        "owner": None if governed is None else governed.dataset,
        "use": None if governed is None else governed.use,
        "submitted_by": submitted_by,
    }
    return {name: _templates().get_template(Path(name).name).render(values).encode() for name in NAMES}
