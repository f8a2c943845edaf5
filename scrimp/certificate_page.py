"""A certificate as one page for people: who promises what about whose data, in words, and how to check it.

From the certificate's file alone, and from the facts that only the owner knows (scrimp.registry). The page loads
nothing: styles and the QR code are in it.
"""

from __future__ import annotations

import base64
import hashlib
import html
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from scrimp.errors import ScrimpError
from scrimp.explain import (
    blocks_in_words,
    declared_in_words,
    governance,
    loss_of,
    not_covered,
    percent,
    rounded_up,
    thing_of,
)
from scrimp.page_style import STYLE

Json = Mapping[str, Any]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
PRINT_S = 60.0
SMALL_FACTOR = 1000.0
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


@dataclass(frozen=True)
class Signer:
    """Who signed: base64 of the key, if the reader named it, and base64 of the root by which they did."""

    key: str
    checked: bool
    root: str | None = None

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the raw key, in groups of four digits, to compare by eye."""
        digits = hashlib.sha256(base64.b64decode(self.key)).hexdigest()
        return " ".join(digits[at : at + 4] for at in range(0, len(digits), 4))


def page(body: Json, signer: Signer, facts: Json | None = None) -> str:
    """The page as HTML.

    Args:
        body: the certificate's, whose signature holds.
        facts: what the owner says, by the names of scrimp.registry.FACTS; any of them.

    Raises:
        KeyError, TypeError, ValueError: it is no certificate.
    """
    declared, name = facts or {}, str(body["dataset"]["name"])
    title = declared.get("name") or f"A model of {name}"
    parts = [
        _section("Who, and what for", _who(body, declared)),
        _section("The data", _data(body, declared)),
        _section("The promise", _promise(body)),
        _section("When", _period(body)),
        _section("Not covered", _list(not_covered(body))),
        _section("What left the service", _list(_released(body))),
        _section("How to check it", _checking(body, signer)),
    ]
    state = (
        "Its signature was checked with a key that the maker of this page named."
        if signer.checked
        else "Its signer was not checked when this page was made: anybody can sign a document. See “How to check it”."
    )
    return (
        "<!doctype html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}: privacy certificate</title><style>{STYLE}</style></head><body><main>"
        f'<header><p class="kind">Privacy certificate</p><h1>{_text(title)}</h1>'
        f'<p class="{"good" if signer.checked else "warn"}">{state}</p></header>'
        f"{''.join(parts)}"
        f"<footer>Certificate {_text(body['certificate_id'])}, made by Scrimp {_text(body['code_version'])}. "
        "This page is a rendering; the signed file is what counts.</footer></main></body></html>\n"
    )


def _who(body: Json, facts: Json) -> str:
    rows = [
        ("Organisation", ", ".join(facts.get("curators") or ())),
        ("Purpose", facts.get("intended_use")),
        ("What it is", facts.get("description")),
        ("Why this ε", facts.get("justification")),
    ]
    signed = _list(governance(body)) if body.get("governance") else ""
    if any(value for _, value in rows):
        return signed + _facts(rows) + '<p class="small">Said by the owner; the signature does not cover it.</p>'
    return signed or "<p>The certificate does not say: ask the one from whom you have it.</p>"


def _data(body: Json, facts: Json) -> str:
    thing = thing_of(body)
    rows: list[tuple[str, Any]] = [
        ("Data set", f"{body['dataset']['name']} ({body['dataset']['id']})"),
        ("In words", facts.get("data_domain")),
        ("Region", facts.get("region")),
    ]
    if _is_private(body):
        rows.append((f"Declared {thing}s", declared_in_words(body)))
        rows.append(("Blocks that were read", "; ".join(blocks_in_words(body))))
    return _facts(rows)


def _promise(body: Json) -> str:
    if not _is_private(body):
        return "<p>None: the owner declared these data public.</p>"
    epsilon, thing = body["epsilon"], thing_of(body)
    whom = "person (a user with all of their records)" if body["unit"] == "user" else "record"
    lines = [
        f"<p>If any one {whom} had not been in the data, nothing that left the service would be more than "
        f"<strong>{_factor(epsilon['value'])} times</strong> as likely or as unlikely, but for a chance of "
        f"{_chance(epsilon['delta'])}. In the field's terms: "
        f"<strong>ε = {rounded_up(epsilon['value'])}</strong> at δ = {epsilon['delta']:g}.</p>"
    ]
    try:
        rates = loss_of(body).attacks
    except ModuleNotFoundError:
        return lines[0] + "<p>The table of attacks needs numpy: pip install 'scrimp-client[audit]'.</p>"
    rows = "".join(
        f"<tr><td>{100 * alpha:g} %</td><td>{percent(rate)}</td><td>{100 * alpha:g} %</td></tr>"
        for alpha, rate in rates.items()
    )
    return lines[0] + (
        f"<p>An attacker who knows all but one {thing}, and everything about this method, guesses who took part:</p>"
        "<table><thead><tr><th>wrongly accuses, of those who did not</th><th>finds at most, of those who did</th>"
        f"<th>finds by chance alone</th></tr></thead><tbody>{rows}</tbody></table>"
    )


def _period(body: Json) -> str:
    steps = body["steps"]
    cap = body["cap"]
    return _facts(
        [
            ("Issued", str(body["issued_at"])[:10]),
            ("Ran", f"{steps['started']:,} of {steps['planned']:,} steps; {body['status']}"),
            ("Holds", "for good, whatever is done with what left the service"),
            ("All jobs together", f"at most ε = {cap['epsilon']:g} at δ = {cap['delta']:g}" if cap else None),
        ]
    )


def _released(body: Json) -> list[str]:
    """The weights, and each score's name with its noise; the certificate lists them by step."""
    released, runs = body["released"], (body.get("study") or {}).get("runs", [])
    lines = [f"the model’s weights, SHA-256 {body['model_sha256']}"] if released["weights"] else []
    numbers = [*released["metrics"], *(each for run in runs for each in run["released"]["metrics"])]
    noises = {str(each["name"]): each["std"] for each in numbers}
    if noises:
        listed = ", ".join(f"{name} (± {std:.2g})" if std else name for name, std in noises.items())
        trials = f", of {len(runs)} trials" if runs else ""
        lines.append(f"{len(numbers):,} numbers{trials}, with the standard deviation of their noise: {listed}")
    return lines or ["nothing: no weights and no scores"]


