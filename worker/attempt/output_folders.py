"""Where an attempt writes its files: jobs/<job>/attempt-<number> under the storage root, a folder of its own.

A slow attempt may delete files after a later attempt has published. So it deletes only older attempts' folders, and
never one that an artifact's row names.
"""

from __future__ import annotations

import hashlib
import logging
import math
import re
import shutil
from pathlib import Path

from sqlalchemy import select

from app.db.database import Database
from app.db.models import Job
from app.ledger.behind import MARKER
from app.lifecycle.attempt_records import Begun
from app.lifecycle.claims import Claim
from app.lifecycle.saved import BATCH
from app.lifecycle.saved import FOLDER as STATES
from app.lifecycle.states import ACTIVE
from app.secrets import write_private
from app.settings import Settings
from app.storage import objects
from app.storage.objects import Objects
from core.disk import sync
from core.errors import ServiceError
from worker.attempt.second_user import remove
from worker.attempt.user_checks import user_of

logger = logging.getLogger(__name__)

FOLDER = re.compile(r"attempt-(\d+)")


def output_folder(storage_root: Path, claim: Claim, begun: Begun, store: Objects) -> Path:
    """Makes the attempt's empty folder and removes unpublished files of older attempts.

    Next to it, a file holds the id of the job's data set. It is on disk before this returns: if a restored database has
    forgotten the job, the file tells whose budget was spent (app.ledger.behind).

    Args:
        begun: as `AttemptLog.begin` found it after its fence.

    Raises:
        FileExistsError: this attempt's own folder holds a published file, so this attempt must not write to it.
    """
    job = storage_root / "jobs" / claim.job_id
    keep = {storage_root / Path(path).parent for path in begun.published}
    for folder in sorted(job.glob("attempt-*")):
        number = FOLDER.fullmatch(folder.name)
        # A folder may exist under this attempt's own number if the database was restored from a backup.
        if number is not None and int(number[1]) <= claim.attempt and folder not in keep:
            shutil.rmtree(folder, ignore_errors=True)
    output = job / f"attempt-{claim.attempt}"
    if output not in keep:  # in a bucket, the same of a forgotten attempt under this number
        store.remove(f"jobs/{claim.job_id}/{output.name}")
    output.mkdir(parents=True, mode=0o700)
    write_private(job / MARKER, begun.dataset_id, overwrite=False)
    for folder in (job, job.parent):
        sync(folder)
    store.publish(f"jobs/{claim.job_id}/{MARKER}", job / MARKER, hashlib.sha256(begun.dataset_id.encode()).hexdigest())
    return output


def drop_dead(db: Database, settings: Settings) -> None:
    """Removes what killed workers left on this machine's disk: states that they were writing or had fetched, and, with
    a bucket, files that they had not published. Without one, published files lie in the same folders, and stay.

    Other workers write here too. An attempt lives only while its job is active under its number, which only grows: so
    the database is asked after the listing.
    """
    patterns = [f"{STATES}/job_*/part-*", f"{STATES}/job_*/copy-*"]
    if settings.object_store:
        patterns.append("jobs/job_*/attempt-*")
    paths = [path for pattern in patterns for path in settings.storage_root.glob(pattern)]
    names = sorted({path.parent.name for path in paths})
    living: dict[str, int] = {}
    for ids in (names[start : start + BATCH] for start in range(0, len(names), BATCH)):
        with db.read() as session:
            active = session.execute(select(Job.id, Job.attempt).where(Job.id.in_(ids), Job.status.in_(ACTIVE)))
            living |= {row.id: row.attempt for row in active}
    for path in paths:
        number, first = path.name.rpartition("-")[2], living.get(path.parent.name, math.inf)
        if number.isdecimal() and int(number) < first:
            if path.is_dir():
                remove(path, user_of(settings))
            else:
                path.unlink(missing_ok=True)
            logger.info("%s of %s was removed: its attempt has ended", path.name, path.parent.name)


def clear(output: Path, settings: Settings, *, keeps_features: bool) -> None:
    """Removes an attempt's files where no artifact's row can name them: all, or with a bucket this machine's copies.

    Another attempt of this job may run here at the same time: its files stay.
    """
    if not keeps_features or settings.object_store:
        remove(output, user_of(settings))
    if not settings.object_store:
        return
    if not any(output.parent.glob("attempt-*")):
        shutil.rmtree(output.parent, ignore_errors=True)
    if not keeps_features:
        try:
            objects.of(settings).remove(f"jobs/{output.parent.name}/{output.name}")
        except ServiceError as error:  # they stay until the job's files are deleted
            logger.warning("unpublished files of %s could not be removed: %s", output.parent.name, error.code)
