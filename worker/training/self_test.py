"""The self-test of an attempt: on this machine, in these shapes, a record's numbers are its own.

Before anything private runs, the job's own engine and model are run on random records, with weights so large that a
last bit would be amplified. What the passes make of a record (activations, gradients at outputs, norms, losses,
scores) has to be the same bits whatever its place, whoever its neighbours are and however many, in whatever memory.

Nothing here is private: records and weights are drawn from a fixed seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from app.errors import WorkerError
from worker.data.ratings import RatingRecords
from worker.data.records import DenseRecords, Records, SparseRecords
from worker.data.sequences import SequenceRecords
from worker.metrics.scores import Ranks, ScoresTokens
from worker.models.base import Model, Parameters
from worker.models.hf.model import HfTuning
from worker.models.matrix_factorization import MatrixFactorization
from worker.models.next_item import NextItem
from worker.training.plan import Plan

GAIN = 30.0  # of the weights: a layer multiplies a difference by about so much
PUBLIC_KEY = bytes(range(32))  # of shapes alone
KEPT = 3  # records that stay where they are while all others are replaced
SPARSE_ENTRIES = 20  # of a random sparse record


class NumericsError(WorkerError):
    """A record's numbers depend on other records, even where each has a pass of its own."""

    code = "numerics"


def holds(plan: Plan) -> bool:
    """Whether the self-test passes for this plan's passes."""
    generator = torch.Generator().manual_seed(0)
    rows = max(plan.numerics.rows_per_pass, KEPT)
    parameters = random_parameters(plan.model, generator)
    if isinstance(plan.model, NextItem) and plan.model.effective_errors is not None:
        # Some errors: the job's own are known once its items are counted.
        plan.model.effective_errors.restore(0.01, torch.full((plan.model.items + 1,), 0.02))
    pool = random_records(plan.model, 2 * rows, generator, sparse=plan.sparse)
    everyone = torch.arange(rows)
    known = _numbers(plan, parameters, pool.select(everyone.numpy()))
    padding = [torch.empty(odd) for odd in (1, 7, 1001)]  # what is allocated from here on lies at other addresses
    for chosen, at in _cases(plan, rows, generator):
        found = _numbers(plan, parameters, pool.select(chosen.numpy()))
        if not _same(known, found, chosen[at], at):
            return False
    return bool(padding)


def _cases(plan: Plan, rows: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Other batches: which records of the pool they hold, and the places of those that are compared."""
    everyone = torch.arange(rows)
    yield everyone, everyone  # once more, in other memory
    yield torch.randperm(rows, generator=generator), everyone
    if plan.numerics.rows_per_pass == 1:
        return
    for fewer in (1, KEPT, rows // 2 + 1):
        yield everyone[:fewer], everyone[:fewer]
    stay = torch.cat([everyone[: KEPT - 1], everyone[-1:]])
    strangers = everyone + rows
    strangers[stay] = stay
    yield strangers, stay


def _numbers(plan: Plan, parameters: Parameters, records: Records) -> list[Tensor]:
    """What the job's passes compute of each record: (n, …) each."""
    found = plan.engine.trace(parameters, records)
    if plan.scores.points == 0:
        return found
    model = plan.model
    if isinstance(model, ScoresTokens) and not model.classification:
        return [*found, model.token_scores(parameters, records)[0]]
    if isinstance(model, Ranks) and plan.scores.ranking is not None:
        return [*found, model.ranks(parameters, records, leave_out_seen=plan.scores.ranking.leave_out_seen)]
    return [*found, model.forward(parameters, records).mT]


def _same(known: list[Tensor], found: list[Tensor], at: Tensor, now: Tensor) -> bool:
    """Whether the records that were at `at` and are at `now` have the same bits."""
    pairs = [(before[at], after[now]) for before, after in zip(known, found, strict=True)]
    return all(bool(((a == b) | (a.isnan() & b.isnan())).all()) for a, b in pairs)


def random_parameters(model: Model, generator: torch.Generator, gain: float = GAIN) -> Parameters:
    """Gaussian weights of this gain, in the model's names and shapes: float64."""
    shapes = {name: value.shape for name, value in model.init(PUBLIC_KEY).items()}
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64)
        * (gain / math.sqrt(shape.numel() / shape[0]) if len(shape) > 1 else 1.0)
        for name, shape in shapes.items()
    }


def random_records(model: Model, n: int, generator: torch.Generator, *, sparse: bool = False) -> Records:
    """Random records of the model's kind. The second half of dense ones are a thousand times as long.

    Args:
        sparse: features are.
    """
    labels = torch.randint(0, model.outputs, (n,), generator=generator)
    if model.outputs == 1:
        labels = torch.randn(n, generator=generator, dtype=torch.float64)
    if isinstance(model, MatrixFactorization):
        users, items = (torch.randint(0, most, (n,), generator=generator) for most in (model.users, model.items))
        return RatingRecords(users, items, labels)
    if isinstance(model, NextItem | HfTuning):
        return _random_sequences(model, n, labels, generator)
    if sparse:
        return SparseRecords(_random_sparse(n, model.features, generator), labels)
    features = torch.randn(n, model.features, generator=generator)
    features[n // 2 :] *= 1e3
    return DenseRecords(features, labels)


def _random_sequences(model: NextItem | HfTuning, n: int, labels: Tensor, generator: torch.Generator) -> Records:
    """Of all lengths up to one more than what is read."""
    symbols = model.items if isinstance(model, NextItem) else model.vocabulary
    lengths = torch.randint(1, model.spec.max_length + 2, (n,), generator=generator).numpy()
    items = torch.randint(0, symbols, (int(lengths.sum()),), generator=generator).numpy().astype(np.int32)
    ends = np.cumsum(lengths)
    return SequenceRecords(items, ends - lengths, ends, labels)


def _random_sparse(n: int, features: int, generator: torch.Generator) -> Any:
    entries = min(SPARSE_ENTRIES, features)
    columns = torch.randint(0, features, (n * entries,), generator=generator).numpy()
    values = torch.randn(n * entries, generator=generator).numpy()
    return scipy.sparse.csr_matrix((values, columns, np.arange(0, n * entries + 1, entries)), shape=(n, features))
