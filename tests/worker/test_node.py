"""What a rank's actor makes of its machine: a copy of a part that its disk has changed is fetched anew."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from app.settings import Settings
from app.storage import parts
from app.storage.bucket import Bucket
from tests.worker.support import Supervisor, dense, spec, start_of, stored_part
from worker.cluster.node import CRASHED, Told, _status
from worker.messages import PEER_GONE, exit_status

KEY = "datasets/ds_1/p_1/train.npz"
SHAPE = {"records_train": 120, "records_holdout": 20, "features": 5, "outputs": 3, "sparse": False}
DAMAGED = exit_status("data-damaged")


@pytest.fixture
def order(tmp_path: Path) -> Told:
    """What the driver told the rank, by the driver's paths."""
    path = tmp_path / "train.npz"
    part = stored_part(path, *dense(120, 5, 3)) | {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    start = Supervisor(start_of(spec(), SHAPE, parts={"train": part})).message()
    return Told(start=start, stored={part["path"]: KEY})


def test_a_damaged_copy_of_this_machine_is_removed_and_fetched_anew(
    order: Told, settings: Settings, s3_bucket: str
) -> None:
    (part,) = order.start.parts.train
    content = Path(part.path).read_bytes()
    on_machine = settings.model_copy(update={"object_store": s3_bucket})
    Bucket(s3_bucket, settings.home).upload(KEY, [content], len(content))
    store = parts.of(on_machine)
    with store.held(KEY, part.sha256) as copy:
        copy.write_bytes(bytes(len(content)))
    with store.held(KEY, part.sha256) as copy:
        assert hashlib.sha256(copy.read_bytes()).hexdigest() != part.sha256, "a copy that is there is trusted"
    for ended in (0, PEER_GONE, CRASHED, exit_status("numerics")):
        assert _status(ended, order, on_machine) == ended
    assert store.copied() == ["ds_1"]
    assert _status(DAMAGED, order, on_machine) == CRASHED, "another attempt may do better"
    with store.held(KEY, part.sha256) as copy:
        assert copy.read_bytes() == content


def test_a_damaged_part_that_all_machines_share_fails_its_job(order: Told, settings: Settings) -> None:
    assert _status(DAMAGED, order, settings) == DAMAGED
    assert _status(exit_status("device"), order, settings) == CRASHED
