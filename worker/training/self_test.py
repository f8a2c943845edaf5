"""An attempt's self-test: what a pass computes for a record does not depend on the values of other records.

Before anything private runs, the job's own engine and model run on random records. Every operation of this pass must
be on the closed list (worker.training.operations). A second pass has other records, ordinary and extreme, beside a few
that stay: these must keep their bits. That finds models that mix records by listed operations, such as a mean over the
batch, and results that do not repeat. The weights are so large that they amplify a difference in the last bit. Where a
record stands in a pass may change its bits: its place is secret and uniformly random (docs/theorems.md).

Passes of one record need no list, only that nothing is carried from one pass to the next. An extractor computes one
record at a time and is tested in the same way.

Nothing here is private: records and weights are drawn from a fixed seed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Any, Literal, TypeGuard

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.errors import PrivacyError, WorkerError
from worker.clipping.bookkeeping import Bookkeeping
from worker.clipping.engine import Clip
from worker.clipping.examined import ROWS as EXAMPLES
from worker.clipping.examined import UnfitLayerError
from worker.clipping.zeroth_order import ZerothOrder
from worker.data.placed import passes_on, placed
from worker.data.ratings import RatingRecords
from worker.data.records import DenseRecords, Records, SparseRecords
from worker.data.sequence_records import SequenceRecords
from worker.extractors.features import Extractor
from worker.metrics.scores import Ranks
from worker.models.base import Model, Parameters
from worker.models.graph_network import GraphNetwork
from worker.models.hf.hf_model import HfTuning
from worker.models.matrix_factorization import MatrixFactorization
from worker.models.next_item import NextItem
from worker.optimizers.base import Preconditioned
from worker.training.operations import Recorder
from worker.training.plan import Plan
from worker.training.static import META, require_static

GAIN = 30.0  # of the weights: each layer amplifies a difference by about this factor
PUBLIC_KEY = bytes(range(32))  # for shapes only
KEPT = 3  # records that stay while all others are replaced
LOOKED_AT = 64  # first rows of a pass that must say something
SPARSE_ENTRIES = 20  # entries of a random sparse record
LONG_ENTRIES = 2**22  # of the longest one: so many over the pool's records, as a sixth of a pass are copies of it
EXTREMES = 3  # records in each pool that are unlike all others
LARGE = 3e38  # makes the next layer's outputs infinite

Part = Literal["says something", "operations", "neighbours"]
ExtractorPart = Literal["says something", "again", "neighbours"]


class NumericsError(WorkerError):
    """A record's results depend on other records, even if each record has its own pass."""

    code = "numerics"


def holds(plan: Plan) -> bool:
    """Returns True if the plan's passes pass the self-test."""
    return next(failures(plan), None) is None


def require_exact(plan: Plan) -> None:
    """Tries the engine on three random public records, if the model's layers were not written for it.

    Raises:
        UnfitLayerError: a record's gradient is not autograd's, or depends on other records, or a pass reads a number.
    """
    if isinstance(plan.model, HfTuning | GraphNetwork) and isinstance(plan.engine, Bookkeeping | ZerothOrder):
        generator = torch.Generator().manual_seed(1)
        parameters = placed(random_parameters(plan.model, generator, gain=1.0), plan.device)
        examples = random_records(plan.model, EXAMPLES, generator)
        (single,) = passes_on(META, examples, EXAMPLES, plan.model.dtype)
        try:
            require_static(plan.model.shapes_alone(), plan.model.record_losses, single.records)
            if not isinstance(plan.engine, ZerothOrder):  # takes no gradient
                plan.engine.examine(examples, parameters)
        except UnfitLayerError:
            raise
        except PrivacyError as error:
            raise UnfitLayerError("the model", str(error)) from None


def failures(plan: Plan) -> Iterator[Part]:
    """Yields the failing parts of the self-test as they are found. The first one decides; tests look at all."""
    rows = max(plan.numerics.rows_per_pass, 2 * KEPT)
    parameters, clip, generator = _drawn(plan)
    pool = random_records(plan.model, 2 * rows, generator, sparse=plan.sparse, extremes=True)
    stay = np.append(np.arange(KEPT - 1), rows - 1)
    with Recorder() as recorder:
        looked_at = np.union1d(np.arange(min(rows, LOOKED_AT)), stay)
        expected = _numbers(plan, parameters, pool.select(np.arange(rows)), clip, looked_at)
    if not _say_something(expected):
        yield "says something"
    if plan.numerics.rows_per_pass > 1 and recorder.unlisted:
        yield "operations"
    places, everyone = np.searchsorted(looked_at, stay), np.arange(KEPT)
    expected = [values[places] for values in expected]
    if not same(expected, _numbers(plan, parameters, pool.select(_others(rows, stay)), clip, stay), everyone):
        yield "neighbours"


