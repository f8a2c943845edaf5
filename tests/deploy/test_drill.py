"""docs/production.md, "Backup and restore": its commands are run as they stand there, on SQLite and on PostgreSQL."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest

from app.datasets import volume
from app.db.database import Database
from app.db.migrate import upgrade
from app.db.models import Dataset
from app.ledger.transparency.heads import Heads
from app.lifecycle import restore
from app.renewal import rotation
from app.secrets import ensure_secrets, load_secret, load_secrets, secret_id, write_private
from app.settings import Settings
from app.storage import objects, parts
from app.storage.seals import KeyMissing, Seals
from core.parts.part_files import load_part
from core.parts.sealed import MAGIC
from tests import servers
from tests.datasets.conftest import CSV, spec
from tests.factories import add_dataset
from tests.lifecycle.test_restore import CAP, World

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = dict(
    re.findall(r"<!-- drill: ([a-z-]+) -->\n```[a-z]*\n(.*?)```", (ROOT / "docs" / "production.md").read_text(), re.S)
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path that PostgreSQL's own user can reach."""
    made = Path(tempfile.mkdtemp(prefix="drill"))
    made.chmod(0o777)
    yield made
    shutil.rmtree(made, ignore_errors=True)


class Drill:
    """Runs a block of the document, with the `scrimp` of this project."""

    def __init__(self, folder: Path, path: str = "", **environment: str) -> None:
        self.home, self.backup = folder / "home", folder / "backup"
        commands = folder / "bin"
        commands.mkdir()
        (commands / "scrimp").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m scrimp.cli "$@"\n')
        (commands / "scrimp").chmod(0o755)
        self.environment = os.environ | {
            "PATH": f"{commands}:{path}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "SCRIMP_HOME": str(self.home),
            "BACKUP": str(self.backup),
            **environment,
        }

    def run(self, block: str, **more: str) -> subprocess.CompletedProcess[str]:
        line = ["bash", "-eu", "-c", BLOCKS[block]]
        environment = self.environment | more
        return subprocess.run(line, env=environment, cwd="/", capture_output=True, text=True, timeout=300, check=False)


def spent_after(world: World, dataset: str) -> int:
    world.run(world.submit(dataset, 0.9, "first").json()["id"])
    return world.account(dataset).train_spent


def is_noticed_and_posted(drill: Drill, settings: Settings, dataset: str, spent: int, restored: str) -> None:
    assert f"train {spent}, holdout 0" in restored
    posted = drill.run("post", DATASET=dataset)
    assert posted.returncode == 0, posted.stderr + posted.stdout
    world = World.__new__(World)
    World.__init__(world, settings, None, drill.home)
    assert world.account(dataset).train_spent == spent
    assert restore.gaps(world.db, Heads.of(settings), objects.of(settings)) == []
    world.db.close()


@pytest.mark.nightly  # by day: a sealed home, which is one too
def test_sqlite(folder: Path) -> None:
    """Attack (Reliability): The operator restores by the book
    Now: docs/production.md, run as written on SQLite and PostgreSQL
    Also: tests/deploy/test_drill.py::test_postgresql_to_a_point_in_time
    """
    drill = Drill(folder)
    settings = Settings(home=drill.home, allowed_hosts=["testserver"])
    (drill.home / "storage").mkdir(mode=0o700, parents=True)
    ensure_secrets(settings)
    upgrade(settings.effective_database_url)
    world = World(settings, None, folder)
    dataset = add_dataset(world.db, privacy=CAP, holdout=None)
    backed_up = drill.run("sqlite-backup")
    assert backed_up.returncode == 0, backed_up.stderr
    spent = spent_after(world, dataset)
    world.db.close()
    shutil.rmtree(settings.storage_root)  # the storage was lost too
    restored = drill.run("sqlite-restore")
    assert restored.returncode == 1, restored.stderr
    assert settings.storage_root.is_dir()
    is_noticed_and_posted(drill, settings, dataset, spent, restored.stdout)


def registered(settings: Settings, folder: Path) -> tuple[World, str]:
    """A new home, and the id of the data set in it."""
    ensure_secrets(settings)
    upgrade(settings.effective_database_url)
    world = World(settings, None, folder)
    with world.api() as client:
        made = client.post(
            "/v1/datasets", files={"spec": (None, json.dumps(spec(privacy=CAP, holdout=None))), "file": ("file", CSV)}
        )
    assert made.status_code == 201, made.text
    return world, made.json()["id"]


def test_a_sealed_home(folder: Path) -> None:
    """The backup is of before a rotation: it opens with the key of its time, which the operator kept elsewhere."""
    drill = Drill(folder, SCRIMP_ENCRYPT_PARTS="true")
    settings = Settings(home=drill.home, allowed_hosts=["testserver"], encrypt_parts=True)
    (drill.home / "storage").mkdir(mode=0o700, parents=True)
    world, dataset = registered(settings, folder)
    with world.db.read() as session:
        part = session.get_one(Dataset, dataset).parts.train
    backed_up = drill.run("sqlite-backup")
    assert backed_up.returncode == 0, backed_up.stderr
    with tarfile.open(drill.backup / "storage.tar") as archive:
        named = [each for each in archive if each.isfile() and each.size and Path(each.name).name != volume.NAME]
        files = [archive.extractfile(each) for each in named]
        assert len(files) >= 3 and all(each is not None and each.read(8) == MAGIC for each in files)
    old = load_secret(settings, "parts_key")
    rotation.rotate(world.db, settings, "parts_key")
    rotation.finish(world.db, settings, "parts_key")
    world.db.close()
    shutil.rmtree(settings.storage_root)
    assert drill.run("sqlite-restore").returncode == 0
    path, seals = settings.storage_root / part.path, Seals(settings)
    with pytest.raises(KeyMissing, match=secret_id(old)):
        seals.key_of(path)
    new = load_secret(settings, "parts_key")
    kept = settings.effective_secrets_dir / "parts_key"
    write_private(kept, f"{new.hex()}\n{old.hex()}\n", overwrite=True)
    db = Database.of(settings)
    rotation.finish(db, settings, "parts_key")
    db.close()
    seal = seals.key_of(path)
    assert load_secrets(settings, "parts_key") == (new,) and seal is not None
    assert load_part(path, part.sha256, seal.key).units == 60


