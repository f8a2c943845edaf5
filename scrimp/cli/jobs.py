"""`scrimp quote` and `scrimp jobs`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from scrimp.cli import show
from scrimp.cli.session import FAILED, Session, command, first, read_json
from scrimp.cli.watch import watch
from scrimp.models import Job

app = typer.Typer(no_args_is_help=True)

SpecFile = Annotated[Path, typer.Argument(help="A JobSpec (JSON); - reads standard input.")]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="A job's id, or its name if no other job has it.")]
Timeout = Annotated[float, typer.Option(help="The most seconds to watch; the job continues.")]


def register_quote(root: typer.Typer) -> None:
    @command(root, "quote")
    def quote(
        session: Session,
        file: SpecFile,
        sweeping: Annotated[
            bool, typer.Option("--sweep", help="For a study: show what is left for its final trial.")
        ] = False,
        total: Annotated[list[float] | None, typer.Option(help="With --sweep: a total ε; may be repeated.")] = None,
        levels: Annotated[
            list[str] | None, typer.Option(help="With --sweep: such as 0.1,0.2; may be repeated.")
        ] = None,
        runs: Annotated[list[int] | None, typer.Option(help="With --sweep: trials per level; may be repeated.")] = None,
    ) -> None:
        """Price a job. Free; nothing is written. --sweep: other totals, levels and numbers of a study's pilots."""
        if sweeping:
            spec, by_level = read_json(file), [_numbers(each) for each in levels or []]
            swept = session.client.sweep(spec, total, by_level, runs)
            session.result(swept, lambda: show.sweep(session.console, swept))
        elif total or levels or runs:
            raise typer.BadParameter("--total, --levels and --runs need --sweep")
        else:
            found = session.client.quote(read_json(file))
            session.result(found, lambda: show.quote(session.console, found))


