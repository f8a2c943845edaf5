"""What a largest batch costs: price and padding of truncated Poisson batches.

    python -m benchmarks.truncated    # a minute; writes benchmarks/reports/truncated.md

All numbers follow from plans alone: no data, no clock.
"""

from __future__ import annotations

from pathlib import Path

from core.privacy import calibration, pld
from core.privacy.events import Truncation, noisy_sums
from core.privacy.filters import RdpFilter
from core.privacy.slot_numbers import default_slots

REPORT = Path(__file__).resolve().parent / "reports" / "truncated.md"
DELTA, TARGET, ORDER = 1e-5, 3.0, 8.0
PLANS = ((10_000, 256, 2_000), (60_000, 600, 3_000), (1_000_000, 1_024, 10_000))  # declared records, L, T
FACTORS = (1.1, 1.2, 1.4, 1.6, 2.0, 3.0)

TEXT = """# The price of a largest batch

`python -m benchmarks.truncated`. Poisson batches, target ε = {target:g} at δ = {delta:g}. L is the expected batch, B
the largest one. w is the chance that one more unit finds the batch full at the most units that registration admits,
the slots: 1.05 times the declared ones and 64. So B must lie well above 1.05 L. "Padding" is the expected share of
empty rows in B. σ is the noise multiplier that meets the target; "plain" has no largest batch. The charge is that of
an `rdp` filter at order {order:g}, relative to plain batches at the plain σ.

| declared records, L, T | B / L | w | ε at the plain σ | σ / plain σ | charge at the plain σ | padding |
|---|---|---|---|---|---|---|
{rows}

* ε and σ are those of plain batches to three digits from B = 1.4 L on: what is paid then is padding, not privacy.
* A filter of order {order:g} weighs a rare event by e^{{7 D}}: where σ is small (the second and third plan), it charges
  more up to B = 1.4 L or 1.6 L. The quote shows it; a lower order or a larger B helps.
* At B = 1.1 L the batch is full in up to every fourth step if there are as many records as slots, and the price says
  so: it is not that of the declared number. An owner who states fewer slots allows a smaller B.
"""


def rows() -> list[str]:
    found = []
    for records, batch, steps in PLANS:
        rate = batch / records
        sigma = calibration.calibrate(TARGET, DELTA, rate, steps).noise_multiplier
        charge = RdpFilter(ORDER).charge_event(noisy_sums(rate, sigma, steps))
        for factor in FACTORS:
            truncation = Truncation(records=default_slots(records), largest_batch=round(factor * batch))
            event = noisy_sums(rate, sigma, steps, truncation)
            priced = calibration.calibrate(TARGET, DELTA, rate, steps, truncation=truncation)
            found.append(
                f"| {records:,}, {batch:,}, {steps:,} | {factor:g} | {truncation.overflow(rate):.1e} | "
                f"{pld.epsilon(event, DELTA):.4g} | {priced.noise_multiplier / sigma:.4f} | "
                f"{RdpFilter(ORDER).charge_event(event) / charge:.4g} | {1.0 - 1.0 / factor:.0%} |"
            )
    return found


def main() -> None:
    REPORT.write_text(TEXT.format(target=TARGET, delta=DELTA, order=ORDER, rows="\n".join(rows())))


if __name__ == "__main__":
    main()