AWS = """#!{python}
import sys, obstore
from app.storage.s3 import client
source, target = map(client, sys.argv[3:5])
assert sys.argv[1:3] == ["s3", "sync"]
for some in obstore.list(source):
    for each in some:
        obstore.put(target, each["path"], obstore.get(source, each["path"]).bytes())
"""


@pytest.mark.nightly  # by day drills without buckets; buckets in tests/system/test_parts.py
def test_with_buckets(folder: Path, s3_server: servers.S3, s3_bucket: str) -> None:
    """The database and the bucket of data sets are set back; the bucket of heads is not. `aws` is a stand-in."""
    stores = {
        "SCRIMP_OBJECT_STORE": f"{s3_bucket}/team",
        "SCRIMP_HEADS_STORE": s3_server.bucket(),
        "BACKUP_STORE": s3_server.bucket(),
    }
    drill = Drill(folder, **s3_server.environment, **stores)
    aws = folder / "bin" / "aws"
    aws.write_text(AWS.format(python=sys.executable))
    aws.chmod(0o755)
    settings = Settings(
        home=drill.home,
        allowed_hosts=["testserver"],
        object_store=stores["SCRIMP_OBJECT_STORE"],
        heads_store=stores["SCRIMP_HEADS_STORE"],
    )
    drill.home.mkdir(mode=0o700)
    world, dataset = registered(settings, folder)
    backed_up = drill.run("bucket-backup")
    assert backed_up.returncode == 0, backed_up.stderr
    spent = spent_after(world, dataset)
    stored = world.db
    with stored.read() as session:
        part = session.get_one(Dataset, dataset).parts.train
    world.db.close()
    parts.of(settings).remove(dataset)  # the bucket was lost too
    restored = drill.run("bucket-restore")
    assert restored.returncode == 1, restored.stderr
    is_noticed_and_posted(drill, settings, dataset, spent, restored.stdout)
    with parts.of(settings).held(part.path, part.sha256) as copy:
        assert load_part(copy, part.sha256).units > 0


@pytest.fixture
def postgres(folder: Path) -> Iterator[SimpleNamespace]:
    """A server as an operator has it: its own folder, its log archived as the document says."""
    binaries = servers.postgres_binaries()
    data = folder / "data"
    (folder / "backup" / "wal").mkdir(parents=True)
    for each in (folder / "backup", folder / "backup" / "wal"):
        each.chmod(0o777)
    # PostgreSQL does not run as root: there its own commands run as another user.
    wrapped = folder / "pg"
    wrapped.mkdir()
    user = "setpriv --reuid=65534 --regid=65534 --clear-groups " if os.geteuid() == 0 else ""
    for name in ("pg_ctl", "pg_basebackup", "initdb"):
        (wrapped / name).write_text(f'#!/bin/sh\nexec {user}"{binaries / name}" "$@"\n')
        (wrapped / name).chmod(0o755)
    environment = os.environ | {"LC_ALL": "C"}

    def run(*line: str) -> None:
        subprocess.run([str(wrapped / line[0]), *line[1:]], check=True, capture_output=True, env=environment, cwd="/")

    run("initdb", "-D", str(data), "-U", "postgres", "--auth=trust", "-E", "UTF8")
    with (data / "postgresql.conf").open("a") as file:
        file.write(BLOCKS["postgres-settings"].replace("$BACKUP", str(folder / "backup")))
        file.write(f"listen_addresses = ''\nunix_socket_directories = '{folder}'\n")
    run("pg_ctl", "-D", str(data), "-l", str(folder / "backup" / "server.log"), "-w", "start")
    yield SimpleNamespace(path=str(wrapped), data=data, url=f"postgresql://postgres@/postgres?host={folder}")
    run("pg_ctl", "-D", str(data), "-m", "immediate", "stop")


@pytest.mark.slow
def test_postgresql_to_a_point_in_time(folder: Path, postgres: SimpleNamespace) -> None:
    url = postgres.url.replace("postgresql://", "postgresql+psycopg://")
    more = {"PGDATA": str(postgres.data), "PGURL": postgres.url, "SCRIMP_DATABASE_URL": url}
    drill = Drill(folder, postgres.path, **more)
    settings = Settings(home=drill.home, database_url=url, allowed_hosts=["testserver"])
    (drill.home / "storage").mkdir(mode=0o700, parents=True)
    ensure_secrets(settings)
    upgrade(url)
    world = World(settings, None, folder)
    backed_up = drill.run("postgres-backup")
    assert backed_up.returncode == 0, backed_up.stderr
    dataset = add_dataset(world.db, privacy=CAP, holdout=None)  # after the backup: in the archived log alone
    when = datetime.now(UTC).isoformat()
    spent = spent_after(world, dataset)
    world.db.close()
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("SELECT pg_switch_wal()")
    restored = drill.run("postgres-restore", WHEN=when)
    assert restored.returncode == 1, restored.stderr + restored.stdout
    is_noticed_and_posted(drill, settings, dataset, spent, restored.stdout)
