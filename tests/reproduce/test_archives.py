"""The kept runs of reports: each archive is whole, and a damaged one is refused."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import pytest

from benchmarks.reproduce.runs import REPORTS, Kept, read_archive

ARCHIVES = sorted(REPORTS.glob("*.json.gz"))


@pytest.mark.parametrize("path", ARCHIVES, ids=lambda path: path.name)
def test_each_report_s_archive_is_whole(path: Path) -> None:
    assert read_archive(path)


def test_no_report_keeps_its_runs_uncompressed() -> None:
    assert ARCHIVES and not list(REPORTS.glob("*.json"))


def test_kept_runs_survive_and_damage_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.json.gz"
    answer = Kept(path).get({"seed": 1}, lambda: {"accuracy": 0.5})
    assert Kept(path).get({"seed": 1}, lambda: {"accuracy": 0.75}) == answer == {"accuracy": 0.5}
    whole = path.read_bytes()
    for place in range(len(whole) - 8, len(whole)):  # the CRC-32 and the length
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises((gzip.BadGzipFile, zlib.error, EOFError)):
            read_archive(path)
