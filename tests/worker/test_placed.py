"""Records on a device: the products that a GPU uses equal the processor's, and passes stay the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.worker.support import dense, records
from worker.data.passes import EMPTY, moved
from worker.data.placed import chunk_bytes, passes_on
from worker.data.ratings import RatingRecords, add_rows
from worker.data.records import DenseRecords, SparseRecords
from worker.data.secret_slots import Slotted
from worker.data.sequence_records import SequenceRecords

CPU, META = torch.device("cpu"), torch.device("meta")


def test_sparse_products_as_a_gpu_makes_them() -> None:
    x, y = dense(31, 9, 3)
    here = records(np.where(np.abs(x) > 0.5, x, 0.0), y, sparse=True)
    assert isinstance(here, SparseRecords)
    there = here.as_csr(CPU)
    weight = torch.randn(3, 9, dtype=torch.float64)
    coefficients = torch.randn(3, 31, dtype=torch.float64)
    assert torch.allclose(here.apply(weight), there.apply(weight), rtol=1e-13)
    assert torch.allclose(here.adjoint(coefficients), there.adjoint(coefficients), rtol=1e-12)
    assert torch.allclose(here.weighted_squares(weight.abs()), there.weighted_squares(weight.abs()), rtol=1e-12)
    assert there.to(CPU) is there and len(there.tensors) == 2 + 9


def test_rows_are_added_on_a_device_as_by_scipy() -> None:
    rows = torch.tensor([4, 0, 4, 2])
    values = torch.randn(4, 3, dtype=torch.float64)
    assert torch.equal(torch.zeros(5, 3, dtype=torch.float64).index_add_(0, rows, values), add_rows(rows, values, 5))
    assert add_rows(rows.to(META), values.to(META), 5).shape == (5, 3)


@pytest.mark.parametrize("kind", ["dense", "ratings", "sequences"])
def test_passes_are_moved_whole(kind: str) -> None:
    x, y = dense(50, 4, 3)
    lengths = np.arange(50) % 7
    ends = np.cumsum(lengths)
    made = {
        "dense": lambda: DenseRecords(torch.from_numpy(x), torch.from_numpy(y)),
        "ratings": lambda: RatingRecords(torch.arange(50), torch.arange(50), torch.ones(50, dtype=torch.float64)),
        "sequences": lambda: SequenceRecords(np.arange(ends[-1], dtype=np.int32), ends - lengths, ends),
    }[kind]()
    here = list(passes_on(CPU, made, 48, torch.float32))
    there = list(passes_on(META, made, 48, torch.float32))
    assert [int(each.present.sum()) for each in here] == [48, 2] and [len(each.present) for each in there] == [48, 48]
    for each in there:
        assert all(tensor.device == META for tensor in each.records.tensors)
        assert each.weights.shape == (48,) and each.present.device == META
    kept = Slotted(made, np.arange(50)).prepared(48, torch.float32, META)
    assert [each.records.labels.device for each in kept.passes(48, torch.float32)] == [META, META]
    resident = made.to(META)
    assert resident.labels.device == META and len(resident) == 50
    assert resident.select(np.array([3, 1])).labels.shape == (2,)


def test_windows_are_on_the_records_device() -> None:
    made = SequenceRecords(np.arange(6, dtype=np.int32), np.array([0, 2]), np.array([2, 6])).to(META)
    for records_of in (made, made.select(np.array([1])), made.piece(np.array([0, 1, EMPTY, EMPTY]), torch.float32)):
        assert all(each.device == META for each in records_of.windows(3))


def test_a_tensor_that_is_there_is_not_copied() -> None:
    tensor = torch.zeros(3)
    assert moved(tensor, CPU) is tensor and moved(tensor, None) is tensor
    assert chunk_bytes(CPU, 7) == 7 < chunk_bytes(META, 7)
