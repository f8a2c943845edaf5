"""Charges a data set for an event of dp_accounting: the claim is read out of the object.

    event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(8.0), 100)
    charge = scrimp.dp_accounting.charge(client, "visits", event, attested="a hundred noisy means")

An event knows no neighbouring relation: its noise multipliers must be of adding or removing one unit. Nothing of
dp_accounting is imported: events are read by their names and members.
"""

from __future__ import annotations

import math
from typing import Any, Unpack

from scrimp.charges import Use
from scrimp.client import Client
from scrimp.errors import ScrimpError
from scrimp.models import Charge


def claim_of(event: Any) -> dict[str, Any]:
    """The claim of `/v1/charges` that covers an event.

    Gaussians together are μ-GDP. With Laplace noise and zCDP among them, all is zCDP: ε-DP is ε²/2-zCDP (Bun & Steinke
    2016, Proposition 1.4).

    Raises:
        ScrimpError: no theorem bounds it in one claim: Poisson samples beside other mechanisms, or an unknown event.
    """
    leaves = _leaves(event, 1)
    kinds = {each["kind"] for each, _ in leaves}
    if len(leaves) == 1 and kinds <= {"gaussian", "laplace", "poisson_sampled"}:
        ((leaf, count),) = leaves
        return leaf | {"count": count}
    if kinds == {"gaussian"}:
        total = math.fsum(count / leaf["noise_multiplier"] ** 2 for leaf, count in leaves)
        return {"kind": "gdp", "mu": math.sqrt(total) * (1.0 + 1e-12)}
    if leaves and kinds <= {"gaussian", "laplace", "zcdp"}:
        return {"kind": "zcdp", "rho": math.fsum(count * _rho(leaf) for leaf, count in leaves)}
    raise ScrimpError("no one claim covers this event: charge its Poisson samples and the rest one after the other")


def charge(
    client: Client,
    dataset: str,
    event: Any,
    *,
    attested: str,
    unit: str = "example",
    account: str = "both",
    **use: Unpack[Use],
) -> Charge:
    """Holds budget for an event: run its mechanism only after this has returned, then post the charge.

    Args:
        attested: which system and query this is, in words.
        unit, account, use: as `client.charges.reserve`.

    Raises:
        BudgetRefused: it does not fit; nothing was charged.
        ScrimpError: as `claim_of`.
    """
    return client.charges.reserve(dataset, claim_of(event), unit=unit, attested=attested, account=account, **use)


def _rho(leaf: dict[str, Any]) -> float:
    """The ρ of a mechanism without sampling, rounded up."""
    match leaf["kind"]:
        case "gaussian":
            rho = 0.5 / leaf["noise_multiplier"] ** 2
        case "laplace":
            rho = 0.5 / leaf["scale"] ** 2
        case _:
            rho = leaf["rho"]
    return float(rho) * (1.0 + 1e-12)


def _leaves(event: Any, count: int) -> list[tuple[dict[str, Any], int]]:
    """An event's mechanisms as claims without their counts, and how often each runs."""
    match type(event).__name__:
        case "NoOpDpEvent":
            return []
        case "ComposedDpEvent":
            return [leaf for each in event.events for leaf in _leaves(each, count)]
        case "SelfComposedDpEvent":
            return _leaves(event.event, count * event.count)
        case _:
            return [(_claim(event), count)]


def _claim(event: Any) -> dict[str, Any]:
    match type(event).__name__:
        case "GaussianDpEvent":
            return {"kind": "gaussian", "noise_multiplier": float(event.noise_multiplier)}
        case "LaplaceDpEvent":
            return {"kind": "laplace", "scale": float(event.noise_multiplier)}
        case "ZCDpEvent" if event.xi == 0:
            return {"kind": "zcdp", "rho": float(event.rho)}
        case "PoissonSampledDpEvent" if type(event.event).__name__ == "GaussianDpEvent":
            sampled = {"sample_rate": float(event.sampling_probability)}
            return {"kind": "poisson_sampled"} | sampled | {"noise_multiplier": float(event.event.noise_multiplier)}
        case name:
            raise ScrimpError(f"no theorem bounds an event of kind {name} in this ledger")
