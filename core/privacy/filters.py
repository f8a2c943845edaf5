"""Privacy filters: convert a cap to a budget and a job to a charge, in integer units of one additive currency.

The analyst chooses each next job after seeing results. So it is not a valid filter to stop when a composed privacy loss
distribution reaches the cap. The two filters here are valid: each adds one number per job and compares the sum with a
budget fixed in advance.

    gdp   μ² in units of 1e-12    admits plain Gaussian jobs only     Smith & Thakurta 2022 (no loss)
    rdp   RDP at one order α*     admits every job                    Feldman & Zrnic 2021; Lécuyer 2021; with
          in units of 1e-9                                            concurrent jobs: Haney et al. 2023

All rounding is conservative: budgets down, charges up, printed ε's up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, assert_never

from core.contracts.base import AccountName
from core.contracts.dataset_spec import TypicalJob
from core.contracts.filter_names import FILTERS, FilterName, is_filter
from core.errors import InvalidRequest, PrivacyError
from core.privacy import calibration, events, gdp, rdp
from core.privacy.events import Event, Leaf
from core.privacy.filter_base import CAP, LedgerFilter, positive_budget
from core.privacy.mechanism import MechanismConfig

# The orders that `choose_order` tries. Below 1.25 no useful cap has a budget; a cap of 0.1 at δ = 1e-5 needs > 64.
ORDERS: tuple[float, ...] = (
    *(1.25 + x / 4 for x in range(36)),
    *map(float, range(11, 33)),
    *(36.0, 40.0, 44.0, 48.0, 56.0, 64.0, 80.0, 96.0, 128.0, 192.0, 256.0, 384.0, 512.0, 768.0, 1024.0),
)

_PER_NANO = Fraction(1_000_000_000, 1_000_000_000_000)  # units of rdp (1e-9) in one of gdp (1e-12)
_ROUNDING = 1e-12  # relative: far above the error of the few float operations here, far below any job's share
_DEFAULT_EPOCHS, _DEFAULT_BATCH, _DEFAULT_SHARE = 20.0, 512, 0.25
_MOST_STEPS = 10_000_000  # the contract's bound for a job


@dataclass(frozen=True)
class GdpFilter(LedgerFilter):
    """Σ μ², exact: a cap (ε, δ) is worth μ², and T full-batch steps at σ cost T/σ²."""

    kind: ClassVar[FilterName] = "gdp"
    unit: ClassVar[str] = "mu^2 * 1e-12"
    order: ClassVar[float | None] = None

    def budget(self, epsilon: float, delta: float) -> int:
        """⌊μ(ε, δ)²⌋ in units.

        Raises:
            InvalidRequest: the cap is worth less than one unit.
        """
        return positive_budget(math.floor(gdp.mu_from_epsilon(epsilon, delta) ** 2 * (1.0 - 4.0 * _ROUNDING) * 1e12))

    def charge(self, mechanism: MechanismConfig, account: AccountName) -> int:
        """Charges `mechanism` on `account`: the sum of ⌈T/σ²⌉ units over its lines.

        Raises:
            InvalidRequest: the mechanism samples, so it has no exact μ.
        """
        return sum(self.charge_event(line) for line in mechanism.event(account).events)

    def charge_event(self, event: Event) -> int:
        """Charges one line ⌈Σ 1/σ²⌉, in units.

        Raises:
            InvalidRequest: as in `charge`.
        """
        mu = gdp.mu_of_event(event)
        if mu is None:
            detail = (
                "this data set's `gdp` filter admits full-batch jobs only: use full_batch sampling, or a data set with "
                "the filter `rdp`"
            )
            raise InvalidRequest.at("/sampling/kind", detail)
        return math.ceil(mu * mu * (1.0 + _ROUNDING) * 1e12)

    def epsilon(self, amount: int, delta: float) -> float:
        """Converts `amount` units to ε at δ, rounded up."""
        return gdp.epsilon_from_mu(math.sqrt(amount * 1e-12) * (1.0 + _ROUNDING), delta)

    def carried(self, amount: int, to: LedgerFilter) -> int | None:
        """A Gaussian mechanism with μ has divergence α μ²/2 at every order α, and they add up."""
        if isinstance(to, RdpFilter):
            return math.ceil(Fraction(to.order) * amount / 2 * _PER_NANO)
        return super().carried(amount, to)


@dataclass(frozen=True)
class RdpFilter(LedgerFilter):
    """RDP at one order, fixed when the data set is registered. Later it never takes a minimum over orders.

        B(ε, δ) = ε + ln(α/(α−1)) + (ln δ + ln α)/(α−1)

    Source of the conversion: Canonne, Kamath & Steinke 2020, Proposition 12.
    """

    order: float
    kind: ClassVar[FilterName] = "rdp"
    unit: ClassVar[str] = "rdp(order) * 1e-9"

    def budget(self, epsilon: float, delta: float) -> int:
        """⌊B(ε, δ)⌋ in units.

        Raises:
            InvalidRequest: the order leaves no budget under this cap.
        """
        return positive_budget(math.floor((epsilon - self._conversion(delta)) * 1e9), self.order)

    def charge(self, mechanism: MechanismConfig, account: AccountName) -> int:
        """Charges `mechanism` on `account`: the sum of ⌈T · ε_step(α*)⌉ units over its lines."""
        return sum(self.charge_event(line) for line in mechanism.event(account).events)

    def charge_event(self, event: Event) -> int:
        """Charges one line ⌈T · ε_step(α*)⌉, in units.

        Raises:
            PrivacyError: the divergence at this order is not finite.
        """
        cost = sum(count * _step(self.order, leaf) for leaf, count in events.leaves(event).items())
        if not math.isfinite(cost):
            raise PrivacyError(f"the Rényi divergence at order {self.order:g} could not be computed")
        return math.ceil(cost * (1.0 + _ROUNDING) * 1e9)

    def epsilon(self, amount: int, delta: float) -> float:
        """Converts `amount` units to ε at δ, rounded up; 0 units give 0."""
        if amount <= 0:
            return 0.0
        return max(amount * 1e-9 + self._conversion(delta), 0.0)

    def carried(self, amount: int, to: LedgerFilter) -> int | None:
        """A Rényi divergence does not fall with its order: a charge at α covers every order up to α."""
        return amount if isinstance(to, RdpFilter) and to.order <= self.order else None

    def _conversion(self, delta: float) -> float:
        """Returns the conversion's addition to the divergence, rounded up."""
        a = self.order
        terms = (math.log1p(-1.0 / a), -math.log(delta) / (a - 1.0), -math.log(a) / (a - 1.0))
        return math.fsum(terms) + _ROUNDING * max(1.0, *map(abs, terms))