def _numbers(text: str) -> list[float]:
    try:
        return [float(each) for each in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a list of numbers, such as 0.1,0.2") from None


def register_trials(root: typer.Typer) -> None:
    @command(root, "trials")
    def trials(session: Session, job_id: JobId) -> None:
        """Show the trials of a private study, their noisy scores, and how the final trial was chosen."""
        found = session.client.trials(session.job(job_id))
        session.result(found, lambda: show.trials(session.console, found))


def register_train(root: typer.Typer) -> None:
    @command(root, "train")
    def train(
        session: Session,
        dataset: Annotated[str, typer.Argument(help="A data set's name or id.")],
        epsilon: Annotated[float, typer.Option(help="The total ε of the job.")],
        extractor: Annotated[str | None, typer.Option(help="A frozen feature extractor of the service.")] = None,
        watching: Annotated[bool, typer.Option("--watch", help="Show its progress until it has ended.")] = False,
        timeout: Timeout = 3600.0,
    ) -> None:
        """Train on a data set: the service chooses all the rest and says why. Exit code 3 if it does not fit."""
        named = {} if extractor is None else {"model": {"kind": "linear", "extractor": {"name": extractor}}}
        job = session.client.train(dataset, epsilon, **named).last
        if watching:
            _watch(session, job, timeout)
        else:
            session.result(job, lambda: show.job(session.console, job))


@command(app, "submit")
def submit(
    session: Session,
    file: SpecFile,
    watching: Annotated[bool, typer.Option("--watch", help="Show its progress until it has ended.")] = False,
    idempotency_key: Annotated[
        str | None, typer.Option(help="The same key and spec return the same job again; default: random.")
    ] = None,
    timeout: Timeout = 3600.0,
) -> None:
    """Submit a job. Exit code 3 if the budget does not cover it: nothing is charged then."""
    job = session.client.submit(read_json(file), idempotency_key)
    if watching:
        _watch(session, job, timeout)
    else:
        session.result(job, lambda: show.job(session.console, job))


@command(app, "watch")
def watch_(session: Session, job_id: JobId, timeout: Timeout = 3600.0) -> None:
    """Show a job's progress until it has ended."""
    _watch(session, session.client.job(session.job(job_id)), timeout)


@command(app, "list")
def list_(
    session: Session,
    dataset: Annotated[str | None, typer.Option(help="Only on this data set (name or id).")] = None,
    status: Annotated[str | None, typer.Option(help="Only with this status.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="The most jobs to list.")] = 50,
    search: Annotated[str | None, typer.Option(help="A part of the name, or the beginning of the id.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only with this tag.")] = None,
    sort: Annotated[str | None, typer.Option(help="newest, oldest or name.")] = None,
) -> None:
    """List jobs, newest first."""
    jobs = first(session.client.jobs(dataset, status, q=search, tag=tag, sort=sort), limit)
    session.result(jobs, lambda: show.jobs(session.console, jobs))


@command(app, "show")
def show_(session: Session, job_id: JobId) -> None:
    """Show one job: status, privacy, released metrics, artifacts."""
    job = session.client.job(session.job(job_id))
    session.result(job, lambda: show.job(session.console, job))


@command(app, "spec")
def spec(session: Session, job_id: JobId) -> None:
    """Print a job's specification as it was admitted: to change, and to submit again."""
    found = session.client.job(session.job(job_id)).spec
    print(json.dumps(found, indent=2, ensure_ascii=False))


@command(app, "retry")
def retry(
    session: Session,
    job_id: JobId,
    watching: Annotated[bool, typer.Option("--watch", help="Show its progress until it has ended.")] = False,
    timeout: Timeout = 3600.0,
) -> None:
    """Submit a new job with a job's specification. It has a hold of its own; the earlier job stays charged."""
    job = session.client.jobs.get(job_id).again().last
    if watching:
        _watch(session, job, timeout)
    else:
        session.result(job, lambda: show.job(session.console, job))


@command(app, "metrics")
def metrics(session: Session, job_id: JobId) -> None:
    """List every released number of a job, by step."""
    found = session.client.metrics(session.job(job_id))
    rows = [(str(each.step), each.name, each.on, show.score(each)) for each in found]
    session.result(found, lambda: show.table(session.console, ("step", "name", "on", "value"), rows))


@command(app, "label")
def label(
    session: Session,
    job_id: JobId,
    tag: Annotated[list[str] | None, typer.Option(help="A tag; again for more. They replace the job's tags.")] = None,
    notes: Annotated[str | None, typer.Option(help="Replaces the job's notes.")] = None,
) -> None:
    """Change a job's tags and notes."""
    labels = {name: value for name, value in (("tags", tag), ("notes", notes)) if value is not None}
    job = session.client.label(job_id, **labels)
    session.result(job, lambda: session.console.print(f"{job.id}  {', '.join(job.tags) or 'no tags'}"))


@command(app, "cancel")
def cancel(session: Session, job_id: JobId) -> None:
    """Stop a job. What was started stays charged; the rest returns to the budget."""
    job = session.client.cancel(session.job(job_id))
    session.result(job, lambda: session.console.print(f"{job.id} is {job.status}"))


@command(app, "pause")
def pause(session: Session, job_id: JobId) -> None:
    """Pause a job: it leaves its worker and keeps its hold."""
    job = session.client.pause(session.job(job_id))
    session.result(job, lambda: session.console.print(f"{job.id} is {job.status}"))


@command(app, "resume")
def resume(session: Session, job_id: JobId) -> None:
    """Let a paused job go on from its checkpoint. Later steps are repeated bit for bit, free of charge."""
    job = session.client.resume(session.job(job_id))
    session.result(job, lambda: session.console.print(f"{job.id} is {job.status}"))


@command(app, "delete-artifacts")
def delete_artifacts(session: Session, job_id: JobId) -> None:
    """Delete a finished job's model files. The spent budget stays spent, and the certificate stays."""
    job = session.client.delete_artifacts(session.job(job_id))
    session.result(job, lambda: session.console.print(f"the files of {job.id} are deleted; its certificate stays"))


@command(app, "events")
def events(session: Session, job_id: JobId) -> None:
    """Show a job's event log."""
    found = list(session.client.events(session.job(job_id)))
    session.result(found, lambda: show.events(session.console, found))


@command(app, "fetch")
def fetch(
    session: Session,
    job_id: JobId,
    to: Annotated[Path, typer.Option(help="Folder to write to; made if it does not exist.")] = Path(),
    name: Annotated[str | None, typer.Option(help="One artifact; default: all.")] = None,
) -> None:
    """Download a job's artifacts; each is checked against its SHA-256."""
    job_id = session.job(job_id)
    names = [name] if name else [artifact.name for artifact in session.client.job(job_id).artifacts]
    to.mkdir(parents=True, exist_ok=True)
    paths = [str(session.client.download(job_id, each, to / Path(each).name)) for each in names]
    session.result(paths, lambda: session.console.print("\n".join(paths) or f"{job_id} has no artifacts"))


def _watch(session: Session, job: Job, timeout_s: float) -> None:
    if session.json:
        job = session.client.wait_for(job, timeout_s)
    else:
        session.console.print(show.accepted(job))
        (job,) = watch(session.client, session.console, [job], timeout_s)
    session.result(job, lambda: show.job(session.console, job))
    if job.status != "succeeded":
        raise typer.Exit(FAILED)
