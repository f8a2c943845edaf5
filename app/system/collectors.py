"""What the database knows of the service, read at each scrape: the queue, attempts, workers, the relay's work,
webhooks, readings and uploads; what keys have queued, run and ran; and what processes counted.

Everything here is for admins. It counts jobs, requests and processes; a count by outcome or signal may depend on
private data (too little memory), as the causes of failures do (app.system.prometheus).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.datasets import readings, resumable
from app.db.clock import now_there
from app.db.database import Database
from app.db.models import ApiKey, Attempt, DatasetReading, Job, Outbox, Prediction, Webhook, WebhookDelivery
from app.lifecycle import measures
from app.lifecycle.measures import BOUNDS, METRICS, SUM, Measures
from app.lifecycle.queue.presence import is_alive, runs_jobs, workers
from app.lifecycle.states import ACTIVE, NEEDS_GPU
from app.lifecycle.sweeper import CLAIMABLE
from app.settings import Settings

Families = Iterator[Metric]
MOST_KEYS = 100


class ServiceCollector(Collector):
    """The queue, attempts, workers, the relay's work, webhooks, predictions, readings and uploads."""

    def __init__(self, db: Database, settings: Settings) -> None:
        self.db, self.settings = db, settings

    def collect(self) -> Families:
        """Reads all in one snapshot."""
        with self.db.read() as session:
            at = now_there(session)
            metrics = [
                *_queue(session, at),
                *_attempts(session),
                *self._workers(session, at),
                *_outbox(session, at),
                *_webhooks(session),
                *_keys(session),
                _by(session, "scrimp_predictions", "Predictions that are kept, by status.", Prediction.status),
                _by(
                    session,
                    "scrimp_readings",
                    "Data files read in the background, by state; without blocks that were refused.",
                    DatasetReading.state,
                    readings.TOLD_TO_ADMINS,
                ),
            ]
        yield from metrics
        uploads = GaugeMetricFamily("scrimp_uploads_open", "Uploads in pieces that are not registered.")
        uploads.add_metric([], resumable.count_open(self.settings))
        yield uploads

    def _workers(self, session: Session, at: datetime) -> Families:
        family = GaugeMetricFamily(
            "scrimp_workers", "Job workers of the last day by device: busy, idle, or gone.", labels=["device", "state"]
        )
        counts = Counter({(device, state): 0 for device in ("cpu", "cuda") for state in ("busy", "idle", "gone")})
        for worker, job in workers(session):
            if not runs_jobs(worker):
                continue
            alive = is_alive(worker, self.settings.lease_s, at)
            gpu = any(each.get("kind") == "cuda" for each in worker.devices or ())
            counts["cuda" if gpu else "cpu", ("busy" if job else "idle") if alive else "gone"] += 1
        for labels, count in counts.items():
            family.add_metric(labels, count)
        yield family


def _queue(session: Session, at: datetime) -> Families:
    """Jobs that a worker could claim now: what workers are scaled by."""
    queued = GaugeMetricFamily(
        "scrimp_queued_jobs", "Jobs that a worker could claim now: scale by it.", labels=["device"]
    )
    oldest = GaugeMetricFamily("scrimp_queue_oldest_seconds", "Age of the oldest queued job.", labels=["device"])
    for device, needs in (("cpu", ~NEEDS_GPU), ("cuda", NEEDS_GPU)):
        count, first = session.execute(select(func.count(), func.min(Job.created_at)).where(*CLAIMABLE, needs)).one()
        queued.add_metric([device], count)
        oldest.add_metric([device], _age(first, at))
    yield from (queued, oldest)


BY_STATUS = select(Attempt.status, func.count()).group_by(Attempt.status)


def _attempts(session: Session) -> Families:
    ended = CounterMetricFamily("scrimp_attempts", "Ended attempts by outcome.", labels=["outcome"])
    counts = Counter(dict.fromkeys(("succeeded", "failed", "cancelled", "paused", "lost", "crashed"), 0))
    rows = [(status, count) for status, count in session.execute(BY_STATUS)]
    rows += [(status, int(count)) for (status,), count in measures.series_of(session, measures.SHORTENED_ATTEMPTS, 100)]
    for status, count in rows:
        counts["lost" if status == "lapsed" else status] += count
    claims = CounterMetricFamily("scrimp_claims", "Claims of jobs by workers.", value=sum(counts.values()))
    running = counts.pop("running", 0)
    for outcome, count in sorted(counts.items()):
        ended.add_metric([outcome], count)
    yield from (ended, claims)
    yield GaugeMetricFamily("scrimp_attempts_running", "Attempts that have not ended.", value=running)
    yield CounterMetricFamily(
        "scrimp_lease_losses", "Attempts whose lease ran out or was given back.", value=counts["lost"]
    )


