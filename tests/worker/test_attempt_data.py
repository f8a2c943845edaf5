"""Which stored parts an attempt reads."""

from __future__ import annotations

from pathlib import Path

from app.db.models import Dataset
from core.contracts.slots import PartSlots, Slots
from core.contracts.stored_documents import PartFiles, StoredFile
from worker.attempt.attempt_data import Opened, parts_of

ROOT = Path("/storage")


def opened(part: StoredFile) -> Opened:
    return Opened(ROOT / part.path)


def features(dataset_id: str) -> Path:
    return ROOT / "datasets" / dataset_id / "features"


def dataset(name: str, *parts: str) -> Dataset:
    files = {each: StoredFile(path=f"datasets/{name}/{each}", sha256=name * 64) for each in parts}
    return Dataset(id=name, parts=PartFiles(**files))


def test_parts_are_in_the_order_of_ids_each_with_its_own_cache() -> None:
    """A replay joins the same rows, however the data sets were listed. A public hold-out is the first one's alone."""
    blocks = [dataset("b", "train"), dataset("a", "train", "holdout")]
    side = StoredFile(path="datasets/p/train", sha256="c" * 64)
    found = parts_of(opened, features, blocks, {}, side)
    assert found == parts_of(opened, features, blocks[::-1], {}, side)
    assert [each.path for each in found.train] == ["/storage/datasets/a/train", "/storage/datasets/b/train"]
    assert [each.cache_dir for each in found.train] == [f"/storage/datasets/{each}/features" for each in "ab"]
    assert [each.path for each in found.holdout] == ["/storage/datasets/a/holdout"]
    assert found.public is not None and found.public.cache_dir == "/storage/datasets/a/features"
    assert len(found.all) == 4


def test_each_part_has_the_rows_of_its_own_block() -> None:
    """A part in the order of the file is put into its own block's rows, where others have slots of their own."""
    blocks = [dataset("b", "train", "holdout"), dataset("a", "train", "holdout")]
    slots = {
        name: Slots(train=PartSlots(units=rows, rows=rows), holdout=PartSlots(units=9, rows=9))
        for name, rows in (("a", 70), ("b", 80))
    }
    found = parts_of(opened, None, blocks, slots, None)
    assert [each.rows for each in (*found.train, *found.holdout)] == [70, 80, 9, 9]


def test_without_an_extractor_nothing_is_cached() -> None:
    found = parts_of(opened, None, [dataset("a", "train")], {}, None)
    assert [each.cache_dir for each in found.all] == [None] and found.holdout == () and found.public is None
