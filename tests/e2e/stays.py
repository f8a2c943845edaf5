"""Stays in a hospital: a ward, an age, and whether the patient came back, which depends on the ward alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def declaration(name: str, risks: Mapping[str, float], records: int, epsilon: float, **age: Any) -> dict[str, Any]:
    """The declaration of private stays.

    Args:
        risks: by ward how likely a patient comes back.
        age: further members of the column.
    """
    return {
        "name": name,
        "format": "csv",
        "task": {"kind": "classification", "label": "back", "classes": ["no", "yes"]},
        "features": {
            "kind": "table",
            "columns": [
                {"kind": "category", "name": "ward", "values": list(risks)},
                {"kind": "number", "name": "age", "range": [0, 100], **age},
            ],
        },
        "privacy": {
            "sensitivity": "private",
            "unit": "example",
            "records": records,
            "cap": {"epsilon": epsilon, "delta": 1e-5},
        },
    }


def write(path: Path, risks: Mapping[str, float], records: int, seed: Any) -> Path:
    """Writes so many stays to a file."""
    draw = np.random.default_rng(seed)
    wards, ages = draw.choice(list(risks), records), draw.integers(0, 100, records)
    back = draw.random(records) < np.array([risks[ward] for ward in wards])
    rows = zip(wards, ages, np.where(back, "yes", "no"), strict=True)
    path.write_text("ward,age,back\n" + "".join(f"{ward},{age},{yes}\n" for ward, age, yes in rows))
    return path
