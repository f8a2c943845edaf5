"""`client.jobs`: submits and finds jobs, as objects that wait, stream, plot and fetch."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrimp import plots
from scrimp.errors import NotFound, ScrimpError, ServiceUnreachable
from scrimp.job_names import telling, unused
from scrimp.loading import LoadedModel, load_model
from scrimp.models import Event, Job, MetricPoint, Quote, SignedCertificate, Study, Trial
from scrimp.record_files import RecordFile, answered, joined, require_writable, write
from scrimp.rows import Pages, Rows, facts
from scrimp.signatures import is_authentic
from scrimp.spec import Spec, document
from scrimp.wire import POLL_S, in_path

if TYPE_CHECKING:
    from scrimp.client import Client

RECONNECTS = 6  # in a row, without an event between them


class Jobs:
    """The jobs of a service: `client.jobs`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __call__(
        self,
        dataset: str | None = None,
        status: str | None = None,
        *,
        q: str | None = None,
        tag: str | None = None,
        sort: str | None = None,
    ) -> Pages[Job]:
        """Yields the answers about jobs, newest first; fetches each page on demand.

        Args:
            q: a part of a name, or the beginning of an id.
            sort: `newest`, `oldest` or `name`.
        """
        return self._client.pages("/v1/jobs", Job, dataset=dataset, status=status, q=q, tag=tag, sort=sort)

    def __iter__(self) -> Iterator[JobHandle]:
        """Yields every job that this key may see, newest first."""
        return self.find()

    def find(
        self,
        dataset: str | None = None,
        status: str | None = None,
        *,
        q: str | None = None,
        tag: str | None = None,
        sort: str | None = None,
    ) -> Iterator[JobHandle]:
        """Yields jobs as objects; filters as for a call of `client.jobs`."""
        return (JobHandle(self._client, each) for each in self(dataset, status, q=q, tag=tag, sort=sort))

    def submit(self, spec: Spec | Mapping[str, Any], idempotency_key: str | None = None) -> JobHandle:
        """Submits a job and holds its whole cost; see `Client.submit`."""
        return JobHandle(self._client, self._client.submit(spec, idempotency_key))

    def get(self, name_or_id: str) -> JobHandle:
        """Finds one job by its id, or by its name if no other job has it.

        Raises:
            NotFound: there is none.
            ScrimpError: several jobs have this name.
        """
        return JobHandle(self._client, self._client.job(self.id_of(name_or_id)))

    def id_of(self, name_or_id: str) -> str:
        """The id of a job; raises as `get`."""
        if name_or_id.startswith("job_"):
            return name_or_id
        ids = [each.id for each in self(q=name_or_id) if each.name == name_or_id]
        if len(ids) > 1:
            raise ScrimpError(f"{len(ids)} jobs are called {name_or_id!r}; give an id: {', '.join(ids[:5])}")
        if not ids:
            detail = f"there is no job {name_or_id!r}, or this key may not see it"
            raise NotFound({"type": "/problems/not-found", "status": 404, "title": "Not found", "detail": detail})
        return ids[0]


