"""The kinds of events of a job's log, and the names of the tasks."""

from __future__ import annotations

from typing import Literal

# The only Celery task. Its message carries the id of a job or of a prediction and nothing else: the queue is the
# database.
RUN_JOB = "scrimp.run_job"

# What each of them says is a document: app.lifecycle.job_events.
EventType = Literal[
    "queued",
    "attempt_started",
    "ready",
    "progress",
    "metric",
    "replay_mismatch",
    "cancel_requested",
    "pause_requested",
    "paused",  # on no worker until it is resumed; its hold stays
    "resumed",
    "audited",
    "ranks",
    "attempt_lost",
    "succeeded",
    "cancelled",
    "failed",
    "certificate_issued",
    # Events of a study.
    "trial_queued",
    "trial_ended",
    "decided",
]

FINAL = ("succeeded", "cancelled", "failed")

# The job events that webhooks announce, and the names under which they do.
ANNOUNCED: dict[EventType, str] = {
    "queued": "job.queued",
    "attempt_started": "job.started",
    "succeeded": "job.succeeded",
    "failed": "job.failed",
    "cancelled": "job.cancelled",
    "certificate_issued": "job.certificate_issued",
}
# Events of requests for a budget, for the data set's owner and admins, and for the key that asked.
BudgetEvent = Literal["budget.requested", "budget.approved", "budget.denied"]
WebhookEventType = Literal[
    "job.queued",
    "job.started",
    "job.succeeded",
    "job.failed",
    "job.cancelled",
    "job.certificate_issued",
    "ledger.checkpoint",
    "budget.requested",
    "budget.approved",
    "budget.denied",
    "budget.threshold",
]
CHECKPOINT = "ledger.checkpoint"
THRESHOLD = "budget.threshold"  # of a cap, for whoever sees the balances; of a budget, for owner, admins and its keys
WEBHOOK_TEST = "webhook.test"
