"""`scrimp.Client`: the REST contract as typed calls. Light: it imports httpx and pydantic, never torch.

client = scrimp.Client("http://127.0.0.1:8100", key)
dataset = client.create_dataset(spec, Path("reviews.csv"))
job = client.wait_for(client.submit(job_spec))
print(job.metrics["accuracy"].value, "±", job.metrics["accuracy"].std)
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote

import httpx

from scrimp import uploading
from scrimp.errors import (
    ApiError,
    Conflict,
    NotFound,
    PredictionFailed,
    ScrimpError,
    ServiceUnreachable,
    WaitTimeout,
    error_of,
)
from scrimp.models import (
    AuditEntry,
    AuditVerification,
    CheckedDataset,
    Dataset,
    Event,
    Forecast,
    Grant,
    Job,
    Key,
    Ledger,
    LedgerEntry,
    MetricPoint,
    NewKey,
    Optimizer,
    Quote,
    RedeclaredDataset,
    RegisteredDataset,
    Resource,
    SignedCertificate,
    SigningKey,
    Sweep,
    Trials,
    Upload,
    Verification,
)
from scrimp.presets import fitted

DEFAULT_URL = "http://127.0.0.1:8100"
PAGE = 100
POLL_S = 0.25

R = TypeVar("R", bound=Resource)


class Client:
    """A client of one service, with one key. Safe to share between threads; close it, or use it in a `with`.

    Args:
        base_url: where the service listens.
        key: an API key, sent as a bearer token.
        timeout_s: how long one call may take; uploads and pricing take longest.
    """

    def __init__(self, base_url: str = DEFAULT_URL, key: str | None = None, *, timeout_s: float = 60.0) -> None:
        headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        # A key is sent only to the given address: no redirects, no proxy from the environment.
        self._http = httpx.Client(base_url=base_url, headers=headers, timeout=timeout_s, trust_env=False)
        self.base_url = base_url

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    # Data sets

    def create_dataset(
        self, spec: Mapping[str, Any], file: Path | None = None, holdout_file: Path | None = None
    ) -> RegisteredDataset:
        """Registers a data set: with its file, streamed from disk, or by the spec's `upload` (see `upload`) or `path`
        under the service's data root.

        Returns:
            the data set, with its new ledger. `content_sha256`, `read` and `warnings` (data-dependent) are shown to its
            owner alone.
        """
        return RegisteredDataset.model_validate(self._sent("/v1/datasets", spec, file, holdout_file))

    def check_dataset(
        self, spec: Mapping[str, Any], file: Path | None = None, holdout_file: Path | None = None
    ) -> CheckedDataset:
        """Checks a data set like `create_dataset`; the service stores nothing."""
        return CheckedDataset.model_validate(self._sent("/v1/datasets/check", spec, file, holdout_file))

    def _sent(self, path: str, spec: Mapping[str, Any], file: Path | None, holdout_file: Path | None) -> Any:
        if file is None and holdout_file is None:
            return self._json("POST", path, json=dict(spec), timeout=600.0)
        with ExitStack() as stack:
            parts: dict[str, Any] = {"spec": (None, json.dumps(dict(spec)), "application/json")}
            for field, each in (("file", file), ("holdout_file", holdout_file)):
                if each is not None:
                    parts[field] = (each.name, stack.enter_context(each.open("rb")), "application/octet-stream")
            # Parsing and hashing happen before the response: no time limit but the service's.
            return self._json("POST", path, files=parts, timeout=600.0)

    def upload(self, file: Path, progress: Callable[[int, int], object] | None = None) -> Upload:
        """Uploads a large file in pieces; name its `id` as `upload` in a declaration without a file.

        Goes on where it stopped, after connection errors and when it is called again for the same file.

        Args:
            progress: called with the bytes that are sent and those of the whole file.
        """
        return uploading.upload(self._json, self.base_url, file, progress)

    def datasets(self) -> Iterator[Dataset]:
        """Yields the data sets that this key may see, newest first."""
        return self._pages("/v1/datasets", Dataset)

    def dataset(self, name_or_id: str) -> Dataset:
        """Finds one data set by its name or id; raises NotFound if there is none."""
        try:
            return Dataset.model_validate(self._json("GET", _dataset(name_or_id)))
        except NotFound as error:
            detail = f"there is no data set {name_or_id!r}, or this key may not see it"
            raise NotFound(error.problem | {"detail": detail}) from None

    def delete_content(self, dataset: str) -> Dataset:
        """Deletes a data set's content, for good. Its ledger stays; the content cannot be registered again."""
        return Dataset.model_validate(self._json("DELETE", f"{_dataset(dataset)}/content"))

    def retire_dataset(self, dataset: str) -> Dataset:
        """Takes back, for good, a data set that nothing was ever held on. Its content can be registered anew."""
        return Dataset.model_validate(self._json("POST", f"{_dataset(dataset)}/retire"))

    def redeclare_dataset(self, dataset: str, changes: Mapping[str, Any]) -> RedeclaredDataset:
        """Declares records, classes, scale or ranges anew; jobs keep the version that they were priced with.

        Args:
            changes: `records`, `classes`, `scale`, `ranges`; with `dry_run` nothing changes.
        """
        return RedeclaredDataset.model_validate(
            self._json("POST", f"{_dataset(dataset)}/declarations", json=dict(changes))
        )

    def grants(self, dataset: str) -> Iterator[Grant]:
        """Lists the keys that may see a data set or train on it. For its owner and admins."""
        return self._pages(f"{_dataset(dataset)}/grants", Grant)

    def set_grant(
        self, dataset: str, key_id: str, access: str = "train", max_epsilon_per_job: float | None = None
    ) -> Grant:
        """Grants a key access to a data set; replaces its earlier grant.

        Args:
            access: `view` or `train`.
            max_epsilon_per_job: the largest ε of one job of this key; None: the cap alone.
        """
        body = {"access": access, "max_epsilon_per_job": max_epsilon_per_job}
        return Grant.model_validate(self._json("PUT", f"{_dataset(dataset)}/grants/{in_path(key_id)}", json=body))

    def remove_grant(self, dataset: str, key_id: str) -> None:
        """Ends a grant, at once. Jobs that were admitted under it continue."""
        self._json("DELETE", f"{_dataset(dataset)}/grants/{in_path(key_id)}")

    # The ledger

    def ledger(self, dataset: str) -> Ledger:
        """Shows a data set's ledger: cap, balances, and other accountants' figures."""
        return Ledger.model_validate(self._json("GET", f"{_dataset(dataset)}/ledger"))

    def forecast(self, dataset: str, spec: Mapping[str, Any]) -> Forecast:
        """How many jobs of this spec still fit the data set's budget, exactly. Free; nothing is written."""
        return Forecast.model_validate(self._json("POST", f"{_dataset(dataset)}/ledger/forecast", json=dict(spec)))

    def ledger_entries(self, dataset: str, job: str | None = None) -> Iterator[LedgerEntry]:
        """Yields a ledger's entries, oldest first; `job` selects one job's."""
        return self._pages(f"{_dataset(dataset)}/ledger/entries", LedgerEntry, job=job)

    def verify_ledger(self, dataset: str) -> Verification:
        """Makes the service recompute hash chain and balances. Compare the head with one kept elsewhere."""
        return Verification.model_validate(self._json("GET", f"{_dataset(dataset)}/ledger/verify"))

    # The catalogue

    def optimizers(self) -> Iterator[Optimizer]:
        """Lists the optimizers that a job can name."""
        return self._pages("/v1/optimizers", Optimizer)

    # Jobs

    def quote(self, spec: Mapping[str, Any]) -> Quote:
        """Prices a job. Free; nothing is written."""
        return Quote.model_validate(self._json("POST", "/v1/quotes", json=dict(spec)))

    def sweep(
        self,
        spec: Mapping[str, Any],
        total_epsilon: Sequence[float] | None = None,
        levels: Sequence[Sequence[float]] | None = None,
        runs_per_level: Sequence[int] | None = None,
    ) -> Sweep:
        """Shows what each combination leaves for a study's final trial. Free; nothing is written.

        Args:
            spec: a JobSpec whose `hpo` is `linear_scaling`; lists that are left out take its values.
        """
        lists = {"total_epsilon": total_epsilon, "levels": levels, "runs_per_level": runs_per_level}
        body = {"spec": dict(spec)} | {name: list(value) for name, value in lists.items() if value}
        return Sweep.model_validate(self._json("POST", "/v1/quotes/sweep", json=body))

    def submit(self, spec: Mapping[str, Any], idempotency_key: str | None = None) -> Job:
        """Submits a job and holds its whole cost.

        Args:
            spec: a JobSpec; its `dataset` may be a name.
            idempotency_key: the same key with the same spec returns the same job; random if not given.

        Raises:
            BudgetRefused: it does not fit; nothing was charged.
        """
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return Job.model_validate(self._json("POST", "/v1/jobs", json=dict(spec), headers=headers))

    def jobs(
        self, dataset: str | None = None, status: str | None = None, *, q: str | None = None, sort: str | None = None
    ) -> Iterator[Job]:
        """Yields jobs, newest first; fetches each page on demand.

        Args:
            q: a part of a name, or the beginning of an id.
            sort: `newest`, `oldest` or `name`.
        """
        return self._pages("/v1/jobs", Job, dataset=dataset, status=status, q=q, sort=sort)

    def job(self, job_id: str) -> Job:
        """Shows one job."""
        return Job.model_validate(self._json("GET", f"/v1/jobs/{job_id}"))

    def cancel(self, job_id: str) -> Job:
        """Stops a job. What was started stays charged; the rest returns to the budget."""
        return Job.model_validate(self._json("POST", f"/v1/jobs/{job_id}/cancel"))

    def delete_artifacts(self, job_id: str) -> Job:
        """Deletes a finished job's model files. Its certificate stays, and the spent budget stays spent."""
        return Job.model_validate(self._json("DELETE", f"/v1/jobs/{job_id}/artifacts"))

    def events(self, job_id: str) -> Iterator[Event]:
        """Yields a job's events, oldest first."""
        return self._pages(f"/v1/jobs/{job_id}/events", Event)

    def metrics(self, job_id: str) -> list[MetricPoint]:
        """Every released number of a job, by step."""
        return list(self._pages(f"/v1/jobs/{job_id}/metrics", MetricPoint))

    def preset(self, name: str, dataset: str | None = None) -> dict[str, Any]:
        """A preset's JobSpec, which lacks `dataset` and `privacy`.

        Args:
            dataset: a data set that its evaluation shall suit: on the hold-out if it has one, with readable noise.

        Raises:
            ScrimpError: there is no preset with this name.
            NotFound: there is no such data set.
        """
        found = {each["name"]: each["spec"] for each in self._json("GET", "/v1/presets")["items"]}
        if name not in found:
            raise ScrimpError(f"there is no preset {name!r}; choose one of {', '.join(found)}")
        spec: dict[str, Any] = found[name]
        return spec if dataset is None else fitted(spec, self.dataset(dataset))

    def trials(self, job_id: str) -> Trials:
        """The trials of a study, with their points and noisy scores, and how the final trial was chosen."""
        return Trials.model_validate(self._json("GET", f"/v1/jobs/{job_id}/trials"))

    def wait_for(
        self, job: Job | str, timeout_s: float = 600.0, on_progress: Callable[[Job], None] | None = None
    ) -> Job:
        """Polls until the job has ended.

        Raises:
            WaitTimeout: it had not ended by the deadline. It continues.
        """
        job_id = job if isinstance(job, str) else job.id
        deadline = time.monotonic() + timeout_s
        while True:
            current = self.job(job_id)
            if on_progress is not None:
                on_progress(current)
            if current.done:
                return current
            if time.monotonic() >= deadline:
                raise WaitTimeout(f"{job_id} is still {current.status} after {timeout_s:g} s; it continues")
            time.sleep(POLL_S)

    def download(self, job_id: str, name: str, to: Path) -> Path:
        """Downloads an artifact, streamed; the file appears at `to` once its SHA-256 matches the recorded one."""
        record = {a.name: a for a in self.job(job_id).artifacts}.get(name)
        if record is None:
            raise NotFound({"status": 404, "title": "Not found", "detail": f"{job_id} has no artifact named {name!r}"})
        part = to.with_name(to.name + ".part")
        digest = hashlib.sha256()
        with self._sending(), self._http.stream("GET", f"/v1/jobs/{job_id}/artifacts/{name}") as response:
            if response.is_error:
                response.read()
                raise _refusal(response)
            with part.open("wb") as out:
                for chunk in response.iter_bytes():
                    digest.update(chunk)
                    out.write(chunk)
        if digest.hexdigest() != record.sha256:
            part.unlink()
            raise ScrimpError(
                f"{name} of {job_id} arrived damaged: its SHA-256 differs from the recorded one; download it again"
            )
        return part.replace(to)

    def certificate(self, job_id: str, timeout_s: float = 15.0) -> SignedCertificate:
        """The signed certificate of a finished job. It is issued a moment after the job's end; this waits for it."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return SignedCertificate.model_validate(self._json("GET", f"/v1/jobs/{job_id}/certificate"))
            except Conflict as pending:
                if pending.code != "certificate-pending" or time.monotonic() >= deadline:
                    raise
            time.sleep(POLL_S)

    def predict(
        self, job_id: str, records: list[Any], *, top: int = 10, timeout: float = 120.0
    ) -> list[dict[str, Any]]:
        """Runs a job's model on your own records; returns one answer for each.

        Args:
            records: in the data set's form: dicts for columns and tables, lists of numbers for arrays, texts, dicts
                with user and item for ratings, lists of items' ids for next items.
            top: how many classes, items or next tokens to return for each.
            timeout: the most seconds to wait.

        Raises:
            PredictionFailed: there is no answer, and will be none.
            WaitTimeout: there was none within the time.
        """
        path = f"/v1/jobs/{in_path(job_id)}"
        asked = self._json("POST", f"{path}/predict", json={"records": records, "top": top})
        deadline = time.monotonic() + timeout
        while True:
            found = self._json("GET", f"{path}/predictions/{asked['id']}")
            if found["status"] == "succeeded":
                answers: list[dict[str, Any]] = found["predictions"]
                return answers
            if found["status"] == "failed":
                raise PredictionFailed(found["failure"]["message"])
            if time.monotonic() >= deadline:
                raise WaitTimeout(f"the prediction is still {found['status']} after {timeout:g} s")
            time.sleep(POLL_S)

    def signing_keys(self) -> Iterator[SigningKey]:
        """Lists the keys that sign or signed certificates, the newest first. Keep the key that you trust outside."""
        return self._pages("/v1/signing-keys", SigningKey)

    # Keys

    def create_key(
        self,
        name: str,
        role: str,
        *,
        expires_at: datetime | None = None,
        requests_per_minute: int | None = None,
        max_queued_jobs: int | None = None,
        max_running_jobs: int | None = None,
        max_job_s: int | None = None,
    ) -> NewKey:
        """Creates a key; its token is in this response and nowhere else.

        Args:
            expires_at: with its zone; None: never.
            requests_per_minute, max_queued_jobs: None: the service's settings apply.
            max_running_jobs: None: as many as there are workers.
            max_job_s: how long one of its jobs may run; None: the service's settings apply.
        """
        body = {
            "name": name,
            "role": role,
            "expires_at": None if expires_at is None else expires_at.isoformat(),
            "requests_per_minute": requests_per_minute,
            "max_queued_jobs": max_queued_jobs,
            "max_running_jobs": max_running_jobs,
            "max_job_s": max_job_s,
        }
        return NewKey.model_validate(self._json("POST", "/v1/keys", json=body))

    def own_key(self) -> Key:
        """Shows the key that this client sends."""
        return Key.model_validate(self._json("GET", "/v1/keys/self"))

    def rotate_key(self, key_id: str | None = None, overlap_s: int = 0) -> NewKey:
        """Gives a key a new token; its grants and jobs stay. This client keeps using its own token.

        Args:
            key_id: None: the key that this client sends.
            overlap_s: how long the old token still works.
        """
        path = f"/v1/keys/{in_path(key_id or self.own_key().id)}/rotate"
        return NewKey.model_validate(self._json("POST", path, json={"overlap_s": overlap_s}))

    def keys(self) -> Iterator[Key]:
        """Yields every key. For admins."""
        return self._pages("/v1/keys", Key)

    def revoke_key(self, key_id: str) -> Key:
        """Revokes a key, at once and for good. For admins."""
        return Key.model_validate(self._json("DELETE", f"/v1/keys/{key_id}"))

    # The audit log

    def audit(
        self, *, key: str | None = None, action: str | None = None, target: str | None = None, since: int | None = None
    ) -> Iterator[AuditEntry]:
        """Yields who did what, newest first; with `since` the sealed entries after that `seq`, oldest first. For
        admins."""
        return self._pages("/v1/audit", AuditEntry, key=key, action=action, target=target, since=since)

    def verify_audit(self) -> AuditVerification:
        """Makes the service recompute the log's hash chain. Compare the head with one kept elsewhere."""
        return AuditVerification.model_validate(self._json("GET", "/v1/audit/verify"))

    # The wire

    def _pages(self, path: str, resource: type[R], **filters: Any) -> Iterator[R]:
        params: dict[str, Any] = {"limit": PAGE} | {k: v for k, v in filters.items() if v is not None}
        while True:
            page = self._json("GET", path, params=params)
            yield from map(resource.model_validate, page["items"])
            if page.get("next") is None:
                return
            params["after"] = page["next"]

    def _json(self, method: str, path: str, **arguments: Any) -> Any:
        with self._sending():
            response = self._http.request(method, path, **arguments)
        if response.is_error:
            raise _refusal(response)
        return response.json() if response.content else None

    @contextmanager
    def _sending(self) -> Iterator[None]:
        """Turns transport errors into one sentence with the address."""
        try:
            yield
        except httpx.ConnectError as error:
            raise ServiceUnreachable(f"no service answers at {self.base_url}: is `scrimp serve` running?") from error
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise ServiceUnreachable(
                f"the call to {self.base_url} was interrupted: {str(error) or type(error).__name__}"
            ) from error


def in_path(name: str) -> str:
    """Quotes a name as one segment of a path, whatever it holds."""
    return quote(name, safe="")


def _dataset(name_or_id: str) -> str:
    return f"/v1/datasets/{in_path(name_or_id)}"


def _refusal(response: httpx.Response) -> ApiError:
    if "json" in response.headers.get("content-type", ""):
        problem = response.json()
        if isinstance(problem, dict):
            return error_of({"status": response.status_code} | problem)
    return error_of(
        {"status": response.status_code, "title": response.reason_phrase or "Refused", "detail": response.text[:300]}
    )
