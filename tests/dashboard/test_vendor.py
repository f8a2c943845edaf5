"""Files of others are what their tables say: unchanged, with a version and a licence."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# name, version, licence, SHA-256
ROW = r"^\| `(\S+)` \| .*? (\d+\.\d+\.\d+), .*? \| .*?`(\S+\.txt)` \| `([0-9a-f]{64})` \|$"
FOLDERS = [ROOT / "app/dashboard/static/vendor", ROOT / "tests/dashboard/vendor"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.relative_to(ROOT).parts[0])
def test_every_file_of_others_has_its_hash_and_its_licence(folder: Path) -> None:
    table = re.findall(
        r"^\| `(\S+)` \| .*? (\d+\.\d+\.\d+), .*? \| .*?`(\S+\.txt)` \| `([0-9a-f]{64})` \|$",
        (folder / "README.md").read_text(),
        re.M,
    )
    named = {name for name, *_ in table} | {licence for _, _, licence, _ in table} | {"README.md"}
    assert table and {each.name for each in folder.iterdir()} == named
    for name, version, licence, sha256 in table:
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == sha256, name
        assert version in name
        assert "licen" in (folder / licence).read_text().lower()
