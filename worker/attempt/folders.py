"""Where an attempt writes its files: jobs/<job>/attempt-<number> under the storage root, its own folder alone.

A slow attempt may come to its removals after a later one has published: it removes older attempts' folders only, and
never one that an artifact's row names.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from app.ledger.behind import MARKER
from app.lifecycle.attempts import Begun
from app.lifecycle.claims import Claim
from app.secrets import sync, write_private

FOLDER = re.compile(r"attempt-(\d+)")


def output_folder(storage_root: Path, held: Claim, begun: Begun) -> Path:
    """Makes the attempt's empty folder, and removes what older attempts left unpublished.

    Beside it lies the id of the job's data set, on disk before this returns: should a restored database have forgotten
    the job, it tells whose budget was spent (app.ledger.behind).

    Args:
        begun: as `AttemptLog.begin` found it after its fence.

    Raises:
        FileExistsError: this attempt's own folder holds a published file: it is not this attempt's to write.
    """
    job = storage_root / "jobs" / held.job_id
    keep = {storage_root / Path(path).parent for path in begun.published}
    for folder in sorted(job.glob("attempt-*")):
        number = FOLDER.fullmatch(folder.name)
        # Its own number: what a database that was restored from a backup has forgotten.
        if number is not None and int(number[1]) <= held.attempt and folder not in keep:
            shutil.rmtree(folder, ignore_errors=True)
    output = job / f"attempt-{held.attempt}"
    output.mkdir(parents=True, mode=0o700)
    write_private(job / MARKER, begun.dataset_id, overwrite=False)
    for folder in (job, job.parent):
        sync(folder)
    return output