class JobHandle:
    """One job: what the service last said of it, and what can be done with it.

    Attributes:
        last: the service's last answer about it; `refresh` asks again.
    """

    def __init__(self, client: Client, job: Job) -> None:
        self._client = client
        self.last = job

    @property
    def id(self) -> str:
        """The job's id."""
        return self.last.id

    @property
    def name(self) -> str:
        """The job's name; it may be empty."""
        return self.last.name

    @property
    def status(self) -> str:
        """The status that the service last told; see `refresh`."""
        return self.last.status

    @property
    def quote(self) -> Quote:
        """The job's price, fixed at admission."""
        return self.last.quote

    @property
    def spec(self) -> dict[str, Any]:
        """The job's specification, as it was admitted."""
        return self.last.spec

    def refresh(self) -> JobHandle:
        """Asks the service for the job's state; returns the job itself."""
        self.last = self._client.job(self.id)
        return self

    def wait(self, timeout_s: float = 3600.0, *, progress: bool = False) -> JobHandle:
        """Waits until the job has ended, however it ends; returns the job itself.

        Args:
            progress: shows steps and scores: a live bar on a terminal, a line for each quarter elsewhere.

        Raises:
            WaitTimeout: it had not ended by the deadline. It continues.
        """
        if not progress:
            self.last = self._client.wait_for(self.last, timeout_s)
            return self
        from rich.console import Console

        from scrimp.cli.watch_command import watch

        # A notebook's output is no terminal, whatever it says: each frame of a live bar would stay.
        live = sys.stdout.isatty() and sys.stdout is sys.__stdout__
        console = Console(file=sys.stdout, force_jupyter=False, force_terminal=live, no_color=not live, highlight=False)
        (self.last,) = watch(self._client, console, [self.last], timeout_s)
        return self

    def stream(self, after: int = 0) -> Iterator[Event]:
        """Yields the job's events as they happen, until the job has ended. A lost connection is taken up again.

        Args:
            after: the `seq` of the last event that is known.

        Raises:
            ServiceUnreachable: the connection was lost and could not be taken up.
        """
        failures = 0
        while failures < RECONNECTS:
            with suppress(ServiceUnreachable):
                for event in _followed(self._client, self.id, after):
                    failures, after = 0, event.seq
                    yield event
                if self.refresh().last.done:
                    return
            failures += 1
            time.sleep(2.0**failures * POLL_S)
        raise ServiceUnreachable(f"the events of {self.id} after number {after} do not arrive; the job continues")

    def events(self) -> Rows[Event]:
        """The job's events so far, oldest first."""
        return self._client.events(self.id).rows()

    def metrics(self) -> Rows[MetricPoint]:
        """Every released number so far, by step. `last.metrics` has the last of each name."""
        return Rows(self._client.metrics(self.id))

    def trials(self) -> Rows[Trial]:
        """The trials of a study so far, with their points and noisy scores; none for any other job."""
        return Rows(self._client.trials(self.id).items)

    @property
    def study(self) -> Study | None:
        """What the service last told of the study's progress and decisions; None for any other job."""
        return self.last.study

    def certificate(self, public_key: str | None = None) -> SignedCertificate:
        """The job's signed certificate. It is issued a moment after the job's end; this waits for it.

        Args:
            public_key: the key that you trust (base64): the signature is checked with it, here.

        Raises:
            ScrimpError: the key did not sign it.
        """
        certified = self._client.certificate(self.id)
        if public_key is not None and not is_authentic(certified.model_dump(mode="json"), public_key):
            raise ScrimpError(f"the certificate of {self.id} is not signed by the key {public_key}")
        return certified

    def fetch(self, to: str | Path = ".") -> list[Path]:
        """Downloads the job's files into a folder, which is made; each is checked against its SHA-256."""
        folder = Path(to)
        folder.mkdir(parents=True, exist_ok=True)
        names = [each.name for each in self.refresh().last.artifacts]
        return [self._client.download(self.id, name, folder / Path(name).name) for name in names]

    def model(self, to: str | Path) -> LoadedModel:
        """Downloads the job's files into a folder, and loads the model (`scrimp.load_model`)."""
        self.fetch(to)
        return load_model(to)

    def predict(self, records: Any, *, top: int = 10, timeout_s: float = 120.0) -> list[dict[str, Any]]:
        """Runs the job's model on your own records, by the service; see `Client.predict`.

        Args:
            records: a list of any length, or a pandas DataFrame: its other columns are ignored, and are not sent.
        """
        if hasattr(records, "to_dict"):
            rows = RecordFile.of_frame(records)
            rows_sent = rows.records(self._client.features_of(self.id))
            return list(answered(self._client, self.id, rows_sent, top, timeout_s, rows))
        return list(answered(self._client, self.id, list(records), top, timeout_s))

    def predict_file(
        self,
        file: str | Path,
        to: str | Path | None = None,
        *,
        keep: Sequence[str] = (),
        decimal: str = ".",
        timeout_s: float = 120.0,
    ) -> list[dict[str, Any]]:
        """Runs the job's model on a CSV, JSONL or Parquet file of your own, whatever other columns it has.

        Args:
            to: a file of one of these kinds for the answers.
            keep: columns to carry through into the answers, such as an id. They are not sent to the service.
            decimal: "," if numbers of a CSV file are written 3,5.

        Returns:
            One object for each row: what is kept, then the answer.

        Raises:
            InvalidRequest: a cell does not fit; `errors` name line, column and value.
            UnusableFileError: the file cannot be read, or lacks a column of the model.
        """
        if to is not None:
            require_writable(Path(to))
        rows = RecordFile.read(Path(file))
        columns, records = rows.kept(keep), rows.records(self._client.features_of(self.id), decimal=decimal)
        answers = joined(columns, list(answered(self._client, self.id, records, 10, timeout_s, rows)))
        if to is not None:
            write(Path(to), answers)
        return answers

    def cancel(self) -> JobHandle:
        """Stops the job. What was started stays charged; the rest returns to the budget."""
        self.last = self._client.cancel(self.id)
        return self

    def pause(self) -> JobHandle:
        """Pauses the job: it leaves its worker and keeps its hold."""
        self.last = self._client.pause(self.id)
        return self

    def resume(self) -> JobHandle:
        """Lets the paused job go on."""
        self.last = self._client.resume(self.id)
        return self

    def again(self, **changes: Any) -> JobHandle:
        """Submits a new job of the same specification, with a hold of its own.

        Args:
            changes: members of the specification that differ, such as `name` or `privacy`. Without a `name` it has this
                job's with the next free number, `name #2`.
        """
        spec = {**self.spec, **document(changes)}
        if "name" not in changes:
            spec["name"] = unused(self._client.jobs, self.name or telling(spec))
        return self._client.jobs.submit(spec)

    def plot(self) -> Any:
        """Draws what the job released: scores by step with the std of their noise; a study's trials by learning rate.

        Returns:
            matplotlib's axes.

        Raises:
            MissingPackage: matplotlib is not installed.
            ScrimpError: nothing was released yet.
        """
        trials = self.trials() if self.last.study is not None else Rows()
        return plots.trials(trials) if trials else plots.metrics(self.metrics(), self.name or self.id)

    def __repr__(self) -> str:
        return f"<job {self.id} {self.status} {self.last.progress.step}/{self.last.progress.steps}>"

    def _repr_html_(self) -> str:
        job = self.last
        epsilon = job.epsilon_planned
        scores = [(name, f"{each.value:.4f} ± {each.std:.4f}") for name, each in job.metrics.items()]
        return facts(
            [
                ("job", f"{job.name} ({job.id})" if job.name else job.id),
                ("status", job.status),
                ("privacy", "public data" if epsilon is None else f"ε = {epsilon.value:.4g}, δ = {epsilon.delta:g}"),
                ("steps", f"{job.progress.step} of {job.progress.steps}"),
                *scores,
                *([("failure", job.failure.get("message"))] if job.failure else []),
            ]
        )


def _followed(client: Client, job_id: str, after: int) -> Iterator[Event]:
    """The events of one connection, whose data hold the whole event."""
    headers = {"Last-Event-ID": str(after)} if after else {}
    for kind, data in client.server_sent(f"/v1/jobs/{in_path(job_id)}/events", headers):
        if kind == "end":
            return
        yield Event.model_validate(json.loads(data))
