"""`scrimp restore`: after a backup of the database or of the storage was restored. Works without the API."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from scrimp_server.commands.service import Home, settings_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from app.db.database import Database
    from app.lifecycle.mark_survey import Forgotten
    from app.lifecycle.restore import Gap
    from app.lifecycle.witnessed import Ahead


def restore(
    home: Home = None,
    post: Annotated[
        list[str] | None, typer.Option(help="Post this data set's missing spending as spent. Ends its unfinished jobs.")
    ] = None,
    reason: Annotated[str, typer.Option(help="The reason, recorded in the ledger.")] = "a backup was restored",
    rotate: Annotated[bool, typer.Option(help="Rotate the noise key's epoch, even if nothing is missing.")] = False,
    sums: Annotated[
        list[str] | None, typer.Option(help="Add up again what each key spent on this data set, from its entries.")
    ] = None,
) -> None:
    """Show the ledger entries that a restored database has lost; --post them as spent, or bring a newer backup.

    Shows also the jobs of which it has forgotten steps or scores. Asks the recorded heads and marks, the storage and
    the witnesses. Stop the service first. Exit code 1 if something is missing.
    """
    settings = settings_of(home)
    from app.db.database import Database
    from app.ledger.transparency.heads import Heads
    from app.ledger.transparency.witnesses import configured
    from app.lifecycle import restore as restoring
    from app.lifecycle.mark_survey import compare
    from app.lifecycle.marks import Marks
    from app.lifecycle.witnessed import ahead
    from app.storage import objects
    from core.errors import ServiceError

    heads, db = Heads.of(settings), Database.of(settings)
    try:
        _require_whole(db)
        if post or rotate:
            heads.rotate_epoch()
            print("The noise key has a new epoch: repeated work uses fresh noise, and is charged.")
        for dataset in post or ():
            amounts = restoring.post(db, heads, objects.of(settings), dataset, reason)
            print(f"{dataset}: posted as spent: train {amounts.train}, holdout {amounts.holdout}")
            print(f"  Budgets within its cap are the backup's again: review them with scrimp budgets list {dataset}")
        _rebuild(db, sums or ())
        left = restoring.gaps(db, heads, objects.of(settings))
        jobs = compare(db, Marks(heads.records)).forgotten
        contradicted, unasked = ahead(db, configured(settings))
    except (ServiceError, ValueError) as error:
        print(f"scrimp restore: {error.message if isinstance(error, ServiceError) else error}", file=sys.stderr)
        raise typer.Exit(1) from None
    finally:
        db.close()
    for gap in left:
        print(_described(gap))
    if left:
        print("Nothing is admitted or run on these. Bring a newer backup, or: scrimp restore --post DATASET")
    for job in jobs:
        print(_forgotten(job))
    if jobs:
        print("An end is charged for all of it, and a job that goes on gets fresh noise. To end them: --post DATASET")
    for dataset_id in contradicted:
        print(_witnessed(dataset_id))
    if contradicted:
        print("A checkpoint has no balances, so what only a witness knows cannot be posted: bring a newer backup.")
        print("If it was posted, or its owner accepts the loss: scrimp witness accept, where the witness runs.")
    for message in unasked:
        print(f"not compared: {message}")
    if left or jobs or contradicted or unasked:
        raise typer.Exit(1)
    also = " and what its witnesses saw" if settings.witnesses else ""
    print(f"Every ledger holds the head recorded outside the database{also}.")


def _require_whole(db: Database) -> None:
    if (damage := db.damage()) is not None:
        raise ValueError(f"the database is damaged, and no entry in it can be trusted: bring a backup ({damage})")


def _rebuild(db: Database, datasets: Iterable[str]) -> None:
    from app.ledger import running_sums

    for dataset in datasets:
        rows = running_sums.rebuild(db, dataset)
        print(f"{dataset}: {rows} running sums were added up from the ledger's entries; the relay verifies it next")


def _witnessed(ahead: Ahead) -> str:
    has = f"{ahead.entries}, which begin otherwise" if ahead.differs else f"{ahead.entries}"
    seen = f"the witness {ahead.witness} has seen {ahead.seen} entries; here are {has}"
    return f"{ahead.name} ({ahead.dataset_id}): {seen}"


def _forgotten(job: Forgotten) -> str:
    known_text = (
        f"the database knows {job.steps} and {job.scores}" if job.known else "the database does not know the job"
    )
    known_text += ", and has ended it for these" if job.ended else ""
    return (
        f"{job.job_id} ({job.dataset_id}): {job.marked_steps} steps and {job.marked_scores} scores left "
        f"it; {known_text}"
    )


def _described(gap: Gap) -> str:
    lines = [f"{gap.name or 'unknown to the database'} ({gap.dataset_id}): {gap.problem}"]
    if gap.recorded is not None:
        recorded = gap.recorded
        lines.append(f"  recorded     entry {recorded.seq} at {recorded.recorded_at:%Y-%m-%d %H:%M:%S} UTC")
        parts = (("train", gap.spent.train, recorded.train), ("holdout", gap.spent.holdout, recorded.holdout))
        for name, spent, balance in parts:
            lines.append(f"  {name:<12} spent {spent} here; {balance.spent} and {balance.held} held were recorded")
    if gap.missing is not None:
        lines.append(f"  missing      train {gap.missing.train}, holdout {gap.missing.holdout}")
    if gap.unfinished:
        lines.append(f"  unfinished   {gap.unfinished} jobs: they may have ended already, and --post ends them")
    return "\n".join(lines)
