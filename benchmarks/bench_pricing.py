"""Measures a first price in a warm process on one core, against plain bisection on the fine grid.

Writes benchmarks/reports/pricing.md. Times are CPU seconds of this process, as on one idle core: BLAS has one thread,
and other processes on the machine do not count.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import dp_accounting as dp

from core.privacy import filters, pricing
from core.privacy.price_requests import FitRequest, PlanRequest
from core.privacy.prices import Units

REPORT = Path(__file__).parent / "reports" / "pricing.md"
RUNS, BISECTIONS = 7, 3
COLUMNS = (
    "Poisson plan",
    "first price, s",
    "largest ε that fits, s",
    "plain bisection, s (evaluations)",
    "times faster",
    "σ: ours / bisection",
    "our ε",
)
PLANS = {
    "n = 50,000, L = 512, 20 epochs, ε = 1": (512, 50_000, 1953, 1.0, 1e-5),
    "IMDB: n = 25,000, L = 64, 100 epochs, ε = 1": (64, 25_000, 39_062, 1.0, 1e-5),
    "IMDB: n = 25,000, L = 64, 100 epochs, ε = 3": (64, 25_000, 39_062, 3.0, 1e-5),
    "n = 1,000,000, L = 4096, 10 epochs, ε = 3": (4096, 1_000_000, 2441, 3.0, 1e-6),
    "n = 20,000, L = 200, 20 epochs, ε = 10": (200, 20_000, 2000, 10.0, 1e-5),
}


def request(sampling: str, batch: int, records: int, steps: int, epsilon: float, delta: float) -> PlanRequest:
    training = {"sampling": sampling, "sample_rate": batch / records, "steps": steps, "max_grad_norm": 1.0}
    release = {"what": "accuracy", "account": "holdout", "noise_mu": 0.05, "records": records}
    asked = {
        "training": training | {"clipping": "flat", "expected_batch_size": batch},
        "target_epsilon": epsilon,
        "noise_multiplier": None,
        "target_delta": delta,
        "releases": [release],
        "filter": {"kind": "gdp", "order": None} if sampling == "full_batch" else {"kind": "rdp", "order": 6.0},
    }
    return PlanRequest.model_validate(asked)


def median(call: Callable[[], Any], runs: int) -> tuple[float, Any]:
    times, answer = [], None
    for _ in range(runs):
        began = time.process_time()
        answer = call()
        times.append(time.process_time() - began)
    return statistics.median(times), answer


def bisect(rate: float, steps: int, target: float, delta: float) -> tuple[float, int]:
    """Finds σ to 0.1 % of the target, by doubling and halving; dp_accounting computes each ε on the grid of 1e-4."""
    asked = 0

    def epsilon(sigma: float) -> float:
        nonlocal asked
        asked += 1
        accountant = dp.pld.PLDAccountant(value_discretization_interval=1e-4)
        accountant.compose(dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(sigma)), steps))
        return float(accountant.get_epsilon(delta))

    high = 1.0
    while epsilon(high) > target:
        high *= 2.0
    low = high / 2.0 if high > 1.0 else 0.1
    while True:
        middle = 0.5 * (low + high)
        spent = epsilon(middle)
        if 0.999 * target <= spent <= target:
            return middle, asked
        low, high = (middle, high) if spent > target else (low, middle)


def machine() -> str:
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    packages = ", ".join(f"{name} {version(name)}" for name in ("dp-accounting", "numpy", "scipy"))
    cpu = models[0].split(":")[1].strip() if models else platform.processor()
    return f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}, {packages}"


def poisson_row(name: str, plan: tuple[int, int, int, float, float]) -> str:
    batch, records, steps, target, delta = plan
    asked = request("poisson", *plan)
    taken, price = median(lambda: pricing.price(asked), RUNS)
    left = Units(train=price.charge.train, holdout=price.charge.holdout)
    fits, _ = median(lambda: pricing.largest_that_fits(FitRequest(plan=asked, remaining=left)), 3)
    plain, (sigma, evaluations) = median(lambda: bisect(batch / records, steps, target, delta), BISECTIONS)
    ours = price.mechanism.training.noise_multiplier
    speed = f"{taken:.2f} | {fits:.2f} | {plain:.2f} ({evaluations}) | {plain / taken:.1f}"
    return f"| {name} | {speed} | {ours:.4f} / {sigma:.4f} | {price.epsilon.value:.5f} |"


def main() -> None:
    full = request("full_batch", 20_000, 20_000, 50, 1.0, 1e-5)
    pricing.price(full)
    pricing.price(request("poisson", 100, 1000, 10, 1.0, 1e-5))  # warm
    full_s, _ = median(lambda: pricing.price(full), 30)
    order_s, _ = median(lambda: filters.choose_order(4.0, 1e-5, 20_000), RUNS)
    rows = [poisson_row(name, plan) for name, plan in PLANS.items()]
    load = os.getloadavg()[1]
    report = f"""# The time of a price

`python benchmarks/bench_pricing.py` on {machine()}.

CPU seconds of one warm process on one thread; medians of {RUNS} ({BISECTIONS} for bisection). A price is the whole
answer: σ, ε, the comparison figures of the other accountants, charges and lines. Load average during the run:
{load:.1f}.

* A full-batch price (50 steps, ε = 1, with a noisy score): {1000 * full_s:.1f} ms.
* Choosing the order of an `rdp` filter at registration (cap 4, 20,000 records): {order_s:.2f} s.

| {" | ".join(COLUMNS)} |
|{"---|" * len(COLUMNS)}
""" + "\n".join(rows)
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(report + "\n", encoding="utf-8")
    print(report)


if __name__ == "__main__":
    main()
