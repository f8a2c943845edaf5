"""`scrimp upgrade` moves an old home to this release, or leaves it exactly as it was."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Connection, text
from typer.testing import CliRunner, Result

from app.db.database import Database, make_engine
from app.db.migrate import current_revision, head_revision, migrate
from app.db.migrate import upgrade as migrate_to
from app.ledger import behind
from app.ledger.transparency.heads import Heads
from app.ledger.verification import verify
from app.settings import Settings
from scrimp.cli import app
from scrimp_server import upgrading
from tests.ledger.support import ENTRIES, a_history, add_owner
from tests.listening import listening
from tests.migrations.test_last_release import LAST_RELEASE, copied, schema_of
from tests.migrations.test_migrations import empty_database


@pytest.fixture(params=["sqlite"])
def backing(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def old(db: Database, settings: Settings, tmp_path: Path) -> Settings:
    """A home of the last release, with a ledger whose head is recorded outside its database."""
    add_owner(db)
    dataset = a_history(db)
    home = settings.model_copy(update={"home": tmp_path / "old"})
    home.home.mkdir(mode=0o700)
    shutil.copytree(settings.effective_secrets_dir, home.effective_secrets_dir)
    migrate_to(home.effective_database_url, LAST_RELEASE)
    engine = make_engine(home.effective_database_url)
    copied(db.engine, engine, schema_of(engine))
    engine.dispose()
    behind.record(db, Heads.of(home), dataset)
    return home


def command(home: Settings, *line: str) -> Result:
    variables = {"COLUMNS": "200", "SCRIMP_HOME": str(home.home), "SCRIMP_DATABASE_URL": home.database_url}
    return CliRunner().invoke(app, list(line), env=variables)


def upgrade(home: Settings, *options: str) -> Result:
    return command(home, "upgrade", *options)


def run_sql(home: Settings, *statements: str) -> None:
    engine = make_engine(home.effective_database_url)
    with engine.begin() as connection:
        for each in statements:
            connection.execute(text(each))
    engine.dispose()


def revision(url: str) -> str | None:
    engine = make_engine(url)
    with engine.connect() as connection:
        found = current_revision(connection)
    engine.dispose()
    return found


def dump(home: Settings) -> list[str]:
    with closing(sqlite3.connect(home.home / "scrimp.db")) as connection:
        return list(connection.iterdump())


def stays(home: Settings, before: list[str]) -> None:
    assert dump(home) == before
    assert not list((home.home / "backups").iterdir())


def test_an_old_home_is_upgraded_and_served(old: Settings) -> None:
    done = upgrade(old)
    assert done.exit_code == 0, done.output
    assert f"migrated  {LAST_RELEASE} to {head_revision()}" in done.output
    assert f"verified  1 ledgers of {ENTRIES} entries" in done.output
    assert done.output.count("remove it") == 1 and done.output.endswith("restart the service with this release.\n")
    (backup,) = (old.home / "backups").iterdir()
    assert backup.stat().st_mode & 0o777 == 0o600
    assert revision(f"sqlite:///{backup}") == LAST_RELEASE
    db = Database.of(old)
    with db.read() as session:
        (dataset,) = session.scalars(text("SELECT dataset_id FROM accounts"))
        assert verify(session, dataset, Heads.of(old).read(dataset)).valid
    db.close()
    with listening(old):
        pass
    again = upgrade(old)
    assert again.exit_code == 0 and "nothing to do" in again.output


def test_what_was_signed_before_there_were_logs_is_dated_from_the_upgrade_on(old: Settings) -> None:
    """Certificates and terms; a certificate of before there were envelopes has no digest."""
    signed, first = (
        [{"sig": base64.b64encode(bytes([each]) * 64).decode()} for each in some] for some in ((1, 2), (3,))
    )
    bodies = {
        "job_1": {"envelope": {"payload": "YQ==", "signatures": signed}},
        "job_2": {"envelope": None},
        "job_3": {},
    }
    terms = {"payload": "Yg==", "signatures": first}
    migrate_to(old.effective_database_url, "0050")
    with closing(sqlite3.connect(old.home / "scrimp.db")) as connection, connection:
        (dataset,) = connection.execute("SELECT dataset_id FROM accounts").fetchone()
        for job, body in bodies.items():
            row = (job, json.dumps(body), "", "2026-01-01")
            columns = "job_id, body, signature, issued_at"
            connection.execute(f"INSERT INTO certificates ({columns}) VALUES (?, ?, ?, ?)", row)  # noqa: S608 - ours
        row = (dataset, json.dumps(terms), "key", 1, 0, 0)
        connection.execute("INSERT INTO dataset_terms VALUES (?, ?, ?, ?, ?, ?)", row)
    migrate_to(old.effective_database_url, "0051")
    with closing(sqlite3.connect(old.home / "scrimp.db")) as connection:
        found = connection.execute("SELECT digest, batch, place FROM signed_digests ORDER BY digest").fetchall()
    wanted = [
        hashlib.sha256(bytes([each]) * 64 + payload).hexdigest() for each, payload in ((1, b"a"), (2, b"a"), (3, b"b"))
    ]
    assert found == [(each, None, None) for each in sorted(wanted)]


def test_a_migration_that_fails_in_the_middle_is_rolled_back(old: Settings) -> None:
    """0029 makes an index of this name, after four other migrations and columns of its own. 0057 drops it."""
    run_sql(old, "CREATE INDEX ix_attempts_crew ON attempts (job_id)")
    before = dump(old)
    failed = upgrade(old)
    assert failed.exit_code == 1
    assert "ix_attempts_crew" in failed.output and f"stays at {LAST_RELEASE}" in failed.output
    stays(old, before)
    run_sql(old, "DROP INDEX ix_attempts_crew")
    assert upgrade(old).exit_code == 0


@pytest.mark.parametrize("fault", ["behind", "changed", "unknown"])
def test_a_ledger_that_does_not_hold_undoes_the_migration(old: Settings, fault: str) -> None:
    """Its head outside is later than the database; its entries were changed; or the database lacks it."""
    heads = Heads.of(old)
    (dataset,) = heads.recorded()
    head = heads.read(dataset)
    assert head is not None
    if fault == "changed":
        with closing(sqlite3.connect(old.home / "scrimp.db")) as connection:
            guards = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'ledger_entries'"
            triggers = [row[0] for row in connection.execute(guards)]
        change = "UPDATE ledger_entries SET train = train - 1 WHERE seq = 2"
        run_sql(old, *(f"DROP TRIGGER {name}" for name in triggers), change)
    elif fault == "behind":
        heads.write(head.model_copy(update={"seq": ENTRIES + 1, "head": "ab" * 32}), heads.known(dataset))
    else:
        heads.write(head.model_copy(update={"dataset": "ds_elsewhere"}), heads.known("ds_elsewhere"))
    before = dump(old)
    failed = upgrade(old)
    assert failed.exit_code == 1 and "the migration is undone" in failed.output
    stays(old, before)


def test_what_cannot_be_upgraded_is_refused(old: Settings, tmp_path: Path) -> None:
    missing = upgrade(old.model_copy(update={"home": tmp_path / "nowhere"}))
    assert missing.exit_code == 1 and "check --home" in missing.output
    assert not (tmp_path / "nowhere").exists()
    assert upgrade(old).exit_code == 0
    run_sql(old, "UPDATE alembic_version SET version_num = '9999'")
    later = upgrade(old)
    assert later.exit_code == 1 and "install the newer release" in later.output


def test_a_backup_is_of_database_and_storage(old: Settings, tmp_path: Path) -> None:
    (old.storage_root / "jobs").mkdir(parents=True)
    (old.storage_root / "jobs" / "part").write_bytes(b"content")
    line = ("backup", str(tmp_path / "copy"))
    assert command(old, *line).exit_code == 0
    with tarfile.open(tmp_path / "copy" / "storage.tar") as archive:
        file = archive.extractfile("storage/jobs/part")
        assert file is not None and file.read() == b"content"
    assert sorted(each.name for each in (tmp_path / "copy").iterdir()) == ["SHA256SUMS", "scrimp.db", "storage.tar"]
    assert {each.stat().st_mode & 0o777 for each in (tmp_path / "copy").iterdir()} == {0o600}
    again = command(old, *line)
    assert again.exit_code == 1 and "choose another folder" in again.output


def checked(folder: Path) -> bool:
    """As docs/production.md checks a backup before it is restored."""
    line = ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"]
    return subprocess.run(line, cwd=folder, capture_output=True, check=False).returncode == 0


def test_an_archive_that_is_cut_between_two_files_is_noticed(old: Settings, tmp_path: Path) -> None:
    """`tar` ends well on it."""
    (old.storage_root / "jobs").mkdir(parents=True)
    for name in ("first", "second"):
        (old.storage_root / "jobs" / name).write_bytes(bytes(8192))
    copy = tmp_path / "copy"
    assert command(old, "backup", str(copy)).exit_code == 0
    assert checked(copy)
    with tarfile.open(copy / "storage.tar") as archive:
        cut = archive.getmember("storage/jobs/second").offset
    with (copy / "storage.tar").open("r+b") as file:
        file.truncate(cut)
    assert subprocess.run(["tar", "-tf", copy / "storage.tar"], capture_output=True, check=False).returncode == 0
    assert not checked(copy)


KILLED = """
import os, signal, sys
from pathlib import Path
from app.settings import Settings
from scrimp_server.backup import back_up

