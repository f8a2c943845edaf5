"""Parts of data sets in a bucket on a real S3 server: published once, fetched, checked, bounded, shared."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest

from app.formats.asked import WrittenFile, WrittenParts
from app.formats.checked import checked, checked_whole
from app.secrets import ensure_secrets, write_private
from app.settings import Settings
from app.storage import bucket as buckets
from app.storage.bucket import Bucket
from app.storage.cache import PartCache
from app.storage.parts import InBucket, InFolder, Published
from app.storage.seals import Seals
from core.contracts.stored_documents import PartFiles, StoredFile
from core.errors import PrivacyError, StorageFull
from core.parts.damage import DataDamagedError
from core.parts.layout import Index, index_path
from core.parts.part_files import load_part, save_part
from core.parts.sealed import header_of
from core.parts.stored_records import StoredPart


@pytest.fixture
def address(s3_bucket: str) -> str:
    return f"{s3_bucket}/a"


class World:
    """Two machines and a bucket."""

    def __init__(self, address: str, tmp_path: Path, cache_bytes: int = 2**30, *, sealed: bool = False) -> None:
        self.api, self.worker = tmp_path / "api", tmp_path / "worker"
        self.settings = Settings(home=tmp_path, encrypt_parts=sealed)
        ensure_secrets(self.settings)
        self.seals = Seals(self.settings)
        self.bucket = Bucket(address, self.api)
        self.at_api = InBucket(self.bucket, self.api, cache_bytes, self.seals)
        self.at_worker = InBucket(Bucket(address, self.worker), self.worker, cache_bytes, self.seals)

    def publish(self, dataset: str, rows: int = 1000) -> Published:
        folder = self.api / "staging" / dataset
        folder.mkdir(parents=True)
        digest = save_part(folder / "train.arrow", part(rows), self.seals.new())
        made = self.at_api.publish(dataset, folder, WrittenParts(train=WrittenFile(file="train.arrow", sha256=digest)))
        for path in folder.iterdir():
            path.unlink()
        return made


@pytest.fixture
def world(address: str, tmp_path: Path) -> World:
    return World(address, tmp_path)


def part(rows: int = 1000) -> StoredPart:
    x = np.arange(rows * 100, dtype=np.float32).reshape(rows, 100)
    return StoredPart(x=x, y=np.zeros(rows, dtype=np.int64))


def row(made: Published) -> tuple[str, str]:
    train = made.rows.train
    assert train is not None
    return train.path, train.sha256


def test_a_part_travels_from_machine_to_machine(world: World) -> None:
    made = world.publish("ds_a")
    path, digest = row(made)
    with world.at_worker.held(path, digest) as copy:
        assert copy.is_relative_to(world.worker) and copy.stat().st_mode & 0o077 == 0
        loaded = load_part(copy, digest)
        assert made.rows.all[0].bytes == copy.stat().st_size + index_path(copy).stat().st_size
    assert isinstance(loaded.x, np.ndarray) and np.array_equal(loaded.x, part().x)  # type: ignore[arg-type]
    obstore.delete(world.bucket._store, [path])
    with world.at_worker.held(path, digest) as again:  # from the copy
        assert again == copy
    assert world.at_worker.copied() == ["ds_a"]


def test_copies_are_sealed_and_a_bucket_s_objects_are_the_bucket_s(address: str, tmp_path: Path) -> None:
    world = World(address, tmp_path, sealed=True)
    made = world.publish("ds_a")
    path, digest = row(made)
    stored = {each["path"]: each["size"] for some in obstore.list(world.bucket._store) for each in some}
    assert stored[path] + stored[f"{path}.index"] == made.rows.all[0].bytes
    assert bytes(obstore.get(world.bucket._store, path).bytes())[:6] == b"ARROW1"
    with world.at_worker.held(path, digest) as copy:
        seal = world.seals.key_of(copy)
        assert seal is not None and header_of(index_path(copy)) is not None
        loaded = load_part(copy, digest, seal.key)
        assert isinstance(loaded.x, np.ndarray) and np.array_equal(loaded.x, part().x)  # type: ignore[arg-type]
    write_private(tmp_path / "secrets" / "parts_key", "cd" * 32, overwrite=True)  # a copy that nobody opens any more
    plain = InBucket(Bucket(address, world.worker), world.worker, 2**30, Seals(Settings(home=tmp_path)))
    for parts_of, sealed in ((world.at_worker, True), (plain, False), (world.at_worker, True)):
        with parts_of.held(path, digest) as copy:
            assert (world.seals.key_of(copy) is not None) is sealed, "it is fetched anew, as it is to be now"


def test_objects_are_encrypted_as_the_settings_ask(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what the server says of each object: put in one request, in pieces, and renamed."""
    import boto3

    endpoint = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"], "region_name": os.environ["AWS_REGION"]}
    client: Any = boto3.client("s3", **endpoint)
    name, prefix = address.removeprefix("s3://").split("/", 1)
    key = boto3.client("kms", **endpoint).create_key()["KeyMetadata"]["Arn"]
    for asked, kms in (("AES256", ""), ("aws:kms", key)):
        bucket = Bucket(f"{address}/{asked[:3]}", tmp_path / asked[:3], asked, kms)
        content = b"x" * (9 << 20)
        (tmp_path / "file").write_bytes(b"weights")
        bucket.publish("jobs/job_a/dataset", tmp_path / "file", hashlib.sha256(b"weights").hexdigest())
        bucket.upload("datasets/one", [content], len(content))
        with monkeypatch.context() as patched:
            patched.setattr(buckets, "ONE_PUT_BYTES", 1)
            bucket.upload("datasets/pieces", [content], len(content))
        bucket.set_aside("job_a", "forgotten")
        for each in ("datasets/one", "datasets/pieces", "forgotten/job_a/dataset"):
            found = client.head_object(Bucket=name, Key=f"{prefix}/{asked[:3]}/{each}")
            assert found["ServerSideEncryption"] == asked, each
            assert found.get("SSEKMSKeyId", "") == kms, each