def _keys(session: Session) -> Families:
    """What keys have queued, run and ran: of each the MOST_KEYS keys with the most."""
    jobs = GaugeMetricFamily(
        "scrimp_key_jobs",
        f"Jobs and trials that wait for a worker or run: the {MOST_KEYS} keys with the most of each.",
        labels=["key", "name", "state"],
    )
    seconds = CounterMetricFamily(measures.KEY_SECONDS.name, measures.KEY_SECONDS.says, labels=["key", "name"])
    samples: list[tuple[str, str, float]] = []
    for state, condition in (("queued", Job.status == "queued"), ("running", Job.status.in_(ACTIVE))):
        count = func.count()
        # SQLite would read all jobs in an index's order to group by the plain column.
        owner = Job.key_id.concat("")
        of_keys = select(owner, count).where(Job.finished_at.is_(None), condition, Job.study.is_(None)).group_by(owner)
        rows = session.execute(of_keys.order_by(count.desc(), owner).limit(MOST_KEYS))
        samples += [(key, state, number) for key, number in rows]
    ran = [(labels[0], value) for labels, value in measures.series_of(session, measures.KEY_SECONDS, MOST_KEYS)]
    labels = {each[0] for each in (*samples, *ran)}
    names = {row[0]: row[1] for row in session.execute(select(ApiKey.id, ApiKey.name).where(ApiKey.id.in_(labels)))}
    for key, state, number in samples:
        jobs.add_metric([key, names[key], state], number)
    for key, value in ran:
        seconds.add_metric([key, names[key]], value)
    yield from (jobs, seconds)


def _outbox(session: Session, at: datetime) -> Families:
    rows = GaugeMetricFamily("scrimp_outbox_rows", "Tasks that wait for the relay.", labels=["topic"])
    oldest = GaugeMetricFamily("scrimp_outbox_oldest_seconds", "Age of the oldest task.", labels=["topic"])
    counts = {
        topic: (count, first)
        for topic, count, first in session.execute(
            select(Outbox.topic, func.count(), func.min(Outbox.created_at)).group_by(Outbox.topic)
        )
    }
    for topic in ("notify", "certificate", "discard"):
        count, first = counts.get(topic, (0, None))
        rows.add_metric([topic], count)
        oldest.add_metric([topic], _age(first, at))
    yield from (rows, oldest)


def _webhooks(session: Session) -> Families:
    yield _by(session, "scrimp_webhook_deliveries", "Messages that are kept, by status.", WebhookDelivery.status)
    state = GaugeMetricFamily("scrimp_webhooks", "Webhooks by state.", labels=["state"])
    failing = Webhook.failing_since.is_not(None)
    for name, condition in (
        ("working", Webhook.enabled & ~failing),
        ("failing", Webhook.enabled & failing),
        ("disabled", ~Webhook.enabled),
    ):
        state.add_metric([name], session.scalar(select(func.count()).select_from(Webhook).where(condition)) or 0)
    yield state


def _by(
    session: Session, name: str, says: str, column: InstrumentedAttribute[str], among: ColumnElement[bool] | None = None
) -> GaugeMetricFamily:
    """A gauge with the number of rows by one of their columns; `among`: of those that it is true of."""
    family = GaugeMetricFamily(name, says, labels=[column.key])
    rows = select(column, func.count()).group_by(column)
    for value, count in session.execute(rows if among is None else rows.where(among)):
        family.add_metric([value], count)
    return family


def _age(first: datetime | None, at: datetime) -> float:
    return 0.0 if first is None else max(0.0, (at - first).total_seconds())


class MeasuresCollector(Collector):
    """What all processes counted together. This process adds its own counts first; others' are at most
    app.lifecycle.measures.FLUSH_S old."""

    def __init__(self, db: Database, mine: Measures) -> None:
        self.db, self.mine = db, mine

    def collect(self) -> Families:
        """One family for each metric, also if nothing was counted."""
        self.mine.flush()
        with self.db.read() as session:
            totals = measures.totals(session)
        for metric in METRICS.values():
            series = {labels: value for (name, labels), value in totals.items() if name == metric.name}
            if metric.kind == "histogram":
                yield _histogram(metric, series)
                continue
            family = (CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily)(
                metric.name, metric.says, labels=metric.labels
            )
            for labels, value in sorted(series.items() if metric.labels else ({(): 0.0} | series).items()):
                family.add_metric(labels, value)
            yield family


def _histogram(metric: measures.Metric, series: dict[measures.Labels, float]) -> HistogramMetricFamily:
    family = HistogramMetricFamily(metric.name, metric.says, labels=metric.labels)
    for labels in sorted({each[:-1] for each in series}):
        buckets, total = list[tuple[str, float]](), 0.0
        for index, bound in enumerate([*BOUNDS, float("inf")]):
            total += series.get((*labels, str(index)), 0.0)
            buckets.append(("+Inf" if bound == float("inf") else str(bound), total))
        family.add_metric(labels, buckets, sum_value=series.get((*labels, SUM), 0.0))
    return family
