"""Claims that are read out of OpenDP's measurements and dp_accounting's events, and charged on a real ledger."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import dp_accounting
import opendp.prelude as dp
import pytest
from dp_accounting.rdp import RdpAccountant

import scrimp.dp_accounting
import scrimp.opendp
import scrimp.tumult
from app.charges.schemas import CLAIM
from app.db.database import Database
from core.privacy.filters import RdpFilter
from core.privacy.foreign_claims import units_of
from scrimp.errors import ScrimpError
from tests.conftest import Api
from tests.factories import add_dataset

dp.enable_features("contrib")
AGES = [0, 10, 20, 30]
GAUSSIAN, LAPLACE = dp_accounting.GaussianDpEvent(8.0), dp_accounting.LaplaceDpEvent(20.0)
SAMPLED = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.5))


def histogram(noise: str = "gaussian", metric: Any = None) -> Any:
    """A noisy histogram of records."""
    space = dp.vector_domain(dp.atom_domain(T=int)), metric or dp.symmetric_distance()
    distance = dp.L2Distance[int] if noise == "gaussian" else dp.L1Distance[int]
    counts = space >> dp.t.then_count_by_categories(categories=AGES, MO=distance)
    return counts >> (dp.m.then_gaussian(scale=10.0) if noise == "gaussian" else dp.m.then_laplace(scale=20.0))


def in_process(api: Api) -> Any:
    """The client of this API, without a server."""
    client = scrimp.Client("http://testserver", api.tokens["admin"])
    client._http = api.client
    api.client.headers.update(api.headers("admin"))
    return client


def test_a_measurement_states_its_claim() -> None:
    assert scrimp.opendp.claim_of(histogram()) == {"kind": "zcdp", "rho": pytest.approx(1 / 200, rel=1e-9)}
    assert scrimp.opendp.claim_of(histogram("laplace")) == {"kind": "pure", "epsilon": pytest.approx(0.05, rel=1e-9)}
    of_three = scrimp.opendp.claim_of(histogram(), records_per_unit=3)
    assert of_three["rho"] == pytest.approx(9 / 200, rel=1e-9)


def test_what_bounds_no_sum_is_refused_here() -> None:
    approximate = dp.c.make_fix_delta(dp.c.make_zCDP_to_approxDP(histogram()), 1e-6)
    with pytest.raises(ScrimpError, match="before it is turned into"):
        scrimp.opendp.claim_of(approximate)
    of_a_sum = dp.m.make_gaussian(dp.atom_domain(T=int), dp.absolute_distance(T=int), scale=10.0)
    with pytest.raises(ScrimpError, match="not of records"):
        scrimp.opendp.claim_of(of_a_sum)


@pytest.mark.parametrize(
    ("event", "claim"),
    [
        (GAUSSIAN, {"kind": "gaussian", "noise_multiplier": 8.0, "count": 1}),
        (dp_accounting.SelfComposedDpEvent(LAPLACE, 7), {"kind": "laplace", "scale": 20.0, "count": 7}),
        (
            dp_accounting.SelfComposedDpEvent(SAMPLED, 50),
            {"kind": "poisson_sampled", "sample_rate": 0.01, "noise_multiplier": 1.5, "count": 50},
        ),
        (
            dp_accounting.ComposedDpEvent([GAUSSIAN, dp_accounting.NoOpDpEvent(), dp_accounting.GaussianDpEvent(4.0)]),
            {"kind": "gdp", "mu": pytest.approx(math.sqrt(1 / 64 + 1 / 16), rel=1e-9)},
        ),
        (
            dp_accounting.ComposedDpEvent([GAUSSIAN, LAPLACE, dp_accounting.ZCDpEvent(0.001)]),
            {"kind": "zcdp", "rho": pytest.approx(1 / 128 + 1 / 800 + 0.001, rel=1e-9)},
        ),
    ],
    ids=["gaussian", "laplaces", "samples", "gaussians", "mixed"],
)
def test_an_event_s_claim_costs_at_least_what_dp_accounting_says(event: Any, claim: dict[str, Any]) -> None:
    found = scrimp.dp_accounting.claim_of(event)
    assert found == claim
    for order in (2.0, 6.0, 32.0):
        divergence = RdpAccountant([order]).compose(event)._rdp[0]
        assert units_of(CLAIM.validate_python(found), RdpFilter(order)) * 1e-9 >= divergence * (1.0 - 1e-9)


@pytest.mark.parametrize(
    "event",
    [
        dp_accounting.ComposedDpEvent([GAUSSIAN, SAMPLED]),
        dp_accounting.NonPrivateDpEvent(),
        dp_accounting.ZCDpEvent(0.1, 0.1),
        dp_accounting.NoOpDpEvent(),
    ],
    ids=["samples beside others", "no privacy", "approximate", "nothing"],
)
def test_an_event_without_a_claim_is_refused(event: Any) -> None:
    with pytest.raises(ScrimpError):
        scrimp.dp_accounting.claim_of(event)


@pytest.mark.parametrize("plan", ["mixed", "any mechanism"])
def test_opendp_s_discrete_gaussian_is_chargeable_on_a_new_data_set(api: Api, db: Database, plan: str) -> None:
    cap = {"epsilon": 4.0, "delta": 1e-5}
    privacy = {"sensitivity": "private", "records": 10_000, "cap": cap, "plan": plan, "order": 8.0}
    dataset, counts = add_dataset(db, privacy=privacy), histogram()
    client = in_process(api)
    charge = scrimp.opendp.charge(client, dataset, counts, attested="ages by decade")
    assert charge.status == "held" and charge.attested == "OpenDP: ages by decade" and charge.train > 0
    assert len(counts([1, 2, 3])) == len(AGES) + 1
    assert client.charges.post(charge.id).status == "posted"
    event = dp_accounting.SelfComposedDpEvent(SAMPLED, 5)
    assert scrimp.dp_accounting.charge(client, dataset, event, attested="samples").status == "held"


def test_a_measurement_of_tumult_core_states_its_claim() -> None:
    """It needs other versions of numpy and pandas than the service: run where it is installed."""
    noise = pytest.importorskip("tmlt.core.measurements.noise_mechanisms", reason="tmlt.core is not installed")
    numbers = import_module("tmlt.core.domains.numpy_domains").NumpyIntegerDomain()
    ages = import_module("tmlt.core.domains.pandas_domains").PandasSeriesDomain(numbers)
    quantile = import_module("tmlt.core.measurements.pandas_measurements.series").NoisyQuantile
    third = import_module("sympy").Rational(1, 3)

    def claim(measure: str, **members: int) -> dict[str, Any]:
        under = getattr(import_module("tmlt.core.measures"), measure)()
        median = quantile(ages, under, quantile=0.5, lower=0, upper=100, epsilon=third)
        return scrimp.tumult.claim_of(median, **members)

    for found, exact in (
        (claim("PureDP"), {"kind": "pure", "epsilon": 1 / 3}),
        (claim("RhoZCDP"), {"kind": "zcdp", "rho": 1 / 72}),
        (claim("RhoZCDP", records_per_unit=3), {"kind": "zcdp", "rho": 1 / 8}),
    ):
        assert found == pytest.approx(exact, rel=1e-12)
    assert claim("PureDP")["epsilon"] >= 1 / 3, "rounded up"
    with pytest.raises(ScrimpError, match="not of records"):
        scrimp.tumult.claim_of(noise.AddGeometricNoise(3))