def test_a_changed_object_does_not_arrive(world: World) -> None:
    path, digest = row(world.publish("ds_a"))
    store = world.bucket._store
    whole = bytes(obstore.get(store, path).bytes())
    for damage in (whole[: len(whole) // 2], whole[:200_000] + b"\1" + whole[200_001:]):
        obstore.put(store, path, damage)
        with pytest.raises(DataDamagedError), world.at_worker.held(path, digest):
            pass
        assert [each.name for each in world.worker.rglob("train*")] == ["train.arrow.index"]
    obstore.put(store, path, whole)
    with world.at_worker.held(path, digest):
        pass
    obstore.put(store, f"{path}.index", b"{}")
    assert world.at_worker.discard("ds_a")
    with pytest.raises(DataDamagedError), world.at_worker.held(path, digest):
        pass
    obstore.delete(store, [f"{path}.index"])
    with pytest.raises(DataDamagedError, match="no longer"), world.at_worker.held(path, digest):
        pass


def test_a_part_that_changed_before_its_upload_is_not_published(world: World, address: str) -> None:
    folder = world.api / "staging"
    folder.mkdir(parents=True)
    digest = save_part(folder / "train.arrow", part())
    content = bytearray((folder / "train.arrow").read_bytes())
    content[100_000] ^= 1
    (folder / "train.arrow").write_bytes(content)
    with pytest.raises(DataDamagedError):
        world.at_api.publish("ds_a", folder, WrittenParts(train=WrittenFile(file="train.arrow", sha256=digest)))
    assert [each for some in obstore.list(world.bucket._store) for each in some] == []


def test_a_large_part_arrives_in_pieces(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.storage.bucket.ONE_PUT_BYTES", 2**20)
    monkeypatch.setattr("app.storage.bucket.FEWEST_PIECE_BYTES", 5 * 2**20)
    monkeypatch.setattr("app.storage.bucket.RANGE_BYTES", 2**20)
    made = world.publish("ds_a", rows=20_000)
    path, digest = row(made)
    assert made.rows.all[0].bytes > 7 * 2**20
    heard = []
    with world.at_worker.held(path, digest, lambda: heard.append(1)) as copy:
        assert load_part(copy, digest).shape == (20_000, 100)
    assert len(heard) == 8

    class TooMuch(Exception):
        pass

    def stop() -> None:
        raise TooMuch

    assert world.at_worker.discard("ds_a")
    with pytest.raises(TooMuch), world.at_worker.held(path, digest, stop):
        pass
    assert not list(world.worker.rglob("*.part"))


def test_a_key_is_given_once(world: World) -> None:
    world.bucket.upload("datasets/x", [b"one"], 3)
    with pytest.raises(PrivacyError, match="before"):
        world.bucket.upload("datasets/x", [b"two"], 3)


def test_what_no_transaction_named_is_withdrawn(world: World) -> None:
    first, second = world.publish("ds_a"), world.publish("ds_b")
    world.at_api.withdraw(first)
    left = {each["path"].split("/")[1] for some in obstore.list(world.bucket._store) for each in some}
    assert left == {"ds_b"} and first.prefix != second.prefix


def test_the_least_recently_used_copies_go(address: str, tmp_path: Path) -> None:
    world = World(address, tmp_path, cache_bytes=1_000_000)  # two of these fit
    made = {name: row(world.publish(name)) for name in ("ds_a", "ds_b", "ds_c", "ds_d")}
    for age, name in enumerate(("ds_b", "ds_a")):
        with world.at_worker.held(*made[name]):
            pass
        os.utime(world.worker / "cache" / "datasets" / ".locks" / f"{name}.use", (0, 1000.0 + age))
    with world.at_worker.held(*made["ds_c"]):
        assert world.at_worker.copied() == ["ds_a", "ds_c"]
        with world.at_worker.held(*made["ds_a"]):
            with pytest.raises(StorageFull, match="SCRIMP_CACHE_BYTES"), world.at_worker.held(*made["ds_d"]):
                pass
            assert not world.at_worker.cache.forget("ds_a")
        with world.at_worker.held(*made["ds_d"]) as copy:
            assert copy.is_file() and "ds_a" not in world.at_worker.copied()


def test_one_process_fetches_for_all(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    path, digest = row(world.publish("ds_a"))
    asked: list[str] = []
    blocks = Bucket.blocks

    def counted(self: Bucket, key: str, size: int) -> Iterator[bytes]:
        asked.append(key)
        return blocks(self, key, size)

    monkeypatch.setattr(Bucket, "blocks", counted)

    def use() -> None:
        with world.at_worker.held(path, digest) as copy:
            load_part(copy, digest)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(300)
    assert sorted(asked) == [path, f"{path}.index"]


def test_parts_from_before_the_bucket_are_read_where_they_lie(world: World) -> None:
    own = InFolder(world.worker)
    folder = world.worker / "staging" / "x"
    folder.mkdir(parents=True)
    digest = save_part(folder / "train.arrow", part())
    made = own.publish("ds_old", folder, WrittenParts(train=WrittenFile(file="train.arrow", sha256=digest)))
    own.place("ds_old", folder)
    path, _digest = row(made)
    with world.at_worker.held(path, digest) as found:
        assert found == (world.worker / path).resolve()
    assert (
        world.at_worker.stored_bytes("ds_old", PartFiles(train=StoredFile(path=path, sha256="ab")))
        == made.rows.all[0].bytes
    )
    assert world.at_worker.remove("ds_old") and not found.exists()


def test_removal_takes_the_objects_and_this_machine_s_copies(world: World) -> None:
    path, digest = row(world.publish("ds_a"))
    with world.at_worker.held(path, digest):
        assert not world.at_worker.remove("ds_a"), "a job uses the copy"
    assert world.at_worker.remove("ds_a") and world.at_worker.copied() == []
    assert [each for some in obstore.list(world.bucket._store) for each in some] == []


def test_what_a_dead_process_left_half_fetched_is_fetched_anew(world: World) -> None:
    path, digest = row(world.publish("ds_a"))
    _, dataset, rest = path.split("/", 2)
    left = world.worker / "cache" / "datasets" / dataset / f"{rest}.part"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    with world.at_worker.held(path, digest) as copy:
        assert load_part(copy, digest).shape == (1000, 100)
    assert not left.exists()


@pytest.mark.parametrize("step", [1, 7, 1000, 2**20])
def test_a_stream_is_compared_however_it_is_cut(tmp_path: Path, step: int) -> None:
    digest = save_part(tmp_path / "p.arrow", part(30 if step < 1000 else 2000))
    index, whole = Index.read(tmp_path / "p.arrow", digest), (tmp_path / "p.arrow").read_bytes()

    def cut(content: bytes) -> list[bytes]:
        return [content[start : start + step] for start in range(0, len(content), step)]

    assert b"".join(checked(cut(whole), index)) == whole
    last = index.chunks[-1]
    end = int(last["offset"]) + int(last["length"])
    for place in (int(index.chunks[0]["offset"]), end - 1):
        bad = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
        with pytest.raises(DataDamagedError):
            list(checked(cut(bad), index))
    with pytest.raises(DataDamagedError):
        list(checked(cut(whole[: end - 1]), index))


def test_a_part_of_before_has_one_hash() -> None:
    assert list(checked_whole([b"a", b"b"], hashlib.sha256(b"ab").hexdigest())) == [b"a", b"b"]
    with pytest.raises(DataDamagedError):
        list(checked_whole([b"a", b"c"], hashlib.sha256(b"ab").hexdigest()))


def test_a_cache_s_bound_counts_what_is_being_fetched(tmp_path: Path) -> None:
    cache = PartCache(tmp_path, 100)
    with cache.using("ds_a") as one, cache.new(one / "x", 60), cache.using("ds_b") as other:
        with pytest.raises(StorageFull), cache.new(other / "x", 60):
            pass
        with cache.new(other / "x", 40) as file:
            file.write_bytes(b"x")
    assert (tmp_path / "ds_b" / "x").read_bytes() == b"x"
