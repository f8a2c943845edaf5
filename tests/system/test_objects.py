"""The stores of published files: one contract for the folder and for a bucket on a real S3 server."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from app.storage import bucket as buckets
from app.storage.bucket import Bucket, DamagedError
from app.storage.folder import Folder
from app.storage.objects import Objects
from core.errors import NotFound, PrivacyError, Unavailable
from tests.servers import s3

KEY = "jobs/job_a/attempt-1/model.safetensors"


@pytest.fixture(params=["folder", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    if request.param == "folder":
        return Folder(tmp_path)
    return Bucket(f"{request.getfixturevalue('s3_bucket')}/a/prefix", tmp_path)


@pytest.fixture
def bucket(s3_bucket: str, tmp_path: Path) -> Bucket:
    return Bucket(s3_bucket, tmp_path)


def write(root: Path, key: str, content: bytes) -> tuple[Path, str]:
    path = root / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path, hashlib.sha256(content).hexdigest()


def test_what_is_published_is_found(store: Objects, tmp_path: Path) -> None:
    path, digest = write(tmp_path, KEY, b"weights")
    store.publish(KEY, path, digest)
    store.publish(KEY, path, digest)  # again: nothing changes
    assert store.local(KEY, digest).read_bytes() == b"weights"
    marker, whose = write(tmp_path, "jobs/job_a/dataset", b"ds_x")
    store.publish("jobs/job_a/dataset", marker, whose)
    assert (store.jobs(), store.marker("jobs/job_a/dataset"), store.marker("jobs/job_b/dataset")) == (
        ["job_a"],
        "ds_x",
        None,
    )
    with pytest.raises(NotFound):
        store.local("jobs/job_b/model", "0" * 64)


def test_removed_and_set_aside_jobs_are_gone(store: Objects, tmp_path: Path) -> None:
    for job in ("job_a", "job_b"):
        for name in ("dataset", "attempt-1/model", "attempt-2/model"):
            path, digest = write(tmp_path, f"jobs/{job}/{name}", name.encode())
            store.publish(f"jobs/{job}/{name}", path, digest)
    store.remove("jobs/job_a/attempt-1")
    assert store.jobs() == ["job_a", "job_b"]
    store.remove("jobs/job_a")
    store.set_aside("job_b", "forgotten")
    assert store.jobs() == [] and store.marker("forgotten/job_b/dataset") == "dataset"
    store.remove("jobs/job_c")  # nothing there


def test_a_replaced_key_holds_the_last_file_alone(store: Objects, tmp_path: Path) -> None:
    key, copy = "checkpoints/job_a/state", tmp_path / "checkpoints/job_a/copy"
    assert store.latest(key, copy) is None
    for content in (b"one", b"two"):
        part, _ = write(tmp_path, "checkpoints/job_a/part", content)
        store.replace(key, part)
        found = store.latest(key, copy)
        assert found is not None and found.read_bytes() == content and not part.exists()
    store.remove("checkpoints/job_a")
    assert store.latest(key, copy) is None


def test_a_key_is_published_once(bucket: Bucket, tmp_path: Path) -> None:
    path, digest = write(tmp_path, KEY, b"weights")
    bucket.publish(KEY, path, digest)
    path, other = write(tmp_path, KEY, b"others")
    with pytest.raises(PrivacyError, match="another content"):
        bucket.publish(KEY, path, other)
    with pytest.raises(PrivacyError, match="changed"):
        bucket.publish("jobs/job_a/x", path, digest)
    path.unlink()
    assert bucket.local(KEY, digest).read_bytes() == b"weights"


def test_a_large_file_is_published_in_pieces_and_once(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is never whole in memory."""
    monkeypatch.setattr(buckets, "ONE_PUT_BYTES", 1 << 20)
    path, digest = write(tmp_path, KEY, os.urandom(9 << 20))
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", lambda self: pytest.fail(f"{self} is read whole"))
        bucket.publish(KEY, path, digest)
        bucket.publish(KEY, path, digest)  # again: nothing changes
    assert hashlib.sha256(bucket.local(KEY, digest).read_bytes()).hexdigest() == digest
    path, other = write(tmp_path, KEY, os.urandom(9 << 20))
    with pytest.raises(PrivacyError, match="another content"):
        bucket.publish(KEY, path, other)
    with pytest.raises(PrivacyError, match="changed"):
        bucket.publish("jobs/job_a/x", path, digest)


def test_a_changed_object_is_refused_as_it_arrives(bucket: Bucket, tmp_path: Path) -> None:
    import obstore

    path, digest = write(tmp_path, KEY, b"weights")
    bucket.publish(KEY, path, digest)
    obstore.put(bucket._store, KEY, b"weighed")
    with pytest.raises(DamagedError):
        bucket.local(KEY, digest)
    assert list((tmp_path / "cache").iterdir()) == []
    obstore.put(bucket._store, KEY, b"weights")  # restored
    assert bucket.local(KEY, digest).read_bytes() == b"weights"


def test_copies_are_forgotten_after_a_day(bucket: Bucket, tmp_path: Path) -> None:
    path, digest = write(tmp_path, KEY, b"weights")
    bucket.publish(KEY, path, digest)
    copy = bucket.local(KEY, digest)
    bucket.remove("jobs/job_a")
    assert bucket.local(KEY, digest) == copy
    os.utime(copy, (0, time.time() - buckets.CACHED_S - 1))
    with pytest.raises(NotFound):
        bucket.local(KEY, digest)
    assert not copy.exists()


def test_old_copies_go_at_a_process_s_start_too(bucket: Bucket, tmp_path: Path, s3_bucket: str) -> None:
    path, digest = write(tmp_path, KEY, b"weights")
    bucket.publish(KEY, path, digest)
    copy = bucket.local(KEY, digest)
    os.utime(copy, (0, time.time() - buckets.CACHED_S - 1))
    Bucket(s3_bucket, tmp_path)
    assert not copy.exists()


def test_a_copy_that_the_disk_has_changed_is_fetched_anew(bucket: Bucket, tmp_path: Path) -> None:
    path, digest = write(tmp_path, KEY, b"weights")
    bucket.publish(KEY, path, digest)
    copy = bucket.local(KEY, digest)
    copy.write_bytes(b"weighed")
    assert bucket.local(KEY, digest).read_bytes() == b"weights"
    copy.write_bytes(b"weighed")
    bucket.remove("jobs/job_a")
    with pytest.raises(NotFound):
        bucket.local(KEY, digest)
    assert not copy.exists()


def test_a_store_that_is_away_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        bucket = Bucket(server.bucket(), tmp_path)
    with pytest.raises(Unavailable, match="object store"):
        bucket.jobs()
    with pytest.raises(Unavailable):
        bucket.local(KEY, "0" * 64)
