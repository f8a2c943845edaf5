"""`scrimp.Client`: the REST contract as typed calls. Light: it imports httpx and pydantic, never torch.

client = scrimp.Client("http://127.0.0.1:8100", key)
dataset = client.create_dataset(spec, Path("reviews.csv"))
job = client.wait_for(client.submit(job_spec))
print(job.metrics["accuracy"].value, "±", job.metrics["accuracy"].std)
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from scrimp import uploading
from scrimp.administration import Administration
from scrimp.blocks import Blocks
from scrimp.budgets import Budgets
from scrimp.charges import Charges
from scrimp.errors import Conflict, NotFound, PredictionFailed, ScrimpError, WaitTimeout
from scrimp.job_names import telling, unused
from scrimp.jobs import JobHandle, Jobs
from scrimp.models import (
    Approval,
    CheckedDataset,
    Checkpoint,
    Dataset,
    Forecast,
    Grant,
    Graph,
    Job,
    Ledger,
    MetricPoint,
    Persons,
    Proof,
    Quote,
    RedeclaredDataset,
    RegisteredDataset,
    SignedCertificate,
    Sweep,
    Upload,
    Verification,
)
from scrimp.query import StatisticsQuery
from scrimp.reading import wait_until_read
from scrimp.spec import Spec, document
from scrimp.synthetic import SyntheticRows, spec_of, synthesized
from scrimp.wire import DEFAULT_URL, POLL_S, dataset_path, in_path

Document = Spec | Mapping[str, Any]  # a typed specification or its JSON


class Client(Administration):
    """A client of one service, with one key. Safe to share between threads; close it, or use it in a `with`.

    Args:
        base_url: where the service listens.
        key: an API key, sent as a bearer token.
        timeout_s: how long one call may take; uploads and pricing take longest.
    """

    def __init__(self, base_url: str = DEFAULT_URL, key: str | None = None, *, timeout_s: float = 60.0) -> None:
        super().__init__(base_url, key, timeout_s=timeout_s)
        self.jobs = Jobs(self)
        self.blocks = Blocks(self)
        self.charges = Charges(self)
        self.budgets = Budgets(self)

    # Data sets

    def create_dataset(
        self,
        spec: Document,
        file: Path | None = None,
        holdout_file: Path | None = None,
        *,
        edges_file: Path | None = None,
        wait: bool = True,
        progress: Callable[[int, int], object] | None = None,
    ) -> RegisteredDataset:
        """Registers a data set: with its file, streamed from disk, or by the spec's `upload` (see `upload`) or `path`
        under the service's data root.

        Args:
            holdout_file: of a public hold-out.
            edges_file: of nodes whose features declare `edges`.
            wait: for a large file, which the service reads in the background; otherwise its `state` is "reading".
            progress: called with the bytes that are read and those of the whole file, while it waits.

        Returns:
            the data set, with its new ledger. `content_sha256`, `read` and `warnings` (data-dependent) are shown to its
            owner alone.
        """
        files = {"file": file, "holdout_file": holdout_file, "edges_file": edges_file}
        dataset = RegisteredDataset.model_validate(uploading.sent(self.json, "/v1/datasets", document(spec), files))
        return wait_until_read(self, dataset, progress) if wait else dataset

    def check_dataset(
        self,
        spec: Document,
        file: Path | None = None,
        holdout_file: Path | None = None,
        *,
        edges_file: Path | None = None,
    ) -> CheckedDataset:
        """Checks a data set like `create_dataset`; the service stores nothing."""
        files = {"file": file, "holdout_file": holdout_file, "edges_file": edges_file}
        return CheckedDataset.model_validate(uploading.sent(self.json, "/v1/datasets/check", document(spec), files))

    def upload(self, file: Path, progress: Callable[[int, int], object] | None = None) -> Upload:
        """Uploads a large file in pieces; name its `id` as `upload` in a declaration without a file.

        Goes on where it stopped, after connection errors and when it is called again for the same file.

        Args:
            progress: called with the bytes that are sent and those of the whole file.
        """
        return uploading.upload(self.json, self.base_url, file, progress)

    def upload_graph(self, file: str | Path, progress: Callable[[int, int], object] | None = None) -> Graph:
        """Uploads a model of one's own that `scrimp.export_graph` wrote. Jobs of this key then name it by its content:
        `model: {"kind": "graph", "upload": graph.sha256}`.

        Args:
            progress: as `upload` takes it.
        """
        arrived = self.upload(Path(file), progress)
        return Graph.model_validate(self.json("POST", "/v1/graphs", json={"upload": arrived.id}, timeout=600.0))

    def dataset(self, name_or_id: str) -> Dataset:
        """Finds one data set by its name or id; raises NotFound if there is none."""
        try:
            return Dataset.model_validate(self.json("GET", dataset_path(name_or_id)))
        except NotFound as error:
            _, mark, meant = str(error.problem.get("detail", "")).partition(": did you mean ")
            detail = f"there is no data set {name_or_id!r}, or this key may not see it{mark}{meant}"
            raise NotFound(error.problem | {"detail": detail}) from None

    def redeclare_dataset(self, dataset: str, changes: Mapping[str, Any]) -> RedeclaredDataset:
        """Declares records, slots, classes, scale or ranges anew; jobs keep the version that they were priced with.

        Args:
            changes: `records`, `slots`, `classes`, `scale`, `ranges`; with `dry_run` nothing changes.
        """
        return RedeclaredDataset.model_validate(
            self.json("POST", f"{dataset_path(dataset)}/declarations", json=document(changes))
        )

    def set_grant(
        self,
        dataset: str,
        key_id: str,
        access: str = "train",
        max_epsilon_per_job: float | None = None,
        *,
        ends_at: date | str | None = None,
        purpose: str | None = None,
        permit: str | None = None,
        persons: Sequence[str] | None = None,
    ) -> Grant:
        """Grants a key access to a data set; replaces its earlier grant, with all its terms.

        Args:
            access: `view`, `train` or `charge`.
            max_epsilon_per_job: the largest ε of one job of this key; None: the cap alone. 0 is refused, as "" is of a
                purpose: only None leaves a term out.
            ends_at: from then on it gives nothing; a time with its zone, or a day (2026-12-31), at whose beginning in
                UTC it ends.
            purpose, permit: of every job under it.
            persons: who may use the key, by name.
        """
        terms: dict[str, Any] = {"max_epsilon_per_job": max_epsilon_per_job, "purpose": purpose, "permit": permit}
        if isinstance(ends_at, str):
            with suppress(ValueError):  # a time, which the service reads
                ends_at = date.fromisoformat(ends_at)
        if isinstance(ends_at, date) and not isinstance(ends_at, datetime):
            ends_at = datetime(ends_at.year, ends_at.month, ends_at.day, tzinfo=UTC)
        terms["ends_at"] = ends_at.isoformat() if isinstance(ends_at, datetime) else ends_at
        terms["persons"] = None if persons is None else list(persons)
        body = {"access": access} | {name: value for name, value in terms.items() if value is not None}
        return Grant.model_validate(self.json("PUT", f"{dataset_path(dataset)}/grants/{in_path(key_id)}", json=body))

    # The ledger

    def forecast(self, dataset: str, spec: Document) -> Forecast:
        """How many jobs of this spec still fit the data set's budget, exactly. Free; nothing is written."""
        path = f"{dataset_path(dataset)}/ledger/forecast"
        return Forecast.model_validate(self.json("POST", path, json=document(spec)))

    def ledger_checkpoint(self, dataset: str) -> Checkpoint:
        """A ledger's newest signed checkpoint. Keep it elsewhere: a rewritten or shortened ledger contradicts it."""
        return Checkpoint.model_validate(self.json("GET", "/v1/ledger/checkpoint", params={"dataset": dataset}))

    def statement(self, dataset: str) -> bytes:
        """The signed evidence about all that a data set's ledgers admitted, on every block, retired ones too.

        `scrimp.statement.checked` verifies its JSON.
        """
        with self.streamed(f"{dataset_path(dataset)}/statement") as answer:
            return answer.read()

    def ledger_proof(
        self, dataset: str, *, entry: int | None = None, since: int | None = None, size: int | None = None
    ) -> Proof:
        """Proves that an entry is in a checkpoint's tree, or that the tree begins with the one of `since` entries.

        Args:
            size: the tree's entries; None: the newest checkpoint's.
        """
        query = {name: each for name, each in (("entry", entry), ("since", since), ("size", size)) if each is not None}
        return Proof.model_validate(self.json("GET", "/v1/ledger/proof", params={"dataset": dataset, **query}))

    def set_persons(self, dataset: str, persons: Mapping[str, Sequence[str]]) -> Persons | Approval:
        """Names the persons of whom two must agree to a larger cap and to an egress, each with all of their keys' ids.

        Returns:
            the persons; or the approval that the change waits for, where persons were named before.
        """
        body = {"persons": {name: list(keys) for name, keys in persons.items()}}
        answer = self.json("PUT", f"{dataset_path(dataset)}/persons", json=body)
        return Approval.model_validate(answer) if "act" in answer else Persons.model_validate(answer)

    def change_cap(self, dataset: str, epsilon: float, reason: str, *, version: str | None = None) -> Ledger | Approval:
        """Changes a data set's cap; δ stays. A raise should not depend on released results.

        Returns:
            the ledger; or the approval that a raise waits for, where the owner has named persons.

        Args:
            reason: recorded in the ledger.
            version: the ledger's `cap_version` that this is for; None: as it is now.
        """
        body = {"epsilon": epsilon, "reason": reason}
        headers = {"If-Match": f'"{version or self.ledger(dataset).cap_version}"'}
        path = f"{dataset_path(dataset)}/ledger/cap"
        answer = self.json("POST", path, json=body, headers=headers)
        return Approval.model_validate(answer) if "act" in answer else Ledger.model_validate(answer)

    def verify_ledger(self, dataset: str, *, again: bool = False, timeout_s: float = 60.0) -> Verification:
        """Shows the service's last verification of hash chain and balances. Compare the head with one kept elsewhere.

        Args:
            again: ask for a new one and wait for it; the data set's owner and admins may.

        Raises:
            NotAllowed: this key may not ask.
            WaitTimeout: the service did not get to it in `timeout_s`.
        """
        path = f"{dataset_path(dataset)}/ledger/verify"
        last = Verification.model_validate(self.json("GET", path))
        if not again:
            return last
        self.json("POST", path)
        deadline = time.monotonic() + timeout_s
        while True:
            verification = Verification.model_validate(self.json("GET", path))
            if not verification.queued and verification.checked_at != last.checked_at:
                return verification
            if time.monotonic() > deadline:
                raise WaitTimeout(f"the ledger was not verified within {timeout_s:g} s: is the relay running?")
            time.sleep(POLL_S)

    # Jobs

    def quote(self, spec: Document) -> Quote:
        """Prices a job. Free; nothing is written."""
        return Quote.model_validate(self.json("POST", "/v1/quotes", json=document(spec)))

    def sweep(
        self,
        spec: Document,
        total_epsilon: Sequence[float] | None = None,
        levels: Sequence[Sequence[float]] | None = None,
        runs_per_level: Sequence[int] | None = None,
    ) -> Sweep:
        """Shows what each combination leaves for a study's final trial. Free; nothing is written.

        Args:
            spec: a JobSpec whose `hpo` is `linear_scaling`; lists that are left out take its values.
        """
        lists = {"total_epsilon": total_epsilon, "levels": levels, "runs_per_level": runs_per_level}
        body = {"spec": document(spec)} | {name: list(value) for name, value in lists.items() if value}
        return Sweep.model_validate(self.json("POST", "/v1/quotes/sweep", json=body))

    def submit(self, spec: Document, idempotency_key: str | None = None) -> Job:
        """Submits a job and holds its whole cost.

        Args:
            spec: a JobSpec; its `dataset` may be a name.
            idempotency_key: the same key with the same spec returns the same job; random if not given.

        Raises:
            BudgetRefused: it does not fit; nothing was charged.
        """
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return Job.model_validate(self.json("POST", "/v1/jobs", json=document(spec), headers=headers))

    def train(self, dataset: str, epsilon: float, **members: Any) -> JobHandle:
        """Submits a job of which admission chooses all but the data set and ε; its quote's `resolved` says why.

        Args:
            epsilon: the whole cost on the training part.
            members: of the JobSpec, where you want to choose: `model`, `length`, `evaluation` … Without a `name` it has
                one from data set and ε, and the next number if another job has that.

        Raises:
            BudgetRefused: it does not fit; nothing was charged.
        """
        spec = document({"dataset": dataset, "privacy": {"target_epsilon": epsilon}, **members})
        if "name" not in spec:
            spec["name"] = unused(self.jobs, telling(spec))
        return self.jobs.submit(spec)

    def query(self, dataset: str) -> StatisticsQuery:
        """Begins a list of statistics on a data set: counts, histograms, means, quantiles … (scrimp.query)."""
        return StatisticsQuery(self, dataset)

    def synthesize(
        self,
        dataset: str,
        epsilon: float,
        *,
        columns: Sequence[str] | None = None,
        rows: int | None = None,
        timeout_s: float = 600.0,
        **members: Any,
    ) -> SyntheticRows:
        """Draws rows that have about the two-way tables of a data set (docs/synthetic.md), and fetches them.

        Args:
            columns: to draw; None: all that are declared.
            rows: how many; None: the declared number of records.
            members: further ones of the JobSpec, such as `target`, `bins` or `name`.

        Raises:
            BudgetRefused: it does not fit; nothing was charged.
        """
        return synthesized(self, spec_of(dataset, epsilon, columns, rows, **members), timeout_s)

    def metrics(self, job_id: str) -> list[MetricPoint]:
        """Every released number of a job, by step."""
        return list(self.pages(f"/v1/jobs/{job_id}/metrics", MetricPoint))

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
        path = f"/v1/jobs/{in_path(job_id)}/artifacts/{in_path(name)}"
        damaged = f"{name} of {job_id} arrived damaged: its SHA-256 differs from the recorded one; download it again"
        return self._saved(path, to, damaged, record.sha256)

    def _saved(
        self, path: str, to: Path, damaged: str, sha256: str | None = None, params: Mapping[str, int] | None = None
    ) -> Path:
        """Streams a file; it appears at `to` once its SHA-256 is this one; None: the one that the answer names."""
        part, digest = to.with_name(to.name + ".part"), hashlib.sha256()
        with self.streamed(path, params=params) as response, part.open("wb") as out:
            for chunk in response.iter_bytes():
                digest.update(chunk)
                out.write(chunk)
            wanted = sha256 or response.headers["Digest-SHA256"]
        if digest.hexdigest() != wanted:
            part.unlink()
            raise ScrimpError(damaged)
        return part.replace(to)

    def download_egress(self, job_id: str, to: Path, *, number: int | None = None, timeout_s: float = 60.0) -> Path:
        """Downloads an egress as a ZIP archive; waits while the service makes it. `scrimp.egress` checks the folder.

        Args:
            number: of the job's egresses; None: the newest that is ready.

        Raises:
            Conflict: `egress-pending`: two persons must agree to it, or it was not made within the time.
            ScrimpError: it arrived damaged.
        """
        path, filters = f"/v1/jobs/{in_path(job_id)}/egress", {} if number is None else {"number": number}
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return self._saved(
                    path, to, f"the egress of {job_id} arrived damaged: download it again", None, filters
                )
            except Conflict as pending:
                if pending.code != "egress-pending" or time.monotonic() >= deadline:
                    raise
            time.sleep(POLL_S)

    def certificate(self, job_id: str, timeout_s: float = 15.0) -> SignedCertificate:
        """The signed certificate of a finished job. It is issued a moment after the job's end; this waits for it."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return SignedCertificate.model_validate(self.json("GET", f"/v1/jobs/{job_id}/certificate"))
            except Conflict as pending:
                if pending.code != "certificate-pending" or time.monotonic() >= deadline:
                    raise
            time.sleep(POLL_S)

    def log_to_mlflow(
        self,
        job: str | JobHandle,
        experiment: str | None = None,
        *,
        tracking_uri: str | None = None,
        files: bool = True,
    ) -> str:
        """Logs a finished job as a run of MLflow: specification, scores, ε, certificate, files; returns the run's id.

        Args:
            job: a name, an id or a job.
            experiment: its name; it is made if there is none.
            tracking_uri: of MLflow's server or folder; None: as MLflow is set up.
            files: the model's files too.

        Raises:
            MissingPackage: mlflow is not installed.
        """
        from scrimp.mlflow_log import log_job

        return log_job(self.jobs.get(job) if isinstance(job, str) else job, experiment, tracking_uri, files)

    def features_of(self, job_id: str) -> dict[str, Any]:
        """What a record of the job's data set consists of, as its owner declared it: `kind` and its columns."""
        features: dict[str, Any] = self.json("GET", dataset_path(self.job(job_id).spec["dataset"]))["features"]
        return features

    def predict(
        self, job_id: str, records: list[Any], *, top: int = 10, timeout: float = 120.0
    ) -> list[dict[str, Any]]:
        """Runs a job's model on your own records; returns one answer for each.

        Args:
            records: in the data set's form: dicts for columns and tables, whose other members are ignored, lists of
                numbers for arrays, texts, dicts with user and item for ratings, lists of items' ids for next items.
            top: how many classes, items or next tokens to return for each.
            timeout: the most seconds to wait.

        Raises:
            PredictionFailed: there is no answer, and will be none.
            WaitTimeout: there was none within the time.
        """
        path = f"/v1/jobs/{in_path(job_id)}"
        prediction = self.json("POST", f"{path}/predict", json={"records": records, "top": top})
        deadline = time.monotonic() + timeout
        while True:
            answer = self.json("GET", f"{path}/predictions/{prediction['id']}")
            if answer["status"] == "succeeded":
                answers: list[dict[str, Any]] = answer["predictions"]
                return answers
            if answer["status"] == "failed":
                raise PredictionFailed(answer["failure"]["message"])
            if time.monotonic() >= deadline:
                raise WaitTimeout(f"the prediction is still {answer['status']} after {timeout:g} s")
            time.sleep(POLL_S)
