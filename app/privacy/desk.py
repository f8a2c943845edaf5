"""What the pricing process answers to: a function's name and its arguments, JSON in and out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.contracts.dataset_spec import TypicalJob
from app.privacy import filters, pricing, study, sweep

Json = dict[str, Any]


def answer(request: Json) -> Json:
    """Runs `request["function"]` on `request["arguments"]`.

    Raises:
        ServiceError: what the function refuses.
    """
    functions: dict[str, Callable[[Json], Json]] = {
        "price": pricing.price,
        "largest_that_fits": pricing.largest_that_fits,
        "price_study": study.price,
        "largest_study_that_fits": study.largest_that_fits,
        "final_run": sweep.final_run,
        "compare": pricing.compare,
        "choose_order": choose_order,
        "warm": warm,
    }
    return functions[request["function"]](request["arguments"])


def choose_order(request: Json) -> Json:
    """α* of an `rdp` filter, for `cap_epsilon`, `cap_delta`, `records` and the `typical_job` (or null)."""
    typical = request["typical_job"]
    job = TypicalJob.model_validate(typical) if typical is not None else None
    order = filters.choose_order(request["cap_epsilon"], request["cap_delta"], request["records"], job)
    return {"order": order}


def warm(_request: Json) -> Json:
    """Prices one plan of each kind, so that the libraries are loaded before somebody waits for them."""
    training = {"max_grad_norm": 1.0, "clipping": "flat", "steps": 10}
    request: Json = {"target_epsilon": None, "noise_multiplier": 2.0, "target_delta": 1e-5, "releases": []}
    full = {"sampling": "full_batch", "sample_rate": 1.0, "expected_batch_size": 100}
    part = {"sampling": "poisson", "sample_rate": 0.01, "expected_batch_size": 1}
    pricing.price(request | {"training": training | full, "filter": {"kind": "gdp", "order": None}})
    pricing.price(request | {"training": training | part, "filter": {"kind": "rdp", "order": 8.0}})
    return {}
