"""The typed events of a job's log, and the names of the tasks.

Every number from private data in an event is paid for.
"""

from __future__ import annotations

from typing import Literal

# The only Celery task. Its message carries the id of a job or of a prediction and nothing else: the queue is the
# database.
RUN_JOB = "scrimp.run_job"

EventType = Literal[
    "queued",  # {charge}; for a trial of a study {number, role} too
    "attempt_started",  # {attempt, worker}
    # {device, processes: pids of its ranks, numerics, fallbacks: layers whose gradients are computed per record}
    "ready",
    "progress",  # {step, steps}
    "metric",  # {name, step, value, std, on, released_by}
    "replay_mismatch",  # {matched_step}: fresh keys from this step on
    "cancel_requested",
    "pause_requested",
    "paused",  # on no worker until it is resumed; its hold stays
    "resumed",
    "audited",  # what the canaries of an audited job show: the certificate's `audit`
    "ranks",  # {ranks: [{pid, passes, max_rss_bytes}]}: of several ranks, on public data alone
    "attempt_lost",  # {attempt}: the worker died or was stopped; the job is queued again
    "succeeded",  # {charge, steps}
    "cancelled",  # {charge, steps}
    "failed",  # {code, message, charge, steps}
    "certificate_issued",
    # Events of a study.
    "trial_queued",  # {job, number, role, level, learning_rate, steps, max_grad_norm, r}
    "trial_ended",  # {job, number, status, score}
    "decided",  # {levels, fit, r_star, fallbacks}
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
]
CHECKPOINT = "ledger.checkpoint"
WEBHOOK_TEST = "webhook.test"