def kill(event, arguments):
    if event == "open" and str(arguments[0]).endswith(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(kill)
back_up(Settings(home=Path(sys.argv[1])), Path(sys.argv[2]))
"""


@pytest.mark.parametrize(
    ("opened", "names"),
    [
        ("storage/jobs/second", ["scrimp.db", "storage.tar.part"]),
        ("SHA256SUMS.part", ["scrimp.db", "storage.tar"]),
    ],
)
def test_a_killed_backup_is_not_taken_for_a_whole_one(
    old: Settings, tmp_path: Path, opened: str, names: list[str]
) -> None:
    (old.storage_root / "jobs").mkdir(parents=True)
    for name in ("first", "second"):
        (old.storage_root / "jobs" / name).write_bytes(bytes(8192))
    copy = tmp_path / "copy"
    line = [sys.executable, "-c", KILLED, old.home, copy, opened]
    assert subprocess.run(line, check=False, timeout=300).returncode == -signal.SIGKILL
    assert sorted(each.name for each in copy.iterdir()) == names
    assert not checked(copy)
    again = command(old, "backup", str(copy))
    assert again.exit_code == 1 and "choose another folder" in again.output
    assert command(old, "backup", str(tmp_path / "next")).exit_code == 0 and checked(tmp_path / "next")


def test_two_backups_write_no_file_together(old: Settings, tmp_path: Path) -> None:
    """One is being made there, or was stopped."""
    (tmp_path / "copy").mkdir()
    part = tmp_path / "copy" / "scrimp.db.part"
    part.write_bytes(b"another's")
    failed = command(old, "backup", str(tmp_path / "copy"))
    assert failed.exit_code == 1 and f"{part} is there" in failed.output
    assert part.read_bytes() == b"another's"


@pytest.mark.parametrize("link", ["storage", "storage/datasets"])
def test_a_storage_behind_a_link_is_in_the_backup(old: Settings, tmp_path: Path, link: str) -> None:
    """The restored one is a folder: the disk behind the link may be what was lost."""
    disk = tmp_path / "disk"
    place = old.home / link
    content = place / "datasets" / "part" if link == "storage" else place / "part"
    disk.mkdir()
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(disk)
    content.parent.mkdir(exist_ok=True)
    content.write_bytes(b"content")
    content.with_name("same").hardlink_to(content)
    done = command(old, "backup", str(tmp_path / "copy"))
    assert done.exit_code == 0, done.output
    shutil.rmtree(disk)
    place.unlink()
    shutil.rmtree(old.storage_root, ignore_errors=True)
    subprocess.run(["tar", "-C", old.home, "-xf", tmp_path / "copy" / "storage.tar"], check=True)
    assert not place.is_symlink()
    for name in ("part", "same"):
        file = old.storage_root / "datasets" / name
        assert file.read_bytes() == b"content" and file.stat().st_nlink == 1


@pytest.mark.parametrize(
    ("target", "message"), [("nowhere", "which is not there: mount it"), ("old/storage", "a folder above it")]
)
def test_a_link_without_content_of_its_own_fails_a_backup(
    old: Settings, tmp_path: Path, target: str, message: str
) -> None:
    old.storage_root.mkdir()
    (old.storage_root / "datasets").symlink_to(tmp_path / target)
    failed = command(old, "backup", str(tmp_path / "copy"))
    assert failed.exit_code == 1 and message in failed.output and "storage/datasets" in failed.output


def test_a_server_s_database_needs_a_backup_of_its_own(request: pytest.FixtureRequest, settings: Settings) -> None:
    """On PostgreSQL too one transaction migrates, and what fails in the middle is rolled back."""
    with empty_database(request, "postgres", settings.home / "unused.db") as url:
        home = settings.model_copy(update={"database_url": url})
        migrate_to(url, LAST_RELEASE)
        refused = upgrade(home)
        assert refused.exit_code == 1 and "--backed-up" in refused.output
        assert "its own tools" in command(home, "backup", str(settings.home / "copy")).output
        run_sql(home, "CREATE INDEX ix_attempts_crew ON attempts (job_id)")
        failed = upgrade(home, "--backed-up")
        assert failed.exit_code == 1 and "ix_attempts_crew" in failed.output
        assert revision(url) == LAST_RELEASE
        run_sql(home, "DROP INDEX ix_attempts_crew")
        done = upgrade(home, "--backed-up")
        assert done.exit_code == 0 and "backup" not in done.output, done.output
        assert revision(url) == head_revision()


@pytest.mark.parametrize("has_head", [True, False])
def test_a_data_set_that_is_registered_meanwhile_is_verified_too(
    request: pytest.FixtureRequest, db: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch, has_head: bool
) -> None:
    """On PostgreSQL the last release's processes go on until a migration takes its locks."""
    add_owner(db)
    dataset = a_history(db)
    with empty_database(request, "postgres", settings.home / "unused.db") as url:
        home = settings.model_copy(update={"database_url": url})
        migrate_to(url, LAST_RELEASE)

        def registered_before(connection: Connection) -> None:
            engine = make_engine(url)
            copied(db.engine, engine, schema_of(engine))
            engine.dispose()
            if has_head:
                behind.record(db, Heads.of(home), dataset)
            migrate(connection)

        monkeypatch.setattr(upgrading, "migrate", registered_before)
        done = upgrade(home, "--backed-up")
        assert done.exit_code == 0, done.output or done.exception
        assert f"verified  1 ledgers of {ENTRIES} entries" in done.output
        assert revision(url) == head_revision()
