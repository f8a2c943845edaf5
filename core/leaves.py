"""Why a caller may see what an answer shows: its price, or the reason why it is free.

A route declares one reason (`app.web.route_operation`). It holds for all that its answer shows, unless a class
(decorated) or a member (`Annotated[int, TIMES]`) declares its own. If one member of a class declares its own, each
does, so that a new one has to be thought about. docs/leaves.md's table is written from these declarations
(`scripts.write_leaves`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic_core import CoreSchema

KEY = "x-leaves"  # in JSON schemas
C = TypeVar("C", bound=type[BaseModel])


@dataclass(frozen=True)
class Leaves:
    """A reason.

    Attributes:
        name: in the OpenAPI document.
        reason: as docs/leaves.md says it.
        others: what it also holds for that is in no schema: events, failures, warnings, problems, headers, metrics and
            members of certificates, as `event:metric`.
    """

    name: str
    reason: str
    others: str = ""

    def __call__(self, of: C) -> C:
        """Declares it of all members of a class."""
        of.model_config["json_schema_extra"] = {KEY: self.name}
        return of

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), KEY: self.name}


SCORES = Leaves(
    "scores",
    "**charged**: noisy sums, [their mechanisms](theorems.md#mechanisms-and-their-sensitivities); on public data, and "
    "on a public hold-out, exact and free",
    "event:metric",
)
SCORE_NAMES = Leaves(
    "score-names",
    "planned; the score's existence shows that its steps were done",
)
WEIGHTS = Leaves(
    "weights",
    "**charged**: the weights and functions of them, and the mean of a study with its first trial; answers of "
    "statistics, and synthetic rows with `utility.json`, which follow from one release of noisy sums. Their header and "
    "the model card copy released scores and the planned ε",
    "problem:egress-pending header:ETag header:Digest-SHA256",
)
FILES = Leaves(
    "files",
    "planned: the model's shapes, in a fixed file layout; the length of released numbers and rows as text",
    "header:Content-Disposition",
)
CANARIES = Leaves(
    "canaries",
    "post-processing: a function of the released canaries, of public coins and of the plan "
    "([proof](theorems.md#an-audited-job))",
    "event:audited certificate:audit",
)
RANKS = Leaves(
    "ranks",
    "on public data alone: a rank's memory depends on its records",
    "event:ranks",
)
ENDS = Leaves(
    "ends",
    "a failure may depend on private data, so the whole hold is spent. A crashed process is shown as lost",
    "event:succeeded event:failed event:cancelled event:paused",
)
FAILURES = Leaves(
    "failures",
    "a closed set. No record can cause any of them except `internal` (`app/lifecycle/failures.py`). `model-unfit` "
    "names the module of a public model that the check on random records refused, before any record was read. "
    "`model-too-large` says that the "
    "memory of the attempt did not hold the model and a pass of random records, before that attempt read a record; "
    "`data-too-large` that it did not hold as many records as are declared, of the declared size. "
    "`storage` says that a file was not written, whose size is public or follows from released, paid numbers. "
    "`trial-failed` says that a trial failed. `time-limit` says that the job had not ended at a whole second that "
    "was known before, which its times show too; its whole hold is spent, even before the first step. Admins see "
    "the cause in log, metrics and audit log",
    "failure:data-damaged failure:extractor-missing failure:extractor-former failure:model-missing "
    "failure:model-unfit failure:model-too-large failure:data-too-large failure:storage failure:numerics "
    "failure:superseded "
    "failure:time-limit failure:trial-failed failure:internal",
)
REPLAYS = Leaves(
    "replays",
    'a closed set: a replay that was not identical after a crash, and its repeated charge; the machine. "did not '
    'learn", and "as good as always answering" the larger class, are post-processing of the last released scores '
    "(`app/lifecycle/learning.py`, `core/privacy/larger_class.py`)",
    "warning:steps-short warning:evaluation-skipped",
)
NOT_FINITE = Leaves(
    "not-finite",
    "post-processing of the released weights, or of exact scores on public data",
    "warning:parameters-not-finite warning:metric-not-finite",
)
WORKERS = Leaves(
    "workers",
    "workers come and go. A replay on other hardware differs for any data, and is charged again",
    "event:attempt_started event:attempt_lost event:replay_mismatch",
)
TIMES = Leaves(
    "times",
    "whole seconds. Not charged: the duration of loading depends on the number of records, that of steps on "
    "public numbers and on content, see [what is not "
    "covered](duties.md#what-is-not-covered). `ready` names the pids of the attempt's "
    "ranks",
    "event:ready",
)
PROGRESS = Leaves(
    "progress",
    "written at whole seconds, a block of steps at once (under Poisson sampling at least ten). Not charged, like "
    "the duration",
    "event:progress",
)
ASKED = Leaves(
    "asked",
    "asked, planned, or an action of a caller. The number of events follows from the other rows",
    "event:queued event:cancel_requested event:pause_requested event:resumed header:Idempotent-Replayed "
    "header:Location",
)
EPSILON = Leaves(
    "epsilon",
    "planned: 0 before a worker has the job, and for a job that ended before its first private step; otherwise "
    "all of it. Never a function of the stopping time",
)
ELSEWHERE = Leaves(
    "elsewhere",
    "the other rows, in pages",
)
TRIALS = Leaves(
    "trials",
    "public draws, and planned; for the final run post-processing of charged scores",
    "event:trial_queued",
)
TRIAL_SCORES = Leaves(
    "trial-scores",
    "**charged**, or post-processing of charged scores",
    "event:decided",
)
TRIAL_CHARGES = Leaves(
    "trial-charges",
    "like the charge and the status of a job",
    "event:trial_ended",
)
SPENDING = Leaves(
    "spending",
    "planned, and the steps that had started at the whole second when a caller cancelled or a worker was lost. An "
    "attempt's own failure spends the whole hold",
    "metric:scrimp_ledger_units metric:scrimp_ledger_share",
)
DECLARED_CAPS = Leaves(
    "declared-caps",
    "declared; actions of owners and admins",
)
BLOCKS = Leaves(
    "blocks",
    "as the ledger's other figures, for each block",
)
COMPARISONS = Leaves(
    "comparisons",
    "functions of settled charges and of plans",
)
ENTRIES = Leaves(
    "entries",
    "functions of entries; times are whole seconds or the time of the daily check",
    "problem:head-pending metric:scrimp_ledger_valid metric:scrimp_ledger_checked_timestamp_seconds",
)
RESTORED = Leaves(
    "restored",
    "shows that a backup was restored: a function of entries, balances and job ids that were shown before. At a "
    "registration: of the owner's own content",
    "problem:ledger-behind metric:scrimp_ledger_behind",
)
WHAT_FITS = Leaves(
    "what-fits",
    "functions of the ledger's figures, which are shown anyway, and of the request",
    "problem:budget-exceeded problem:policy-exceeded problem:cap-too-low",
)
PLANNED = Leaves(
    "planned",
    "planned, from public numbers",
)
DURATION = Leaves(
    "duration",
    "a function of the visible durations of similar jobs. Not charged, like these",
)
QUEUE = Leaves(
    "queue",
    "how many jobs are claimed before: who waits, since when and by what weight, of all keys in sum; the time is "
    "a function of durations that the caller sees",
)
DECLARED = Leaves(
    "declared",
    "declared; the width of an array, and the number of records of a public hold-out or of public data",
    "certificate:governance",
)
OWNERS_ACTIONS = Leaves(
    "owners-actions",
    "actions of owners, and the operator's retention settings",
    "problem:content-deleted",
)
KEYED_HASH = Leaves(
    "keyed-hash",
    "keyed by a secret and by the data set: without the key it reveals nothing, even beside another registration "
    "of the same content",
)
FOR_OWNER = Leaves(
    "for-owner",
    "**private, and not charged**: `content_sha256` and how far a file is read are shown to the owner and admins, "
    "who have the data; counts, warnings, the suggested number of records and why a file was rejected to the "
    "owner alone (`ForOwner`; `POST …/check` answers the caller who sent the file). Of a file that is read in the "
    "background they are stored for a day; of its wrong rows number, column and reason are stored, never a value "
    "of a cell. Before it is ready, no other key sees the data set or how long its file is read",
    "problem:not-ready",
)
OWN_FAULTS = Leaves(
    "own-faults",
    "asked; at a registration, errors of the caller's own file, with up to ten wrong cells: row, column and "
    "value, to this caller alone; neither logs nor audit have them",
    "problem:invalid-request",
)
OWN_CONTENT = Leaves(
    "own-content",
    "the owner's own content, and how many units a block's file shares with others: told to the owner alone, and "
    "nothing else shows that the file was sent, except to admins that a large block is read in the background: "
    "who then finds neither the block nor its withdrawal knows that it was refused (the operator is trusted); "
    "names and labels are public",
    "problem:duplicate-content problem:duplicate-name problem:duplicate-label",
)
SETTLED = Leaves(
    "settled",
    "as above: charged, or a function of the plan and of the steps that had started",
    "certificate:released certificate:model_sha256 certificate:answers_sha256 certificate:rows_sha256 "
    "certificate:steps certificate:charge certificate:status certificate:warnings certificate:ledger certificate:study",
)
NUMERICS = Leaves(
    "numerics",
    "the worker's machine, the plan, and a self-test on random inputs",
    "certificate:numerics certificate:environment warning:one-record-passes",
)
CERTIFIED = Leaves(
    "certified",
    "declared or planned; `issued_at` is the relay's time after the job's end",
    "certificate:version certificate:certificate_id certificate:job certificate:dataset "
    "certificate:side_information certificate:unit certificate:relation certificate:mechanism certificate:events "
    "certificate:sampling certificate:noise_multiplier certificate:gradient_noise_multiplier "
    "certificate:max_grad_norm certificate:records_per_unit certificate:expected_batch_size "
    "certificate:accountant certificate:epsilon certificate:resolved certificate:filter certificate:cap "
    "certificate:code_version certificate:threat_model certificate:assumptions certificate:composition "
    "certificate:profile certificate:graph_sha256 certificate:issued_at event:certificate_issued "
    "problem:certificate-pending",
)
SHARES = Leaves(
    "shares",
    "asked, and parts of the ledger's figures",
    "problem:budget-too-low problem:precondition-failed problem:precondition-required",
)
CLAIMS = Leaves(
    "claims",
    "asked: what another system states of its mechanism, and its cost by the filter",
)
UPLOADS = Leaves(
    "uploads",
    "the size of the caller's own file, for the key that began the upload",
    "header:Upload-Offset header:Upload-Length problem:wrong-offset problem:upload-busy",
)
PREDICTIONS = Leaves(
    "predictions",
    "post-processing of a released model, on the caller's own inputs",
)
FLEET = Leaves(
    "fleet",
    "which processes are alive, and statuses of jobs that the caller may see anyway. Heartbeats follow the clock, "
    "and clocks are compared to a tenth of a second. The kernel's features, the machine's memory, names of the "
    "service's parts; a nearly full storage is full for all callers",
    "metric:scrimp_jobs metric:scrimp_clock_skew_seconds problem:wrong-state",
)
WEBHOOKS = Leaves(
    "webhooks",
    "asked, and the answers of the caller's own receiver. Messages follow their events and state their times",
)
FOR_ADMINS = Leaves(
    "for-admins",
    "for admins: actions of callers; audits by canaries that contradict their job (post-processing of released "
    "files); causes of failures, and how processes of attempts ended (not charged: the operator is trusted); use "
    "of the API, and counts and ages of what waits for all data sets together",
    "metric:scrimp_job_failures metric:scrimp_http_requests metric:scrimp_http_request_seconds "
    "metric:scrimp_predictions metric:scrimp_readings metric:scrimp_uploads_open metric:scrimp_workers "
    "metric:scrimp_queued_jobs metric:scrimp_queue_oldest_seconds metric:scrimp_key_jobs "
    "metric:scrimp_key_job_seconds metric:scrimp_attempts metric:scrimp_claims metric:scrimp_attempts_running "
    "metric:scrimp_lease_losses metric:scrimp_outbox_rows metric:scrimp_outbox_oldest_seconds "
    "metric:scrimp_webhook_deliveries metric:scrimp_webhooks metric:scrimp_prices metric:scrimp_pricing_queue "
    "metric:scrimp_attempt_processes metric:scrimp_audits_exceeded",
)
NO_DATA = Leaves(
    "no-data",
    "not computed from any data",
)
USE = Leaves(
    "use",
    "use of the API; for a model the job's end, in whole seconds, not the file's time",
    "header:Retry-After header:WWW-Authenticate header:Last-Modified",
)
SERVICE = Leaves(
    "service",
    "asked, grants, use of the API, or the service's own state. No request reads private records, except a "
    "registration its own file",
    "problem:unknown-host problem:not-found problem:unauthenticated problem:forbidden "
    "problem:idempotency-key-reused problem:last-admin-key problem:too-many-jobs problem:too-many-egresses "
    "problem:too-many-predictions problem:too-many-uploads problem:quota-exceeded problem:too-many-webhooks "
    "problem:too-many-requests problem:too-slow problem:too-large problem:limit-exceeded problem:unavailable "
    "problem:storage-full problem:artifact-damaged problem:internal-error",
)

REASONS = {each.name: each for each in tuple(globals().values()) if isinstance(each, Leaves)}  # in this order
