"""The declared table of the tests on statistics and on synthetic rows."""

from __future__ import annotations

from typing import Any

TABLE: dict[str, Any] = {
    "format": "csv",
    "task": {"kind": "classification", "label": "ill", "classes": [0, 1]},
    "features": {
        "kind": "table",
        "columns": [
            {"kind": "number", "name": "age", "range": [0, 100]},
            {"kind": "number", "name": "bmi", "range": [10, 60], "missing": "middle"},
            {"kind": "category", "name": "sex", "values": ["f", "m"]},
        ],
    },
}
