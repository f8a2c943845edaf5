"""The forms that a message takes, by its address' scheme.

https://…          JSON, signed
slack+https://…    {"text": …}, as incoming webhooks of Slack and of programs like it take it; also signed
mailto:…           an e-mail, over the operator's SMTP server
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any, Literal

Form = Literal["json", "slack", "mail"]
SLACK, MAIL = "slack+", "mailto:"


def form_of(address: str) -> tuple[Form, str]:
    """An address' form, and the address without its mark.

    >>> form_of("slack+https://hooks.example.org/T0/B0")
    ('slack', 'https://hooks.example.org/T0/B0')
    """
    if address.startswith(MAIL):
        return "mail", address.removeprefix(MAIL)
    if address.startswith(SLACK):
        return "slack", address.removeprefix(SLACK)
    return "json", address


def slack_text(payload: Mapping[str, Any]) -> dict[str, str]:
    """The body that Slack takes. Escaped: a name with `<!channel>` in it calls nobody."""
    return {"text": escape(text_of(payload), quote=False)}


def text_of(payload: Mapping[str, Any]) -> str:
    """A message in words, of one line: what its JSON says, and no more."""
    kind, data = payload["type"], payload["data"]
    if kind == "budget.threshold":
        owner = "the cap" if data["budget"] is None else f"the budget {data['budget']}"
        place = data["name"] if data["block"] is None else f"{data['name']}, block {data['block']}"
        return (
            f"{data['threshold']} % of {owner} of {place} is reached: {100 * data['share']:.1f} % of ε = "
            f"{data['epsilon']:g} (δ = {data['delta']:g}) is spent or held, on the {data['account']} account."
        )
    facts = ", ".join(f"{name} {value}" for name, value in data.items() if name != "checkpoint" and value is not None)
    return f"{kind}: {facts}"