def unlisted(plan: Plan) -> list[str]:
    """The operations of the plan's passes that are not on the closed list, by name."""
    parameters, clip, generator = _drawn(plan)
    records = random_records(plan.model, KEPT, generator, sparse=plan.sparse)
    with Recorder() as recorder:
        _numbers(plan, parameters, records, clip, np.arange(KEPT))
    return recorder.unlisted


def _drawn(plan: Plan) -> tuple[Parameters, Clip | None, torch.Generator]:
    """Random weights, and divisors if the job divides gradients: divided gradients have norms of their own."""
    generator = torch.Generator().manual_seed(0)
    parameters = placed(random_parameters(plan.model, generator), plan.device)
    _example_errors(plan)
    if not isinstance(plan.optimizer, Preconditioned):
        return parameters, None, generator
    divisors = {name: torch.rand(p.shape, generator=generator).double() + 0.5 for name, p in parameters.items()}
    return parameters, Clip(1.0, placed(divisors, plan.device)), generator


def fingerprint(plan: Plan) -> bytes:
    """32 bytes of what the plan's passes compute on random public records; all ranks must have the same."""
    generator = torch.Generator().manual_seed(2)
    parameters = placed(random_parameters(plan.model, generator), plan.device)
    _example_errors(plan)
    traces = plan.engine.trace(parameters, random_records(plan.model, KEPT, generator, sparse=plan.sparse))
    digest = hashlib.sha256()
    for values in traces:
        digest.update(values.detach().double().contiguous().numpy().tobytes())
    return digest.digest()


def _example_errors(plan: Plan) -> None:
    """Sets effective errors, if the model has them: the job's own are known only after its items are counted."""
    if isinstance(plan.model, NextItem) and plan.model.effective_errors is not None:
        plan.model.effective_errors.restore(0.01, torch.full((plan.model.items + 1,), 0.02))


def _others(rows: int, stay: NDArray[np.int64]) -> NDArray[np.int64]:
    """The pool's records of the second pass: other ordinary and extreme ones by turns, beside those that stay."""
    everyone = np.arange(rows)
    neighbours = np.where(everyone % 2, 2 * rows + everyone // 2 % EXTREMES, rows + everyone)
    neighbours[stay] = stay
    return neighbours


def _numbers(
    plan: Plan, parameters: Parameters, records: Records, clip: Clip | None, sample: NDArray[np.int64]
) -> list[Tensor]:
    """What the job's passes compute for each record of the sample: (n, …) each. All numbers of a pass, kept, would take
    more memory than a step."""
    traces = plan.engine.trace(parameters, records, sample=sample)
    if clip is not None:
        traces += plan.engine.trace(parameters, records, clip, sample)
    if plan.scores.points == 0:
        return traces
    model = plan.model
    if isinstance(model, Ranks) and plan.scores.ranking is not None:
        ranked = model.ranked(parameters, records, leave_out_seen=plan.scores.ranking.leave_out_seen)
        return [*traces, torch.cat([batch.only(ranks).cpu() for ranks, batch in ranked])[sample]]
    return [*traces, model.forward(parameters, records).mT[sample]]


def _say_something(values: list[Tensor]) -> bool:
    """Returns True if the first and last numbers (losses or outputs, norms or scores) can reveal a difference.

    They must be finite and not 0 for at least one record in eight. A kernel cannot change zeros and NaNs, so a test on
    those alone would always pass.
    """
    if not values:
        return False
    numbers = [each.flatten(1) if each.dim() > 1 else each[:, None] for each in (values[0], values[-1])]
    spoken = [(torch.isfinite(each) & (each != 0.0)).any(dim=1).double().mean() for each in numbers]
    return all(bool(each >= 0.125) for each in spoken)


def same(expected: list[Tensor], actual: list[Tensor], stay: NDArray[np.int64]) -> bool:
    """Returns True if the records that stay have the same bits: (n, …) each, by number in `stay`."""
    pairs = [(one[stay], other[stay]) for one, other in zip(expected, actual, strict=True)]
    return all(torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all()) for a, b in pairs)


def random_parameters(model: Model, generator: torch.Generator, gain: float = GAIN) -> Parameters:
    """Gaussian weights with this gain, in the model's names and shapes: float64."""
    shapes = {name: value.shape for name, value in model.init(PUBLIC_KEY).items()}
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64)
        * (gain / math.sqrt(shape.numel() / shape[0]) if len(shape) > 1 else 1.0)
        for name, shape in shapes.items()
    }