def _checking(body: Json, signer: Signer) -> str:
    wanted, options = "owner’s public key", f"--public-key {signer.key if signer.checked else 'KEY'}"
    if signer.root is not None:
        wanted = "owner’s root key and the newest history of the signing keys"
        options = f"--root {signer.root} --history history.json"
    commands = f"pip install 'scrimp-client[audit]'\nscrimp audit-bundle certificate.json {options}"
    text = f"scrimp certificate {body['certificate_id']}\nkey SHA-256 {signer.fingerprint.replace(' ', '')}"
    code = _code(text)
    figure = (
        f'<figure class="code">{code}<figcaption>The fingerprint and the certificate’s number.</figcaption></figure>'
        if code
        else ""
    )
    return (
        f"<p>Get the {wanted} from the owner, not from this page or the certificate: a forger’s page shows a "
        "forger’s key. Then run, offline:</p>"
        f"<pre><code>{_text(commands)}</code></pre>"
        f"{figure}<p>Fingerprint of the key that signed (SHA-256 of the raw Ed25519 key):</p>"
        f'<p class="fingerprint">{signer.fingerprint}</p>'
    )


def _is_private(body: Json) -> bool:
    return body["epsilon"] is not None


def _factor(epsilon: float) -> str:
    """e^ε, rounded up."""
    if epsilon > math.log(1e15):
        return "a million billion"
    factor = math.exp(epsilon)
    return f"{math.ceil(factor * 100 - 1e-6) / 100:.2f}" if factor < SMALL_FACTOR else f"{math.ceil(factor):,}"


def _chance(delta: float) -> str:
    return f"1 in {math.floor((1 + 1e-9) / delta):,}" if delta > 0 else "0"


def _code(text: str) -> str:
    """A QR code as inline SVG; empty if segno is not installed."""
    try:
        segno = import_module("segno")
    except ImportError:
        return ""
    drawing: str = segno.make(text, error="m").svg_inline(border=4, light="#fff", title="QR code", omitsize=True)
    return drawing


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{content}</section>"


def _facts(rows: Iterable[tuple[str, Any]]) -> str:
    return f"<dl>{''.join(f'<dt>{name}</dt><dd>{_text(value)}</dd>' for name, value in rows if value)}</dl>"


def _list(lines: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{_text(line)}</li>' for line in lines)}</ul>"


def _text(value: Any) -> str:
    return html.escape(str(value))


def print_pdf(content: str, to: Path) -> None:
    """Prints a page as PDF by a Chromium of this machine, which reads it from a file and calls no network.

    Raises:
        ScrimpError: there is none, or it fails.
    """
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise ScrimpError("--pdf needs Chromium (apt install chromium); or write --html and print it from any browser")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "page.html"
        source.write_text(content, encoding="utf-8")
        options = ["--headless", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
        options += ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium refuses a root user otherwise
        target = [f"--user-data-dir={folder}/profile", "--no-pdf-header-footer", f"--print-to-pdf={to.resolve()}"]
        try:
            result = subprocess.run(
                [browser, *options, *target, source.as_uri()], capture_output=True, timeout=PRINT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise ScrimpError(
                f"{browser} did not print {to} within {PRINT_S:g} s: print the HTML page instead"
            ) from None
    if result.returncode != 0 or not to.is_file():
        raise ScrimpError(f"{browser} could not print {to}: {result.stderr.decode(errors='replace').strip()[-300:]}")
