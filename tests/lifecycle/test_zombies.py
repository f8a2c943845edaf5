"""An attempt whose job was taken: it is late with everything, also with its first step, and nothing of it may count."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.db.database import Database
from app.ledger.behind import MARKER
from app.lifecycle.attempt_records import Begun
from app.lifecycle.attempts import AttemptLog
from app.lifecycle.sweeper import expire_all_leases, reap_expired
from app.settings import Settings
from app.storage import objects
from app.storage.objects import Folder
from core.contracts.stored_documents import ArtifactFile
from tests.lifecycle.conftest import Submit, claimed, job_row
from worker.attempt.fork_server import ForkServer, Process
from worker.attempt.output_folders import clear, output_folder
from worker.attempt.supervisor import run_attempt


class NoForkServer(ForkServer):
    """A stale attempt starts no process."""

    def start(self, channel: int) -> Process:
        raise AssertionError("a stale attempt was started")


def write(folder: Path, name: str = "model.safetensors") -> Path:
    folder.mkdir(parents=True)
    (folder / name).write_bytes(b"weights")
    return folder / name


def taken_back(db: Database, job_id: str) -> AttemptLog:
    """Claims the job's next attempt, after the one before has lost its lease."""
    expire_all_leases(db)
    reap_expired(db, 3)
    return claimed(db, job_id, "other")


def publish(settings: Settings, log: AttemptLog) -> Path:
    """Ends an attempt with a model, as its supervisor does."""
    path = f"jobs/{log.held.job_id}/attempt-{log.held.attempt}/model.safetensors"
    model = write((settings.storage_root / path).parent)
    log.start_block(1, 50)
    log.succeed([ArtifactFile(name=model.name, sha256="cd" * 32, size_bytes=7, path=path)], 50, [])
    return model


def test_a_stale_attempt_leaves_the_paid_model(db: Database, settings: Settings, submit: Submit) -> None:
    """It was slow between its claim and its first write; meanwhile attempt 2 ran, was paid for and succeeded."""
    stale = claimed(db, job_id := submit())
    model = publish(settings, taken_back(db, job_id))
    run_attempt(stale, settings, NoForkServer())
    assert model.read_bytes() == b"weights"
    assert (job_row(db, job_id).status, job_row(db, job_id).attempt) == ("succeeded", 2)


def test_a_stale_attempt_leaves_what_a_running_one_writes(db: Database, settings: Settings, submit: Submit) -> None:
    stale = claimed(db, job_id := submit())
    taken_back(db, job_id)
    half_written = write(settings.storage_root / "jobs" / job_id / "attempt-2")
    run_attempt(stale, settings, NoForkServer())
    assert half_written.exists()


def test_an_attempt_that_is_overtaken_after_its_fence_removes_older_folders_alone(
    db: Database, settings: Settings, submit: Submit
) -> None:
    """It stands still between the fence and the removal."""
    log = claimed(db, job_id := submit())
    oldest = write(settings.storage_root / "jobs" / job_id / "attempt-1")
    slow = taken_back(db, job_id)
    begun = slow.begin()
    model = publish(settings, taken_back(db, job_id))
    made = output_folder(settings.storage_root, slow.held, begun, objects.of(settings))
    assert (log.held.attempt, slow.held.attempt, made.name) == (1, 2, "attempt-2")
    assert model.exists() and not oldest.exists()


def test_a_published_folder_is_never_removed(db: Database, settings: Settings, submit: Submit) -> None:
    """Whatever its number says: the database's row decides."""
    first = claimed(db, job_id := submit())
    model = publish(settings, first)
    path = str(model.relative_to(settings.storage_root))
    later = first.held.__class__(job_id, 2, "w")
    output_folder(settings.storage_root, later, Begun("ds_x", ("ds_x",), frozenset({path})), objects.of(settings))
    assert model.exists()
    with pytest.raises(FileExistsError):
        output_folder(
            settings.storage_root, first.held, Begun("ds_x", ("ds_x",), frozenset({path})), objects.of(settings)
        )


def test_an_attempt_finds_its_own_folder_empty(db: Database, settings: Settings, submit: Submit) -> None:
    """A restored database counts attempts anew: what the folder of that number holds is of a forgotten one."""
    log = claimed(db, job_id := submit())
    forgotten = write(settings.storage_root / "jobs" / job_id / "attempt-1")
    made = output_folder(settings.storage_root, log.held, log.begin(), objects.of(settings))
    assert made == forgotten.parent and list(made.iterdir()) == []


class Bucket(Folder):
    """A store whose files lie elsewhere. It notes what is removed."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.removed: list[str] = []

    def remove(self, prefix: str) -> None:
        self.removed.append(prefix)


@pytest.mark.parametrize("kept", [False, True])
def test_with_a_bucket_an_attempt_clears_its_own_copies_alone(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, *, kept: bool
) -> None:
    bucket = Bucket(settings.storage_root)
    monkeypatch.setattr(objects, "of", lambda _: bucket)
    with_bucket = settings.model_copy(update={"object_store": "s3://bucket"})
    job = settings.storage_root / "jobs" / "job_a"
    mine, live = job / "attempt-1", job / "attempt-2"
    write(mine)
    write(live)
    (job / MARKER).write_text("ds_a")
    clear(mine, with_bucket, keeps_features=kept)
    assert not mine.exists() and (live / "model.safetensors").is_file() and (job / MARKER).is_file()
    clear(live, with_bucket, keeps_features=kept)
    assert not job.exists(), "no attempt is left here"
    assert bucket.removed == ([] if kept else ["jobs/job_a/attempt-1", "jobs/job_a/attempt-2"])
