"""The typed events of a job's log, and the tasks' names. Nothing in an event is computed from private data for free."""

from __future__ import annotations

from typing import Literal

# The one Celery task: its message carries the id of a job or of a prediction, and nothing else (the database is the
# queue of record).
RUN_JOB = "scrimp.run_job"

EventType = Literal[
    "queued",  # {charge}; of a run of a study {number, role} too
    "attempt_started",  # {attempt, worker}
    "ready",  # {device, numerics, fallbacks: layers without a rule, whose gradients are formed record by record}
    "progress",  # {step, steps}
    "metric",  # {name, step, value, std, on, released_by}
    "replay_mismatch",  # {matched_step}: fresh keys from there on
    "cancel_requested",
    "attempt_lost",  # {attempt}: the worker died or was stopped; queued again
    "succeeded",  # {charge, steps}
    "cancelled",  # {charge, steps}
    "failed",  # {code, message, charge, steps}
    "certificate_issued",
    # of a study
    "trial_queued",  # {job, number, role, level, learning_rate, steps, max_grad_norm, r}
    "trial_ended",  # {job, number, status, score}
    "decided",  # {levels, fit, r_star, fallbacks}
]

FINAL = ("succeeded", "cancelled", "failed")

# What webhooks are told of, by the event of a job's log that it is.
ANNOUNCED: dict[EventType, str] = {
    "queued": "job.queued",
    "attempt_started": "job.started",
    "succeeded": "job.succeeded",
    "failed": "job.failed",
    "cancelled": "job.cancelled",
    "certificate_issued": "job.certificate_issued",
}
WebhookEventType = Literal[
    "job.queued", "job.started", "job.succeeded", "job.failed", "job.cancelled", "job.certificate_issued"
]
WEBHOOK_TEST = "webhook.test"
