"""Charges a data set for a measurement of Tumult Core: the claim is read out of the object.

    charge = scrimp.tumult.charge(client, "visits", measurement, attested="visits by decade of age")
    counts = measurement(frame)
    client.charges.post(charge.id)

A measurement under ρ-zCDP is taken by a data set under `rdp`, or of a plan that may move there. Nothing of Tumult is
imported: a measurement knows its own measure, metric and privacy function.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

from scrimp.errors import ScrimpError
from scrimp.measured import OfMeasurement


class Measurement(Protocol):
    """What is read of a measurement."""

    @property
    def input_domain(self) -> Any: ...

    @property
    def input_metric(self) -> Any: ...

    @property
    def output_measure(self) -> Any: ...

    def privacy_function(self, d_in: Any) -> Any: ...


def claim_of(measurement: Measurement, *, records_per_unit: int = 1) -> dict[str, Any]:
    """The claim of `/v1/charges` that a measurement proves of itself.

    Args:
        records_per_unit: how many records of one unit the measurement may read: 1, or the bound on a user's records.

    Raises:
        ScrimpError: its distance is not of records added and removed, or it bounds (ε, δ) alone, or nothing.
    """
    domains = (measurement.input_metric, measurement.output_measure, measurement.input_domain)
    metric, measure, domain = (type(each).__name__ for each in domains)
    if metric != "SymmetricDifference" or "Grouped" in domain:  # of grouped frames it counts groups
        raise ScrimpError(
            f"the distance {metric} on {domain} is not of records added and removed: charge the measurement of the "
            "whole data set, under `SymmetricDifference`"
        )
    kind = {"PureDP": ("pure", "epsilon"), "RhoZCDP": ("zcdp", "rho")}.get(measure)
    if kind is None:
        raise ScrimpError(
            f"the measure {measure} has no sum with other jobs: charge the measurement under `PureDP` or `RhoZCDP`"
        )
    bound = float(measurement.privacy_function(records_per_unit).to_float(round_up=True))
    if not math.isfinite(bound):
        raise ScrimpError("the measurement bounds nothing: its privacy function is infinite there")
    return {"kind": kind[0], kind[1]: bound}


charge = OfMeasurement[Measurement]("Tumult Core", claim_of)
