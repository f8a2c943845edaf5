"""An attempt puts links, pipes and other files in its artifacts' place: nothing of the service is read or replaced."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from core.contracts.stored_documents import ArtifactFile
from core.errors import PrivacyError
from worker.attempt.output_files import read_artifact, take_over

SECRET = b"the service's"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """An attempt's folder, beside a file of the service."""
    folder = tmp_path / "attempt-1"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(SECRET)
    return folder


def reported(path: Path, content: bytes = SECRET) -> ArtifactFile:
    digest = hashlib.sha256(content).hexdigest()
    return ArtifactFile(name=path.name, path=str(path), sha256=digest, size_bytes=len(content))


def test_a_file_is_read_as_it_was_reported(output: Path) -> None:
    (output / "model").write_bytes(b"weights")
    assert read_artifact(output, reported(output / "model", b"weights")) == b"weights"


def of_folders(output: Path) -> Path:
    (output / "below").symlink_to(output.parent)
    return output / "below" / "secret"


def of_a_link(output: Path) -> Path:
    (output / "model").symlink_to(output.parent / "secret")
    return output / "model"


def of_a_second_name(output: Path) -> Path:
    os.link(output.parent / "secret", output / "model")
    return output / "model"


def of_a_pipe(output: Path) -> Path:
    os.mkfifo(output / "model")
    return output / "model"


def of_a_folder(output: Path) -> Path:
    (output / "model").mkdir()
    return output / "model"


def of_another_content(output: Path) -> Path:
    (output / "model").write_bytes(SECRET[::-1])
    return output / "model"


def of_a_file_that_grew(output: Path) -> Path:
    (output / "model").write_bytes(SECRET + b"more")
    return output / "model"


@pytest.mark.parametrize(
    "planted",
    [
        of_folders,
        of_a_link,
        of_a_second_name,
        of_a_pipe,
        of_a_folder,
        of_another_content,
        of_a_file_that_grew,
        lambda output: output.parent / "secret",
        lambda output: output / ".." / "secret",
    ],
)
def test_what_is_planted_in_its_place_is_not_read(output: Path, planted: Callable[[Path], Path]) -> None:
    """The attempt knows what the secret's SHA-256 is. By path, links were followed, and a pipe was waited for.

    Attack (Doors): A hostile attempt that puts a link, a pipe, a second name or another folder in its artifacts' place
    Now: opened once by descriptor, never through a link; regular files of one name, in the attempt's own folder
    Also: tests/worker/test_artifacts.py::test_a_link_in_the_folder_s_place_is_not_followed
    """
    with pytest.raises(PrivacyError):
        read_artifact(output, reported(planted(output)))


def test_a_link_in_a_file_s_place_is_replaced_and_not_followed(output: Path) -> None:
    secret = output.parent / "secret"
    (output / "model").symlink_to(secret)
    (output / "model.own").symlink_to(secret)
    take_over(output, "model", b"weights")
    assert secret.read_bytes() == SECRET
    assert (output / "model").read_bytes() == b"weights" and not (output / "model").is_symlink()


def test_a_link_in_the_folder_s_place_is_not_followed(output: Path) -> None:
    """By path, a folder of the service was closed, and its file of this name replaced."""
    own = output.parent / "own"
    own.mkdir()
    own.chmod(0o755)  # whatever the process's mask
    (own / "secret").write_bytes(SECRET)
    output.rmdir()
    output.symlink_to(own)
    with pytest.raises(OSError):
        take_over(output, "secret", b"mine")
    with pytest.raises(OSError):
        read_artifact(output, reported(own / "secret"))
    assert (own / "secret").read_bytes() == SECRET and own.stat().st_mode & 0o777 == 0o755
