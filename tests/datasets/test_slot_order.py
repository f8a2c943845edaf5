"""Registrations whose parts stay on disk: sorted by slot, in the limited process, and compared as all others are."""

from __future__ import annotations

from typing import Any

import numpy as np

from app.datasets.reader import Reader
from app.storage.seals import Seals
from core.parts.part_files import load_part
from core.parts.sealed import header_of
from core.parts.stored_records import StoredPart
from tests.datasets.conftest import CSV, Api, MakeApi, private, spec
from tests.datasets.test_blocks import append, rows
from tests.datasets.test_refusals import OTHER, REORDERED
from tests.datasets.test_sealed_home import DATA, parts, traces

LARGE = 90_000_000  # declared records of two features: more than 512 MiB, and 60 of them are sent


def large(name: str = "large", **changes: Any) -> dict[str, Any]:
    return spec(name, **private(records=LARGE, cap={"epsilon": 4.0, "delta": 1e-9}), **changes)


def stored(api: Api) -> dict[str, StoredPart]:
    """Each stored part. No temporary file of the sort is left next to it."""
    seals, found = Seals(api.settings), {}
    for name, (path, sha256) in parts(api).items():
        key = seals.key_of(path)
        found[name] = load_part(path, sha256, None if key is None else key.key)
        assert {each.suffix for each in path.parent.iterdir()} == {".arrow", ".index"}
    return found


def test_a_large_data_set_is_stored_in_the_order_of_its_slots(api: Api) -> None:
    """Its size on disk is that of 60 records. The owner's numbers are those of the file."""
    answer = api.upload(large())
    assert answer.status_code == 201, answer.text
    found, shape = stored(api), answer.json()["shape"]
    assert answer.json()["read"]["records"] == 60
    numbers: list[float] = []
    for name in ("train", "holdout"):
        part = found[f"large/{name}"]
        assert part.slot is not None and part.slot.slots == shape["slots"][name]["rows"] > 10**7
        assert (np.diff(part.slot.numbers) > 0).all() and part.slot.numbers[-1] > 10**6
        assert isinstance(part.x, np.ndarray)
        numbers += part.x[:, 0].tolist()
    assert sorted(numbers) == list(range(60)) and numbers != sorted(numbers)
    assert sum((api.settings.storage_root / path).stat().st_size for path in api.stored()) < 2**16


def test_content_is_known_again_in_any_order(api: Api) -> None:
    """Whether the part before, or the new one, is sorted."""
    assert api.upload(large("one")).status_code == 201
    assert api.upload(spec("two", **private(records=60)), OTHER).status_code == 201
    for name, file in (("one again", REORDERED), ("one", CSV), ("two again", OTHER)):
        document = large("three") if name != "one" else spec("three")
        answer = api.upload(document, file)
        assert (answer.status_code, answer.json()["type"]) == (409, "/problems/duplicate-content"), name


def test_blocks_are_compared_whatever_their_order(api: Api) -> None:
    dataset = api.upload(large()).json()["id"]
    shared = append(api, dataset, rows(range(59, 70)))
    assert (shared.status_code, shared.json()["shared"]) == (409, {"first": 1})
    assert append(api, dataset, rows(range(60, 70)), records=LARGE).status_code == 201
    assert all(part.slot is not None for part in stored(api).values())


def test_a_sealed_home_reads_and_sorts_in_the_background(make_api: MakeApi) -> None:
    """Nothing of a record is in plaintext, and nothing of the sort is left."""
    api = make_api(encrypt_parts=True, read_at_once_bytes=10)
    made = api.upload(large(), DATA)
    assert made.json()["state"] == "reading" and Reader(api.db, api.settings).run_once()
    assert traces(api.settings.home) == set()
    assert all(header_of(path) is not None for path, _ in parts(api).values())
    assert all(part.slot is not None for part in stored(api).values())
