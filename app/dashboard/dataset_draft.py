"""A data set's declaration in the making: its form, and where to begin."""

from __future__ import annotations

from functools import cache

from app.dashboard.draft import Draft, Layout
from app.dashboard.fields import SchemaForm
from core.contracts.dataset_spec import DatasetSpec
from core.contracts.filter_names import PLANS

# In the order in which an owner decides. `path` names a file on the server: an upload has none.
LAYOUT = Layout(
    {
        "What it is": ("name", "format", "csv", "wrong_rows"),
        "What is predicted": ("task",),
        "From what": ("features",),
        "What is protected": ("privacy",),
        "Hold-out": ("holdout",),
        "Who answers for it": ("governance",),
    },
    frozenset(
        (
            *("/name", "/format", "/task/kind", "/features/kind", "/privacy/sensitivity", "/privacy/unit"),
            *("/privacy/records", "/privacy/cap", "/privacy/cap/epsilon", "/privacy/plan", "/privacy/filter"),
            *("/privacy/user_column", "/privacy/max_records_per_user", "/holdout/kind", "/holdout/fraction"),
        )
    ),
)


@cache
def form() -> SchemaForm:
    """The form of a DatasetSpec."""
    return SchemaForm(DatasetSpec.model_json_schema())


def planned(draft: Draft) -> Draft:
    """The draft without a filter beside its plan, which chooses one."""
    privacy = draft.document.get("privacy")
    if not isinstance(privacy, dict) or privacy.get("plan") not in PLANS or "filter" not in privacy or draft.errors:
        return draft
    members = {name: value for name, value in privacy.items() if name != "filter"}
    return Draft(draft.document | {"privacy": members})


def first_declaration() -> Draft:
    """A declaration to begin with, as `scrimp datasets init` begins it. The page fills in what a file's head shows."""
    return Draft(
        {
            "name": "",
            "format": "csv",
            "task": {"kind": "classification"},
            "features": {"kind": "columns"},
            "privacy": {"sensitivity": "private", "cap": {"epsilon": 4.0}, "filter": "gdp"},
            "holdout": {"kind": "split", "fraction": 0.2},
        }
    )
