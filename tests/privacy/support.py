"""What the tests of accounting share."""

from __future__ import annotations

from typing import Any

from core.privacy.events import SelfComposed, noisy_sums
from core.privacy.price_requests import FitRequest, PlanRequest
from core.privacy.prices import Units

DELTA = 1e-5
PAPER_RATE, PAPER_STEPS = 512 / 50_000, 1954  # n = 50,000, batch 512, 20 epochs


def paper_jobs(sigma: float, count: int = 1) -> SelfComposed:
    return noisy_sums(PAPER_RATE, sigma, PAPER_STEPS * count)


def request(
    sampling: str,
    batch: int,
    records: int,
    steps: int,
    *,
    epsilon: float | None = None,
    sigma: float | None = None,
    delta: float = DELTA,
    filter_: tuple[str, float | None] = ("rdp", 6.0),
    releases: list[dict[str, Any]] | None = None,
) -> PlanRequest:
    """What the pricing process is asked."""
    asked = {
        "training": {
            "sampling": sampling,
            "sample_rate": batch / records,
            "steps": steps,
            "max_grad_norm": 1.0,
            "clipping": "flat",
            "expected_batch_size": batch,
        },
        "target_epsilon": epsilon,
        "noise_multiplier": sigma,
        "target_delta": delta,
        "releases": releases or [],
        "filter": {"kind": filter_[0], "order": filter_[1]},
    }
    return PlanRequest.model_validate(asked)


def fits(plan: PlanRequest, train: int, holdout: int = 10**15) -> FitRequest:
    """What the pricing process is asked, where so much is left."""
    return FitRequest(plan=plan, remaining=Units(train=train, holdout=holdout))


def with_target(plan: PlanRequest, epsilon: float) -> PlanRequest:
    return plan.model_copy(update={"target_epsilon": epsilon, "noise_multiplier": None})


def release(noise_mu: float, account: str = "holdout", times: int = 1) -> dict[str, Any]:
    return {"what": "accuracy", "account": account, "noise_mu": noise_mu, "times": times, "records": 5000}
