"""Charges a data set for a measurement of OpenDP: the claim is read out of the object.

    charge = scrimp.opendp.charge(client, "visits", histogram, attested="visits by decade of age")
    counts = histogram(ages)
    client.charges.post(charge.id)

OpenDP's discrete Gaussian is a zCDP claim: a data set under `rdp`, or of a plan that may move there, takes it. Nothing
of OpenDP is imported: a measurement knows its own measure, metric and map.
"""

from __future__ import annotations

from typing import Any, Protocol

from scrimp.errors import ScrimpError
from scrimp.measured import OfMeasurement

# Distances of data sets in records added or removed, and those in records replaced.
ADD_OR_REMOVE = ("SymmetricDistance", "InsertDeleteDistance")
REPLACE = ("ChangeOneDistance", "HammingDistance")


class Measurement(Protocol):
    """What is read of a measurement."""

    @property
    def input_metric(self) -> Any: ...

    @property
    def output_measure(self) -> Any: ...

    def map(self, d_in: Any) -> Any: ...


def claim_of(measurement: Measurement, *, records_per_unit: int = 1) -> dict[str, Any]:
    """The claim of `/v1/charges` that a measurement proves of itself.

    Args:
        records_per_unit: how many records of one unit the measurement may read: 1, or the bound on a user's records.

    Raises:
        ScrimpError: it is about another relation, or bounds (ε, δ) alone.
    """
    metric, measure = (_name(each) for each in (measurement.input_metric, measurement.output_measure))
    if metric in REPLACE:
        raise ScrimpError(f"this measurement is about replacing a record ({metric}): build it on `symmetric_distance`")
    if metric not in ADD_OR_REMOVE:
        raise ScrimpError(f"the distance {metric} is not of records: charge the measurement of the whole data set")
    bound = measurement.map(records_per_unit)
    if measure == "MaxDivergence":
        return {"kind": "pure", "epsilon": float(bound)}
    if measure == "ZeroConcentratedDivergence":
        return {"kind": "zcdp", "rho": float(bound)}
    raise ScrimpError(
        f"the measure {measure} has no sum with other jobs: charge the measurement before it is turned into (ε, δ)"
    )


charge = OfMeasurement[Measurement]("OpenDP", claim_of)


def _name(measurement: Any) -> str:
    """The name of a metric or measure, without its arguments."""
    return str(measurement).partition("(")[0]
