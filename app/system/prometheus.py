"""The Prometheus registry: numbers of all processes together, whichever API process answers.

No number is computed from private data except causes of failures and ends of attempts, which admins alone see.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy import select, true
from starlette.types import Scope

from app.db.database import Database
from app.db.models import Account, LedgerCheck
from app.grants.service import visible
from app.jobs.counts import failures_by_cause, jobs_by_status
from app.keys.service import Caller
from app.lifecycle.measures import REQUESTS, SECONDS, Measures
from app.settings import Settings
from app.system.collectors import MeasuresCollector, ServiceCollector
from app.system.health import skews
from app.web.request_ids import route_of


class FailureCollector(Collector):
    """Causes of failed jobs, from the audit log: for admins alone, since a cause may depend on private data."""

    def __init__(self, db: Database) -> None:
        self.db = db

    def collect(self) -> Iterator[GaugeMetricFamily]:
        failures = GaugeMetricFamily("scrimp_job_failures", "Failed jobs by cause.", labels=["cause"])
        with self.db.read() as session:
            for cause, count in failures_by_cause(self.db, session).items():
                failures.add_metric([cause], count)
        yield failures


class LedgerCollector(Collector):
    """Reads the database at each scrape: what the caller may see.

    Args:
        caller: None for everything.
    """

    def __init__(self, db: Database, caller: Caller | None = None) -> None:
        self.db = db
        self.caller = caller
        self.accounts = true() if caller is None else visible(caller, Account.dataset_id)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        jobs = GaugeMetricFamily("scrimp_jobs", "Jobs by status.", labels=["status"])
        budget = GaugeMetricFamily(
            "scrimp_ledger_units",
            "Budget units of a data set's account.",
            labels=["dataset", "account", "filter", "state"],
        )
        share = GaugeMetricFamily(
            "scrimp_ledger_share", "Share of an account's budget.", labels=["dataset", "account", "state"]
        )
        behind = GaugeMetricFamily(
            "scrimp_ledger_behind",
            "1 if the database has lost entries of a data set's ledger.",
            labels=["dataset"],
        )
        valid = GaugeMetricFamily(
            "scrimp_ledger_valid", "1 if the last verification of a ledger found no fault.", labels=["dataset"]
        )
        checked = GaugeMetricFamily(
            "scrimp_ledger_checked_timestamp_seconds", "When a ledger was last verified.", labels=["dataset"]
        )
        with self.db.read() as session:
            checks = {check.dataset_id: check for check in session.scalars(select(LedgerCheck))}
            for status, count in jobs_by_status(self.db, session, self.caller).items():
                jobs.add_metric([status], count)
            for row in session.scalars(select(Account).where(self.accounts)):
                check = checks.get(row.dataset_id)
                behind.add_metric([row.dataset_id], float(check is not None and check.behind is not None))
                if check is not None and check.checked_at is not None:
                    valid.add_metric([row.dataset_id], float(check.problem is None))
                    checked.add_metric([row.dataset_id], check.checked_at.timestamp())
                for account in ("train", "holdout"):
                    total_budget = getattr(row, f"{account}_budget")
                    for state in ("spent", "held") if total_budget else ():
                        share.add_metric(
                            [row.dataset_id, account, state], getattr(row, f"{account}_{state}") / total_budget
                        )
                    for state in ("budget", "spent", "held"):
                        budget.add_metric(
                            [row.dataset_id, account, row.filter, state], float(getattr(row, f"{account}_{state}"))
                        )
        yield jobs
        yield budget
        yield from (share, behind, valid, checked)


class ClockCollector(Collector):
    """Reads the database's clock at each scrape."""

    def __init__(self, db: Database, lease_s: float) -> None:
        self.db, self.lease_s = db, lease_s

    def collect(self) -> Iterator[GaugeMetricFamily]:
        gauge = GaugeMetricFamily(
            "scrimp_clock_skew_seconds",
            "How far the clocks of this process and of living workers are ahead of the database's.",
            labels=["process"],
        )
        for process, skew in skews(self.db, self.lease_s).items():
            gauge.add_metric([process], skew)
        yield gauge


def count_request(measures: Measures, scope: Scope, status: int, took_s: float) -> None:
    """Counts and times a request by its route's template (never by the ids in it)."""
    route = route_of(scope)
    method = scope["method"] if scope["method"] in ("GET", "POST", "DELETE", "PUT", "PATCH", "HEAD") else "other"
    measures.count(REQUESTS, method, route, str(status))
    measures.observe(SECONDS, took_s, method, route)


def registry_for(caller: Caller, db: Database, full_registry: CollectorRegistry) -> CollectorRegistry:
    """The metrics that a caller may scrape: an admin all, others jobs and budgets of their visible data sets.

    Only admins learn how many requests others make, and of which kind.
    """
    if caller.is_admin:
        return full_registry
    registry = CollectorRegistry()
    registry.register(LedgerCollector(db, caller))
    return registry


def make_registry(db: Database, settings: Settings, measures: Measures) -> CollectorRegistry:
    """Makes the registry with all collectors.

    Args:
        measures: what this process counts.
    """
    registry = CollectorRegistry()
    registry.register(ServiceCollector(db, settings))
    registry.register(MeasuresCollector(db, measures))
    registry.register(LedgerCollector(db))
    registry.register(FailureCollector(db))
    registry.register(ClockCollector(db, settings.lease_s))
    return registry
