"""An egress from the request to the folder, and what a reader finds of a folder that was changed."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zipfile import BadZipFile

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.db.models import Artifact, AuditEntry, Egress
from app.jobs.artifacts import ArtifactDamagedError
from scrimp.egress import MANIFEST, Expected, examine
from scrimp.transparency import Note
from tests.egress.conftest import World
from tests.node import by_node, needs_node

NAMES = {
    "answers/ehds.md",
    "answers/ico-dpia.md",
    "answers/nist-sp-800-226.md",
    "certificate.json",
    "log.json",
    "manifest.json",
    "model/model.safetensors",
    "page.html",
    "ro-crate-metadata.json",
    "statement.json",
}


@pytest.fixture(scope="module")
def folder(shared: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared.made(shared.first, tmp_path_factory.mktemp("one") / "folder")


@pytest.fixture(scope="module")
def other(shared: World, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same job's next egress, for the same recipient."""
    return shared.made(shared.first, tmp_path_factory.mktemp("two") / "folder")


@pytest.fixture(scope="module")
def foreign(shared: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another job's egress."""
    return shared.made(shared.second, tmp_path_factory.mktemp("three") / "folder")


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(folder, tmp_path / "copy")


def names(folder: Path) -> set[str]:
    return {each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file()}


def test_the_folder_has_every_part_and_holds(shared: World, folder: Path) -> None:
    assert names(folder) == NAMES
    found = examine(folder, [shared.key], Expected(shared.first, "University Hospital"))
    assert (found.faults, found.signer_checked) == ([], True)
    assert set(found.manifest["sizes"]) == NAMES - {MANIFEST}
    assert not examine(folder).signer_checked
    assert examine(folder, ["A" * 43 + "="]).faults == ["no trusted key signed the manifest"]


def test_two_downloads_have_the_same_bytes(shared: World, folder: Path) -> None:
    one, two = (shared.call("GET", f"/v1/jobs/{shared.first}/egress", params={"number": 1}) for _ in range(2))
    assert one.content == two.content
    assert one.headers["Digest-SHA256"] == two.headers["Digest-SHA256"]


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_changed_file_is_found(shared: World, copy: Path, name: str) -> None:
    path = copy / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert examine(copy, [shared.key]).faults


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_removed_file_is_found(shared: World, copy: Path, name: str) -> None:
    (copy / name).unlink()
    assert examine(copy, [shared.key]).faults


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_renamed_file_is_found(shared: World, copy: Path, name: str) -> None:
    (copy / name).rename(copy / "renamed")
    assert examine(copy, [shared.key]).faults


@pytest.mark.parametrize("name", ["more.txt", "model/more.bin", "answers/.hidden"])
def test_an_added_file_is_found(shared: World, copy: Path, name: str) -> None:
    (copy / name).write_text("more")
    assert examine(copy, [shared.key]).faults == [f"{name} is not in the manifest"]


def test_a_link_is_found(shared: World, copy: Path, folder: Path) -> None:
    (copy / "page.html").unlink()
    (copy / "page.html").symlink_to(folder / "page.html")
    assert examine(copy, [shared.key]).faults == ["page.html is a link"]


def test_a_link_to_a_folder_is_found(shared: World, copy: Path, folder: Path) -> None:
    (copy / "extra").symlink_to(folder)
    assert examine(copy, [shared.key]).faults == ["extra is a link"]


def test_two_files_that_change_names_are_found(shared: World, copy: Path) -> None:
    one, two = copy / "log.json", copy / "certificate.json"
    content = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(content)
    assert examine(copy, [shared.key]).faults


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_file_of_another_egress_is_found(shared: World, copy: Path, foreign: Path, name: str) -> None:
    """The weights of both jobs are the same bytes here, and the statement is the data set's."""
    same = (copy / name).read_bytes() == (foreign / name).read_bytes()
    assert not same or name in ("model/model.safetensors", "statement.json")
    shutil.copy(foreign / name, copy / name)
    assert bool(examine(copy, [shared.key]).faults) != same


@pytest.mark.parametrize("name", ["manifest.json", "ro-crate-metadata.json", "page.html"])
def test_a_file_of_the_job_s_next_egress_is_found(shared: World, copy: Path, other: Path, name: str) -> None:
    shutil.copy(other / name, copy / name)
    assert examine(copy, [shared.key]).faults


def test_another_job_s_egress_in_its_place_is_found(shared: World, foreign: Path) -> None:
    assert examine(foreign, [shared.key], Expected(job=shared.first)).faults
    assert examine(foreign, [shared.key], Expected(recipient="Somebody else")).faults
    assert examine(foreign, [shared.key]).faults == []


def test_an_old_egress_is_found_by_its_time_and_by_a_newer_checkpoint(
    shared: World, folder: Path, other: Path, tmp_path: Path
) -> None:
    made = datetime.fromisoformat(examine(folder, [shared.key]).manifest["made_at"])
    assert examine(folder, [shared.key], Expected(since=made)).faults == []
    assert "an earlier egress" in examine(folder, [shared.key], Expected(since=made + timedelta(seconds=1))).faults[0]
    assert examine(other, [shared.key]).manifest["number"] == 2
    shared.finished("third")
    shared.relay.next_sweep = 0.0
    shared.let_out()
    newest = shared.call("GET", "/v1/ledger/checkpoint", params={"dataset": shared.dataset}).json()["checkpoint"]
    kept = Expected(notes=(Note.parse(newest),))
    assert "older than the checkpoint" in examine(folder, [shared.key], kept).faults[0]
    fourth = shared.made(shared.second, tmp_path / "newer", recipient="later")
    assert examine(fourth, [shared.key], kept).faults == []


def test_the_manifest_names_who_asked_and_each_step_is_in_the_audit_log(shared: World, folder: Path) -> None:
    manifest = examine(folder, [shared.key]).manifest
    assert (manifest["asked_by"], manifest["approvals"], manifest["number"]) == (shared.scene.owner.id, [], 1)
    with shared.db.read() as session:
        rows = select(AuditEntry.action).where(AuditEntry.target == shared.first).order_by(AuditEntry.id)
        told = [each for each in session.scalars(rows) if each.startswith("egress.")]
    assert told[:3] == ["egress.asked", "egress.made", "egress.downloaded"]


def test_an_egress_is_not_made_twice_and_files_that_are_gone_are_told(world: World, tmp_path: Path) -> None:
    assert world.ask(world.first).json()["status"] == "pending"
    refused = world.ask(world.first)
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/wrong-state")
    path = f"/v1/jobs/{world.first}/egress"
    assert world.call("GET", path).json()["type"] == "/problems/egress-pending"
    world.let_out()
    world.let_out()
    assert len(world.call("GET", f"/v1/jobs/{world.first}/egresses").json()["items"]) == 1
    (world.relay.settings.storage_root / "jobs" / world.second / "model.safetensors").write_bytes(b"others")
    world.ask(world.second)
    world.let_out()
    (shown,) = world.call("GET", f"/v1/jobs/{world.second}/egresses").json()["items"]
    assert (shown["status"], shown["problem"]) == ("failed", "a file of the job is missing or damaged")
    assert world.call("GET", f"/v1/jobs/{world.second}/egress").status_code == 404
    assert world.call("DELETE", f"/v1/jobs/{world.second}/artifacts").status_code == 200
    assert world.ask(world.second).json()["type"] == "/problems/wrong-state"


@pytest.mark.parametrize("damaged", ["papers", "model"])
def test_a_damaged_archive_does_not_leave(world: World, damaged: str) -> None:
    """It breaks off before its end."""
    world.ask(world.first)
    world.let_out()
    root = world.relay.settings.storage_root
    with world.db.read() as session:
        papers = session.scalars(select(Egress.path).where(Egress.job_id == world.first)).one()
        model = session.scalars(select(Artifact.path).where(Artifact.job_id == world.first)).first()
    path = root / str(papers if damaged == "papers" else model)
    content = bytearray(path.read_bytes())
    content[content.index(b"differential") if damaged == "papers" else len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises((ArtifactDamagedError, BadZipFile)):
        TestClient(world.client.app).get(
            f"/v1/jobs/{world.first}/egress", headers={"Authorization": f"Bearer {world.scene.owner.token}"}
        )


def test_no_private_count_is_in_the_folder(shared: World, folder: Path) -> None:
    """Certificate and ledger are what callers see anyway; all other documents follow from them and from the request."""
    shown = shared.call("GET", f"/v1/jobs/{shared.first}/certificate").json()
    assert json.loads((folder / "certificate.json").read_text()) == shown
    entries = json.loads((folder / "statement.json").read_text())["ledgers"][0]["entries"]
    answer = shared.call("GET", f"/v1/datasets/{shared.dataset}/ledger/entries").json()["items"]
    assert entries == answer[: len(entries)]
    words = "".join((folder / name).read_text() for name in NAMES if name.endswith((".md", ".html")))
    assert "Not covered" in words and datetime.now(UTC).strftime("%Y") in words


@needs_node
def test_the_verifier_in_javascript_finds_the_same(shared: World, folder: Path, foreign: Path, tmp_path: Path) -> None:
    whole = by_node(folder, "--public-key", shared.key)
    assert whole.returncode == 0, whole.stdout + whole.stderr
    assert by_node(folder).returncode == 2
    assert by_node(folder, "--public-key", "A" * 43 + "=").returncode == 1
    for name in sorted(NAMES):
        changed = shutil.copytree(folder, tmp_path / name.replace("/", "-"))
        content = bytearray((changed / name).read_bytes())
        content[len(content) // 2] ^= 1
        (changed / name).write_bytes(content)
        assert by_node(changed, "--public-key", shared.key).returncode, name
        shutil.copy(folder / name, changed / name)
        (changed / "more.txt").write_text("more")
        assert "more.txt is not in the manifest" in by_node(changed, "--public-key", shared.key).stdout
        (changed / "more.txt").unlink()
        (changed / name).unlink()
        assert by_node(changed, "--public-key", shared.key).returncode, name
        shutil.copy(foreign / name, changed / name)
        same = (foreign / name).read_bytes() == (folder / name).read_bytes()
        assert bool(by_node(changed, "--public-key", shared.key).returncode) != same, name