def random_records(
    model: Model, n: int, generator: torch.Generator, *, sparse: bool = False, extremes: bool = False
) -> Records:
    """Random records of the model's kind. In dense data, the second half is a thousand times as long.

    Args:
        sparse: features are sparse.
        extremes: adds EXTREMES records that are unlike all others. Dense: with a NaN, an infinity, and numbers near the
            largest. Sparse: with all features, or as many as memory allows for, none, and one. Sequences: two longer
            than what is read, and an empty one; also, the first record becomes long and the second empty.
    """
    n, total = n + (EXTREMES if extremes else 0), n
    labels = torch.randint(0, model.outputs, (n,), generator=generator)
    if model.outputs == 1:
        labels = torch.randn(n, generator=generator, dtype=torch.float64)
    if isinstance(model, MatrixFactorization):
        users, items = (torch.randint(0, limit, (n,), generator=generator) for limit in (model.users, model.items))
        return RatingRecords(users, items, labels)
    if _of_sequences(model):
        return _random_sequences(model, n, labels, generator, extremes=extremes)
    if sparse:
        return SparseRecords(_random_sparse(n, model.features, generator, extremes=extremes), labels)
    features = torch.randn(n, model.features, generator=generator)
    features[total // 2 : total] *= 1e3
    if extremes:
        features[-3, 0], features[-2, 0] = torch.nan, torch.inf
        features[-1] = LARGE * features[-1].sign()
    return DenseRecords(features, labels)


def _of_sequences(model: Model) -> TypeGuard[NextItem | HfTuning]:
    return isinstance(model, NextItem) or (isinstance(model, HfTuning) and not model.of_images)


def _random_sequences(
    model: NextItem | HfTuning, n: int, labels: Tensor, generator: torch.Generator, *, extremes: bool
) -> Records:
    """Sequences of all lengths up to one more than what is read."""
    symbols = model.items if isinstance(model, NextItem) else model.vocabulary
    longest = model.spec.max_length + 1
    lengths = torch.randint(1, longest + 1, (n,), generator=generator).numpy()
    if isinstance(model, HfTuning) and model.prompts:
        labels = torch.randint(0, longest // 2 + 1, (n,), generator=generator).double()
    if extremes:
        lengths[[0, -3, -2]], lengths[[1, -1]] = longest, 0
    items = torch.randint(0, symbols, (int(lengths.sum()),), generator=generator).numpy().astype(np.int32)
    ends = np.cumsum(lengths)
    return SequenceRecords(items, ends - lengths, ends, labels)


def _random_sparse(n: int, features: int, generator: torch.Generator, *, extremes: bool) -> Any:
    longest = min(features, max(SPARSE_ENTRIES, LONG_ENTRIES // n))
    lengths = np.full(n, min(SPARSE_ENTRIES, features))
    if extremes:
        lengths[-3:] = longest, 0, 1
    entries = int(lengths.sum())
    columns = torch.randint(0, features, (entries,), generator=generator).numpy()
    ends = np.cumsum(lengths)
    if extremes:
        columns[ends[-4] : ends[-3]] = np.arange(longest) * (features // longest)
    values = torch.randn(entries, generator=generator).numpy()
    return scipy.sparse.csr_matrix((values, columns, np.append(0, ends)), shape=(n, features))


# --- Extractors ---


def require_repeating(extractor: Extractor) -> None:
    """Call before an extractor receives a private record.

    Raises:
        NumericsError: its features of a record depend on other records.
    """
    if next(extractor_failures(extractor), None) is not None:
        raise NumericsError("the extractor's features of a record depend on other records")


def extractor_failures(extractor: Extractor) -> Iterator[ExtractorPart]:
    """Yields the failing parts of an extractor's self-test, on three random public records, alone and after others."""
    records, neighbours = (extractor.examples(np.random.default_rng(seed)) for seed in (0, 1))
    expected = [extractor(each) for each in records]
    spoken = [bool(torch.isfinite(each).all() and each.any()) for each in expected]
    distinct = len({each.numpy().tobytes() for each in expected})
    if not all(spoken) or distinct < len(expected):
        yield "says something"

    def after_another(at: int) -> Tensor:
        extractor(neighbours[(at + 1) % len(neighbours)])  # of another length
        return extractor(records[at])

    everyone = range(len(records))
    if not all(torch.equal(expected[at], extractor(records[at])) for at in everyone):
        yield "again"
    if not all(torch.equal(expected[at], after_another(at)) for at in everyone):
        yield "neighbours"