def load_numerics() -> None:
    """Loads the libraries for charging a partly run job. This takes seconds, so call it outside transactions.

    SQLite has one writer: an import inside a transaction stopped all lease renewals of the service.
    """
    from dp_accounting import rdp as _rdp  # noqa: F401, PLC0415
    from scipy import optimize as _optimize  # noqa: F401, PLC0415


@lru_cache(maxsize=1024)  # a study's trials are alike
def _step(order: float, leaf: Leaf) -> float:
    """The divergence of one step, plus a bound on the error of summing its series in floats.

    Measured against 60 digits over σ in [0.1, 1e3], q in [1e-9, 1), α to 1024: ln A_α is off by at most
    7e-16 · α (1 + ln A_α). Without the addition the charge for a tiny q could be negative.
    """
    value = rdp.divergence(leaf, order)
    log_moment = max(0.0, (order - 1.0) * value)
    return (log_moment + 1e-14 * order * (1.0 + log_moment)) / (order - 1.0) if leaf.sample_rate < 1.0 else value


Filter = GdpFilter | RdpFilter


def filter_of(kind: str, order: float | None = None) -> Filter:
    """Returns the filter that a data set was registered with.

    >>> filter_of("gdp").unit
    'mu^2 * 1e-12'

    Raises:
        InvalidRequest: the kind is unknown, or an `rdp` filter's order is not in (1, 1024].
    """
    if not is_filter(kind):
        raise InvalidRequest.at("/privacy/filter", f"the filter must be {' or '.join(f'`{name}`' for name in FILTERS)}")
    match kind:
        case "gdp":
            return GdpFilter()
        case "rdp":
            if order is None or not 1.0 < order <= 1024.0:
                raise InvalidRequest.at("/privacy/order", "the order must lie above 1 and be at most 1024")
            return RdpFilter(float(order))
        case _:
            assert_never(kind)


def choose_order(cap_epsilon: float, cap_delta: float, records: int, typical_job: TypicalJob | None = None) -> float:
    """Chooses the order at which the most jobs of the owner's typical size fit under the cap.

    Compares the ratio of budget to charge, not its integer part, so that a larger job than usual gains too.

    Args:
        cap_epsilon, cap_delta: the cap.
        records: the public number of records in the training part.
        typical_job: default: 20 epochs of batches of 512 (at most all records) at a quarter of the cap.

    Returns:
        α*, one of ORDERS. Public: a function of declared numbers. Frozen after registration.

    Raises:
        InvalidRequest: no order leaves a positive budget under this cap, or the typical job cannot run.
    """
    budgets = {order: RdpFilter(order)._conversion(cap_delta) for order in ORDERS}
    budgets = {order: cap_epsilon - added for order, added in budgets.items() if cap_epsilon - added > 1e-9}
    if not budgets:
        raise InvalidRequest.at(
            CAP, "the `rdp` filter has no budget under this cap at any order: raise the cap, or use `gdp`"
        )
    sample_rate, steps, target = _typical_plan(cap_epsilon, records, typical_job)
    try:
        sigma = calibration.rough_noise_multiplier(target, cap_delta, sample_rate, steps)
    except InvalidRequest as error:
        raise InvalidRequest.at("/privacy/typical_job", f"the typical job cannot run: {error.message}") from error
    leaf = Leaf(sample_rate, sigma)
    return max(budgets, key=lambda order: budgets[order] / _step(order, leaf))


def _typical_plan(cap_epsilon: float, records: int, job: TypicalJob | None) -> tuple[float, int, float]:
    """Returns the typical job's (sample rate, steps, ε)."""
    if job is None:
        # A batch large enough that 20 epochs of the largest data sets need at most _MOST_STEPS steps.
        batch = max(_DEFAULT_BATCH, math.ceil(_DEFAULT_EPOCHS * records / _MOST_STEPS))
        job_epochs, target = _DEFAULT_EPOCHS, _DEFAULT_SHARE * cap_epsilon
    else:
        batch, job_epochs, target = job.expected_batch_size, job.epochs, job.epsilon
    batch = min(batch, records)
    steps = max(1, math.floor(job_epochs * records / batch))
    if steps > _MOST_STEPS:
        raise InvalidRequest.at("/privacy/typical_job", f"the typical job has {steps} steps, more than {_MOST_STEPS}")
    return batch / records, steps, target
