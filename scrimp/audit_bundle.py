"""Certificates and delivered files together: verified, recomputed and explained. From the files alone.

A certificate, or its envelope, is checked for its signature and proofs, its ε is recomputed, and it is said in words.
Any other file must be one that a certificate here names by its SHA-256.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Iterable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from scrimp.explain import Section, explained
from scrimp.key_history import Doubt, Trust
from scrimp.recompute import body_of, recompute
from scrimp.signatures import problem_of
from scrimp.transparency import NotProven

GRAPH = "the graph at whose weights training began"
CHUNK = 1 << 20


class Verdict(IntEnum):
    """What a check says, as an exit status."""

    HOLDS = 0
    FAULT = 1
    UNKNOWN = 2  # the signer was not checked, or a file cannot be read

    @staticmethod
    def worst(verdicts: Iterable[Verdict]) -> Verdict:
        """A fault outweighs what is unknown."""
        return max(
            verdicts,
            key=lambda verdict: (verdict is not Verdict.HOLDS, verdict is Verdict.FAULT),
            default=Verdict.HOLDS,
        )


@dataclass(frozen=True)
class Finding:
    """What was found of one file.

    Attributes:
        checks: what was checked, its verdict, and a sentence.
        printed: what the recomputation printed.
        sections: the certificate in words; none of another file.
        subjects: SHA-256 of the files that the certificate names.
    """

    file: str
    checks: list[tuple[str, Verdict, str]]
    printed: list[str] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    subjects: dict[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """The worst of its checks."""
        return Verdict.worst(verdict for _, verdict, _ in self.checks)


def examine(files: Iterable[Path], trust: Trust) -> list[Finding]:
    """Examines certificates and delivered files, in their order; no signer where the reader trusts no key."""
    documents = {path: _certificate(path) for path in files}
    findings = {path: _examined(path, document, trust) for path, document in documents.items() if document is not None}
    subjects = {digest: name for each in findings.values() for digest, name in each.subjects.items()}
    return [findings.get(path) or delivered(path, subjects) for path in documents]


def _certificate(path: Path) -> dict[str, Any] | None:
    """A certificate or an envelope; None for any other file."""
    try:
        body = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    shapes = ({"certificate", "signature", "public_key"}, {"payloadType", "payload", "signatures"})
    return body if isinstance(body, dict) and any(shape <= body.keys() for shape in shapes) else None


def _examined(path: Path, document: Mapping[str, Any], trust: Trust) -> Finding:
    checks = [("signature", *_signature(document, trust))]
    try:
        public_key = trust.key_for(document)
    except NotProven:  # the first check says so
        public_key = None
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        status = Verdict(recompute(dict(document), public_key, path.name))
    lines = output.getvalue().splitlines()
    epsilon = next((line.removeprefix("printed").strip() for line in lines if line.startswith("printed")), "")
    faults = [line.removeprefix("FAULT").strip() for line in lines if line.startswith("FAULT")]
    detail = "; ".join(faults) or epsilon or (lines[-1] if lines else "")
    # The signer is the first check's matter: without a key the numbers may hold all the same.
    checks.append(("numbers", status if faults or not epsilon else Verdict.HOLDS, detail))
    try:
        body = body_of(dict(document))
        return Finding(str(path), checks, lines, explained(body), _subjects(document, body))
    except (KeyError, TypeError, ValueError) as error:
        checks.append(("words", Verdict.UNKNOWN, f"this version cannot read it: {error!r}"))
        return Finding(str(path), checks, lines)


def _signature(document: Mapping[str, Any], trust: Trust) -> tuple[Verdict, str]:
    try:
        public_key = trust.key_for(document)
    except NotProven as error:
        return Verdict.FAULT, str(error)
    if public_key is None and "payloadType" in document:
        return Verdict.UNKNOWN, "not checked: an envelope holds no public key; give --public-key, from the owner"
    problem = problem_of(document, public_key)
    if problem is not None:
        return Verdict.FAULT, problem
    if public_key is None:
        return Verdict.UNKNOWN, "intact; signer not checked: give --public-key, from the service's owner"
    problem = trust.problem_with_certificate(public_key, document)
    if problem is not None:
        return Verdict.UNKNOWN if isinstance(problem, Doubt) else Verdict.FAULT, problem
    return Verdict.HOLDS, "the signature and all proofs hold"


def _subjects(document: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, str]:
    """SHA-256 → name of the delivered files: the statement's, or of older certificates the model alone. And of the
    graph that the submitter sent."""
    graph = {body["graph_sha256"]: GRAPH} if body.get("graph_sha256") else {}
    envelope = document if "payload" in document else document.get("envelope")
    if envelope is None:
        return graph | ({body["model_sha256"]: "the model"} if body["model_sha256"] else {})
    statement = json.loads(base64.b64decode(envelope["payload"]))
    subjects = [each for each in statement["subject"] if "sha256" in each["digest"]]
    return graph | {each["digest"]["sha256"]: each["name"] for each in subjects}


def delivered(path: Path, subjects: Mapping[str, str]) -> Finding:
    """Says which of the certificates' files, SHA-256 → name, a file is."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as opened:
            while chunk := opened.read(CHUNK):
                digest.update(chunk)
    except OSError as error:
        return Finding(str(path), [("file", Verdict.UNKNOWN, f"cannot be read: {error.strerror}")])
    name = subjects.get(digest.hexdigest())
    if name is None:
        return Finding(str(path), [("file", Verdict.FAULT, "no certificate here names this file's SHA-256")])
    return Finding(str(path), [("file", Verdict.HOLDS, f"is {name}, which a certificate here names")])
