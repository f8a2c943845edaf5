"""A certificate as a record of the public registry of DP deployments, with what only the data's owner knows.

The registry (https://registry.opendp.org, tier 3) asks 24 questions. The certificate answers most of them; the owner's
facts, a TOML file, answer the others. Nothing here is computed from data, and nothing is asked of the service.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from scrimp.explain import explained

Json = Mapping[str, Any]

# What the owner says, with the question that the template shows.
FACTS = {
    "name": "What is the model called?",
    "curators": "Who publishes it? A list of names.",
    "intended_use": "What is it for?",
    "description": "What is it, in a sentence or two?",
    "region": "Which region are the data from?",
    "sector": "Which sector publishes it: Health, Finance, Technology, Government …?",
    "data_domain": "Which data sets could there have been: who is in them, and what is known of each?",
    "preprocessing": "What was looked at or done before training, and was its privacy loss counted?",
    "justification": "Why this ε, this unit and this model?",
    "authors": "Who writes this record? A list of names.",
}
LISTS = ("curators", "authors")


def template() -> str:
    """A TOML file to fill in."""
    empty = {name: "[]" if name in LISTS else '""' for name in FACTS}
    lines = [f"# {question}\n{name} = {empty[name]}" for name, question in FACTS.items()]
    return "\n\n".join(lines) + "\n"


def missing(facts: Json) -> list[str]:
    """What the facts leave open, or say in another form; empty if they are whole."""
    fits = {
        name: isinstance(value := facts.get(name), list) and value and all(isinstance(each, str) for each in value)
        if name in LISTS
        else isinstance(value := facts.get(name), str) and value.strip() != ""
        for name in FACTS
    }
    return [name for name, is_there in fits.items() if not is_there] + sorted(set(facts) - set(FACTS))


def record(body: Json, facts: Json) -> dict[str, Any]:
    """The registry's record.

    Args:
        body: the certificate's; of a job or of a study.
        facts: what `missing` finds whole.

    Raises:
        KeyError, TypeError, ValueError: it is no certificate.
    """
    fields = dict(explained(body))
    issued = str(body["issued_at"])[:10]

    def text(*sections: str) -> str:
        return "\n".join(f"- {line}" for section in sections for line in fields[section])

    return {
        "url_slug": f"{facts['name']}-{facts['curators'][0]}-{issued[:4]}".lower().replace(" ", "-"),
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "product": {
                "name": facts["name"],
                "data_curators": facts["curators"],
                "intended_use": facts["intended_use"],
                "data_product_type": "Machine learning model",
                "data_product_region": facts["region"],
                "description": facts["description"],
                "publication_date": issued,
                "data_product_sector": facts["sector"],
            },
            "dp_flavor": {
                "name": "Approximate DP",
                "data_domain": facts["data_domain"],
                "unprotected_quantities": text("Not covered"),
            },
            "privacy_loss": {
                "privacy_unit": "User" if body["unit"] == "user" else "Record",
                "privacy_unit_description": text("Unit of privacy"),
                "privacy_parameters": {"epsilon": body["epsilon"]["value"], "delta": body["epsilon"]["delta"]},
                "privacy_parameters_description": text("Privacy parameters", "How to read it"),
            },
            "model": {
                "model_name": "Central",
                "actors": text("Trust model"),
                "release_type": "Many releases",
                "release_type_description": text("What left the service"),
                "data_source_type": "Static",
                "access_type": "Interactive",
                "access_type_description": text("Composition"),
            },
            "accounting": {
                "post_processing": "Predictions, model cards and renderings of the released model cost nothing more.",
                "composition": text("Composition"),
            },
            "implementation": {
                "pre_processing_eda_hyperparameter_tuning": facts["preprocessing"],
                "mechanisms": text("Mechanism", "Numbers and randomness"),
                "justification": facts["justification"],
            },
            "resources": {
                "sources": f"Certificate {body['certificate_id']}, signed by Scrimp {body['code_version']}.",
                "registry_authors": facts["authors"],
            },
        },
    }


def as_yaml(value: Json, indent: int = 0) -> str:
    """Nested mappings of texts, numbers and lists of texts as YAML; texts of several lines as blocks.

    >>> print(as_yaml({"a": {"b": 1, "c": "x\\ny", "d": ["e"]}}), end="")
    a:
      b: 1
      c: |-
        x
        y
      d:
        - "e"
    """
    pad, lines = " " * indent, []
    for name, item in value.items():
        if isinstance(item, Mapping):
            lines.append(f"{pad}{name}:\n{as_yaml(item, indent + 2)}")
        elif isinstance(item, list):
            lines.append("".join([f"{pad}{name}:\n", *(f"{pad}  - {_scalar(item)}\n" for item in item)]))
        elif isinstance(item, str) and "\n" in item:
            lines.append("".join([f"{pad}{name}: |-\n", *(f"{pad}  {line}\n" for line in item.split("\n"))]))
        else:
            lines.append(f"{pad}{name}: {_scalar(item)}\n")
    return "".join(lines)


def _scalar(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    # Readers of YAML 1.1 take 1e-05 for a text.
    return text.replace("e", ".0e") if isinstance(value, float) and "e" in text and "." not in text else text
