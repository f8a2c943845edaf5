"""Few files are parsed at once, as each process may take gigabytes; and a recount sees its parts alone."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from app.datasets.parsing import RECOUNTER, Parsers
from app.formats.asked import PartCount, PartCounts, RecountRequest, SealedPart
from app.formats.recount import recount
from app.sandbox import limited as sandbox
from app.sandbox.confinement import Policy
from app.sandbox.limited import HelperProcess
from app.settings import Settings
from core.parts.damage import DataDamagedError
from core.parts.layout import index_path
from core.parts.part_files import save_part
from core.parts.sealed import WRAP_BYTES, DataKey
from core.parts.stored_records import StoredPart
from tests.datasets.conftest import CSV, Api, spec
from worker.attempt.confined import probe


def test_a_registration_that_finds_no_free_parser_is_told_to_come_again(api: Api) -> None:
    parsers = api.client.app.state.parsers
    parsers._settings = api.settings.model_copy(update={"parse_wait_s": 0.05})
    for _ in range(api.settings.max_parsers):
        assert parsers._free.acquire(blocking=False)
    busy = api.upload(spec("waits"), CSV)
    assert (busy.status_code, busy.headers["Retry-After"]) == (503, "5")
    assert "try again" in busy.json()["detail"]
    parsers._settings = api.settings
    threading.Timer(0.2, parsers._free.release).start()
    assert api.upload(spec("waits"), CSV).status_code == 201
    assert parsers._free.acquire(blocking=False), "its place is given back"


class Noted(sandbox.Fresh):
    """Notes what the kernel says of each process that counts, after its answer and before its end."""

    def __init__(self) -> None:
        self.policies: list[Policy] = []
        self.states: list[dict[str, str]] = []

    def take(
        self,
        target: str,
        memory_bytes: int,
        preload: Sequence[str] = (),
        cpu_s: int | None = None,
        files: Policy = Policy(),
    ) -> HelperProcess:
        if target == RECOUNTER:
            self.policies.append(files)
        return super().take(target, memory_bytes, preload, cpu_s, files)

    def give_back(self, target: str, process: HelperProcess) -> None:
        if target == RECOUNTER:
            lines = Path(f"/proc/{process._popen.pid}/status").read_text().splitlines()
            self.states.append(dict(line.split(":\t", 1) for line in lines if ":\t" in line))
        super().give_back(target, process)


@pytest.mark.parametrize("key", [None, DataKey(b"k" * 32, b"w" * WRAP_BYTES)], ids=["plain", "sealed"])
def test_a_recount_sees_its_parts_and_nothing_else(
    key: DataKey | None, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "source", source := Noted())
    part, elsewhere = tmp_path / "own" / "train.arrow", tmp_path / "elsewhere"
    part.parent.mkdir()
    elsewhere.mkdir()
    sha256 = save_part(part, StoredPart(x=np.zeros((7, 2), np.float32), y=np.zeros(7, np.int64)), key)
    train = SealedPart(path=str(part), sha256=sha256, key=None if key is None else key.key.hex())
    request, counts = RecountRequest(train=train, holdout=None), PartCount(units=7, rows=7)
    assert Parsers(settings).recount(request) == PartCounts(train=counts, holdout=None)
    (policy,), (state,) = source.policies, source.states
    assert policy == Policy((part.parent,)), "it writes nothing"
    assert (state["NoNewPrivs"], state["CapEff"]) == ("1", "0" * 16)
    on = probe(2**30)
    assert (state["Seccomp"] == "2") is on.seccomp
    for each in (part, index_path(part)):
        each.rename(elsewhere / each.name)
        each.symlink_to(elsewhere / each.name)
    assert recount(request.model_dump(mode="json"))["train"] == counts.model_dump(), "this process follows a link"
    if on.landlock:
        with pytest.raises(DataDamagedError):
            Parsers(settings).recount(request)
