"""`scrimp quote` and `scrimp jobs`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from scrimp.cli import show
from scrimp.cli.command_session import FAILED, Session, command, read_json
from scrimp.cli.command_tables import JOB, Call, JobId, limit, option, register, table
from scrimp.cli.watch_command import watch
from scrimp.models import Event, Job

app = typer.Typer(no_args_is_help=True)

SpecFile = Annotated[Path, typer.Argument(help="A JobSpec (JSON); - reads standard input.")]
Timeout = Annotated[float, typer.Option(help="The most seconds to watch; the job continues.")]
Watching = Annotated[bool, typer.Option("--watch", help="Show its progress until it has ended.")]


def quote(
    session: Session,
    file: SpecFile,
    sweeping: Annotated[
        bool, typer.Option("--sweep", help="For a study: show what is left for its final trial.")
    ] = False,
    total: Annotated[list[float] | None, typer.Option(help="With --sweep: a total ε; may be repeated.")] = None,
    levels: Annotated[list[str] | None, typer.Option(help="With --sweep: such as 0.1,0.2; may be repeated.")] = None,
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
        quoted = session.client.quote(read_json(file))
        session.result(quoted, lambda: show.quote(session.console, quoted))


def _numbers(text: str) -> list[float]:
    try:
        return [float(each) for each in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a list of numbers, such as 0.1,0.2") from None


def train(
    session: Session,
    dataset: Annotated[str, typer.Argument(help="A data set's name or id.")],
    epsilon: Annotated[float, typer.Option(help="The total ε of the job.")],
    extractor: Annotated[str | None, typer.Option(help="A frozen feature extractor of the service.")] = None,
    use: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=TEXT", help="What the job is for: purpose=…, and permit=… with its number."),
    ] = None,
    watching: Watching = False,
    timeout: Timeout = 3600.0,
) -> None:
    """Train on a data set: the service chooses all the rest and says why. Exit code 3 if it does not fit."""
    overrides = {} if extractor is None else {"model": {"kind": "linear", "extractor": {"name": extractor}}}
    _shown(session, session.client.train(dataset, epsilon, **overrides, **_use(use)).last, watching, timeout)


def _use(texts: list[str] | None) -> dict[str, dict[str, str]]:
    """`use` of a specification, from `purpose=…` and `permit=…`."""
    use = {name: text for name, _, text in (each.partition("=") for each in texts or ())}
    if use.keys() - {"purpose", "permit"}:
        raise typer.BadParameter("say purpose=… or permit=…", param_hint="--use")
    return {"use": use} if use else {}


@command(app, "submit")
def submit(
    session: Session,
    file: SpecFile,
    watching: Watching = False,
    idempotency_key: Annotated[
        str | None, typer.Option(help="The same key and spec return the same job again; default: random.")
    ] = None,
    timeout: Timeout = 3600.0,
) -> None:
    """Submit a job. Exit code 3 if the budget does not cover it: nothing is charged then."""
    _shown(session, session.client.submit(read_json(file), idempotency_key), watching, timeout)


@command(app, "watch")
def watch_(session: Session, job_id: JobId, timeout: Timeout = 3600.0) -> None:
    """Show a job's progress until it has ended."""
    _shown(session, session.client.job(session.job(job_id)), True, timeout)


@command(app, "spec")
def spec(session: Session, job_id: JobId) -> None:
    """Print a job's specification as it was admitted: to change, and to submit again."""
    document = session.client.job(session.job(job_id)).spec
    print(json.dumps(document, indent=2, ensure_ascii=False))


@command(app, "retry")
def retry(
    session: Session,
    job_id: JobId,
    watching: Watching = False,
    timeout: Timeout = 3600.0,
) -> None:
    """Submit a new job with a job's specification. It has a hold of its own; the earlier job stays charged."""
    _shown(session, session.client.jobs.get(job_id).again().last, watching, timeout)


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


def _shown(session: Session, job: Job, watching: bool, timeout_s: float) -> None:
    """Prints a job, after its end if it is watched; a watched job that did not succeed is an error."""
    if watching and session.json:
        job = session.client.wait_for(job, timeout_s)
    elif watching:
        session.console.print(show.accepted(job))
        (job,) = watch(session.client, session.console, [job], timeout_s)
    session.result(job, lambda: show.job(session.console, job))
    if watching and job.status != "succeeded":
        raise typer.Exit(FAILED)


def _steps(job: Job) -> str:
    return f"{job.progress.step}/{job.progress.steps}"


def _blocks(job: Job) -> str:
    return ", ".join(f"{block.label} ({block.records:,})" for block in job.quote.reads if "blocks" in job.spec)


def _list(console: Console, jobs: list[Job]) -> None:
    """Without blocks where no data set has grown."""
    blocks = [("blocks", _blocks)] if any(map(_blocks, jobs)) else []
    table(console, (*JOBS, CREATED, *blocks), jobs)


def _data(event: Event) -> str:
    return ", ".join(f"{name}={show.brief(value)}" for name, value in event.data.items())


ONE = {"job_id": JOB}
JOBS = ("id", "name", "status", ("step", _steps), ("ε", show.brief_cost), ("released", show.released))
CREATED = ("created (UTC)", lambda job: show.when(job.created_at)[:16])
FILTERS = {
    "dataset": option("Only on this data set (name or id)."),
    "status": option("Only with this status."),
    "limit": limit("The most jobs to list."),
    "q": option("A part of the name, or the beginning of the id.", name="--search"),
    "tag": option("Only with this tag."),
    "sort": option("newest, oldest or name."),
}
METRICS = ("step", "name", "on", ("value", show.score))
EVENTS = ("#=seq", "time (UTC)=at", "event=type", ("", _data))
STATE = "{0.id} is {0.status}"
TRIALS = "Show the trials of a private study, their noisy scores, and how the final trial was chosen."
CANCEL = "Stop a job. What was started stays charged; the rest returns to the budget."
RESUME = "Let a paused job go on from its checkpoint. Later steps are repeated bit for bit, free of charge."
DELETE = "Delete a finished job's model files. The spent budget stays spent, and the certificate stays."
DELETED = "the files of {0.id} are deleted; its certificate stays"
register(
    app,
    Call("list", "jobs", "List jobs, newest first.", _list, FILTERS),
    Call("show", "job", "Show one job: status, privacy, released metrics, artifacts.", show.job, ONE),
    Call("metrics", "metrics", "List every released number of a job, by step.", METRICS, ONE),
    Call("cancel", "cancel", CANCEL, STATE, ONE),
    Call("pause", "pause", "Pause a job: it leaves its worker and keeps its hold.", STATE, ONE),
    Call("resume", "resume", RESUME, STATE, ONE),
    Call("delete-artifacts", "delete_artifacts", DELETE, DELETED, ONE),
    Call("events", "events", "Show a job's event log.", EVENTS, ONE),
)


def register_trials(root: typer.Typer) -> None:
    """`scrimp trials`."""
    register(root, Call("trials", "trials", TRIALS, show.trials, ONE))
