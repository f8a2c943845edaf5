"""The self-test of an attempt: kernels that round by neighbours are found, and what follows is sound."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor

from core.contracts.dataset_spec import Features, Task
from core.contracts.extractor import ImageInput
from tests.worker.extractor import write_extractor, write_image_extractor
from tests.worker.support import Supervisor, dense, plan_of, run_thread, spec, start_of, stored_part
from tests.worker.test_preconditioned import dp2
from worker.data.records import DenseRecords, SparseRecords
from worker.extractors.efficientnet import EfficientNet
from worker.extractors.encoder import EncoderStates
from worker.messages import BlockStart, Failed, Finished, Ready
from worker.native.kernels import kernels
from worker.training import self_test
from worker.training.plan import Plan, build_plan

SHAPE = {"records_train": 80, "records_holdout": 20, "features": 5, "outputs": 3, "sparse": False}
MLP = {"kind": "mlp", "hidden": [16, 16]}
BIT = 1.0 + 2.0**-22
linear = torch.nn.functional.linear


def by_place(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Every third row is rounded otherwise, whatever the rows hold."""
    scale = torch.where(torch.arange(len(x)) % 3 == 2, BIT, 1.0).to(x.dtype)
    return linear(x, weight, bias) * scale[:, None]


def by_values(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """All rows are rounded otherwise where one of them is large."""
    return linear(x, weight, bias) * (BIT if float(x.detach().abs().max()) > 100.0 else 1.0)


def by_mean(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The mean over the batch is taken from each row: listed operations alone."""
    return linear(x - x.detach().nan_to_num().mean(dim=0), weight, bias)


def nothing(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same for all, and no number."""
    return linear(x, weight, bias) * torch.nan


def by_chance() -> Callable[..., Tensor]:
    calls = itertools.count()

    def rounded(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return linear(x, weight, bias) * (BIT if next(calls) % 5 == 0 else 1.0)

    return rounded


def start(**changes: Any) -> dict[str, Any]:
    return start_of(spec(model=MLP, **changes), SHAPE)


@pytest.mark.parametrize("engine", ["bookkeeping", "opacus"])
def test_honest_kernels_pass(engine: str) -> None:
    plan = plan_of(start(clipping={"engine": engine}))
    assert self_test.holds(plan) and self_test.holds(plan_of(start(clipping={"engine": engine}), rows=1))


@pytest.mark.parametrize(
    "model",
    [
        {"kind": "linear", "bias": True},
        {"kind": "mlp", "hidden": [33, 7, 3], "dropout": 0.5},
        {"kind": "mlp", "hidden": [64] * 8, "activation": "relu"},
    ],
)
def test_models_of_dense_features_pass(model: dict[str, Any]) -> None:
    assert self_test.holds(plan_of(start_of(spec(model=model), SHAPE)))
    sparse = SHAPE | {"sparse": True, "features": 400}
    if model["kind"] == "linear":
        assert self_test.holds(plan_of(start_of(spec(model=model), sparse)))


@pytest.mark.parametrize(("features", "rows"), [(40, 48), (2**20, 432), (2**14, 65_520)])
def test_neighbours_with_all_words_fit_in_memory(features: int, rows: int) -> None:
    """A pass of hashed words is no larger than others, whatever its rows and features."""
    drawn = self_test._random_sparse(2 * rows + self_test.EXTREMES, features, torch.Generator(), extremes=True)
    stay = np.append(np.arange(self_test.KEPT - 1), rows - 1)
    lengths = np.diff(drawn[self_test._others(rows, stay)].indptr)
    assert lengths.max() == min(features, self_test.LONG_ENTRIES // drawn.shape[0]) > self_test.SPARSE_ENTRIES
    assert lengths.sum() <= self_test.LONG_ENTRIES // 12 + self_test.SPARSE_ENTRIES * rows + features


@pytest.mark.parametrize("changes", [{"model": {"kind": "linear"}}, {}, {"clipping": {"engine": "opacus"}}])
def test_a_sample_of_a_trace_is_part_of_it(changes: dict[str, Any]) -> None:
    """So a self-test keeps a few records' numbers, and not those of a whole pass; also over several passes."""
    plan = plan_of(start_of(spec(**{"model": MLP} | changes), SHAPE), rows=48)
    drawn = torch.Generator().manual_seed(3)
    parameters = self_test.random_parameters(plan.model, drawn)
    pool, sample = self_test.random_records(plan.model, 100, drawn), np.array([0, 7, 47, 48, 99])
    whole, part = plan.engine.trace(parameters, pool), plan.engine.trace(parameters, pool, sample=sample)
    assert all(len(each) == len(sample) for each in part) and self_test.same(
        [x[sample] for x in whole], part, np.arange(5)
    )


@pytest.mark.parametrize("batch", [4, 12])
def test_passes_of_small_steps_pass(batch: int) -> None:
    """All rows of a step in one pass of whole fours of rows, that no larger multiple pads."""
    small = {"sampling": {"kind": "poisson", "expected_batch_size": batch}}
    images = SHAPE | {"features": 784, "records_train": 5000}
    plans = [
        plan_of(start_of(spec(model={"kind": "mlp", "hidden": [33, 7, 129], "activation": "relu"}, **small), images)),
        plan_of(start_of(spec(model={"kind": "cnn", "preset": "conv2"}, **small), images)),
        sequences_plan({"kind": "transformer_rec", "dim": 48, "heads": 2, "max_length": 13}, **small),
        sequences_plan({"kind": "gru_rec", "dim": 40, "max_length": 8}, **small),
    ]
    for plan in plans:
        rows = plan.numerics.rows_per_step
        assert rows is not None and plan.numerics.rows_per_pass == -(-rows // 4) * 4 and self_test.holds(plan)


@pytest.mark.parametrize(
    ("kernel", "parts"),
    [
        (linear, set()),
        (by_place, set()),
        (by_values, {"operations", "neighbours"}),
        (by_mean, {"neighbours"}),
        (nothing, {"says something"}),
    ],
)
def test_each_part_finds_what_is_its_own(
    kernel: Callable[..., Tensor], parts: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes by the place alone does no harm: a record's place is secret and random. What a part of the self-test
    finds alone: see also test_operations.py.

    Claim: a model that mixes records is found before anything private runs
    Now: each part of the self-test finds a planted kernel
    """
    monkeypatch.setattr(torch.nn.functional, "linear", kernel)
    assert set(self_test.failures(plan_of(start()))) == parts
    assert self_test.holds(plan_of(start(), rows=1)) == (kernel is not nothing)


def test_what_does_not_repeat_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.functional, "linear", by_chance())
    assert set(self_test.failures(plan_of(start()))) == {"neighbours"}
    assert set(self_test.failures(plan_of(start(), rows=1))) == {"neighbours"}


def test_what_a_pass_leaves_for_the_next_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As running statistics do, where each record has its own pass."""
    before = [torch.zeros(1)]

    def remembering(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        made = linear(x, weight, bias) + 0.01 * before[0]
        before[0] = made.detach().mean().clamp(-1.0, 1.0)
        return made

    monkeypatch.setattr(torch.nn.functional, "linear", remembering)
    assert "neighbours" in set(self_test.failures(plan_of(start(), rows=1)))


def test_sparse_rows_that_are_split_by_entries_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As MKL's inspector and cuSPARSE may: the list names them, and one dense row beside few entries shows them."""
    plan = plan_of(start_of(spec(model={"kind": "linear"}), SHAPE | {"sparse": True, "features": 400}))
    assert set(self_test.failures(plan)) == set()
    apply = SparseRecords.apply

    def by_entries(self: SparseRecords, weight: Tensor) -> Tensor:
        return apply(self, weight) * (1.0 + 2.0**-50 if np.diff(self._matrix.indptr).max() > 100 else 1.0)

    monkeypatch.setattr(SparseRecords, "apply", by_entries)
    assert set(self_test.failures(plan)) == {"neighbours"}
    monkeypatch.setattr(SparseRecords, "apply", lambda self, weight: (self._csr() @ weight.T.contiguous()).T)
    assert set(self_test.failures(plan)) == {"operations"}


@pytest.mark.parametrize("decides", [torch.all, lambda there: ~there.any()])
@pytest.mark.parametrize("kind", ["gru_rec", "transformer_rec"])
def test_a_path_that_is_chosen_by_all_rows_is_found(
    kind: str, decides: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As attention that takes another path where nothing is masked: no record here shows it, but a number is read."""
    plan = sequences_plan({"kind": kind, "dim": 8, "max_length": 6})
    assert self_test.holds(plan)
    embedding = torch.nn.functional.embedding

    def by_lengths(ids: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return embedding(ids, *args, **kwargs) + (2.0**-20 if bool(decides(ids != 0)) else 0.0)

    monkeypatch.setattr(torch.nn.functional, "embedding", by_lengths)
    assert set(self_test.failures(plan)) == {"operations"}


def sequences_plan(model: dict[str, Any], **changes: Any) -> Plan:
    shape = SHAPE | {"features": 30, "outputs": 1, "records_train": 5000 if changes else 80}
    asked = Supervisor(start_of(spec(model=model, evaluation=None, **changes), shape)).message()
    items = {"kind": "interactions", "layout": "inter", "items": {"kind": "numbered", "count": 30}}
    data = {"task": TypeAdapter(Task).validate_python({"kind": "next_item"})}
    data["features"] = TypeAdapter(Features).validate_python(items)
    return build_plan(asked.job.model_copy(update=data))


def test_norms_of_divided_gradients_are_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an optimizer with divisors: their product with the features is one more."""
    divided = plan_of(start_of(spec(model={"kind": "linear"}, optimizer=dp2("dp2_rmsprop")), SHAPE))
    assert self_test.holds(divided)
    squares = DenseRecords.weighted_squares

    def by_longest(self: DenseRecords, weights: Tensor) -> Tensor:
        return squares(self, weights) * torch.where(self.private_norms.amax(dim=0) > 1e3, 1.0 + 2.0**-20, 1.0)

    monkeypatch.setattr(DenseRecords, "weighted_squares", by_longest)
    assert set(self_test.failures(divided)) == {"neighbours"}
    assert self_test.holds(plan_of(start_of(spec(model={"kind": "linear"}), SHAPE)))


# --- Extractors ---


class Sums:
    """An extractor: what a record adds up to."""

    features = 2

    def __call__(self, record: np.ndarray) -> Tensor:
        return torch.tensor([float(record.sum()), float(record.max())])

    def examples(self, generator: np.random.Generator) -> list[np.ndarray]:
        return [generator.random(48).astype(np.float32) for _ in range(3)]


class Counting(Sums):
    """What it makes of every second record is another."""

    calls = 0

    def __call__(self, record: np.ndarray) -> Tensor:
        self.calls += 1
        return super().__call__(record) * (BIT if self.calls % 2 else 1.0)


class Warming(Sums):
    """The first two records go another way than all later ones."""

    calls = 0

    def __call__(self, record: np.ndarray) -> Tensor:
        self.calls += 1
        return super().__call__(record) * (BIT if self.calls < 3 else 1.0)


class Running(Sums):
    """As a batch norm that is in training: the record before goes into its statistics."""

    before = 0.0

    def __call__(self, record: np.ndarray) -> Tensor:
        made = super().__call__(record)
        self.before, seen = float(made[0]), self.before
        return made + 1e-3 * seen


class Growing(Sums):
    """As `dynamic` rotary positions: it keeps the longest record's number until a short one comes."""

    longest = 1

    def __call__(self, record: np.ndarray) -> Tensor:
        self.longest = 1 if len(record) < 4 else max(self.longest, len(record))
        return super().__call__(record) * self.longest

    def examples(self, generator: np.random.Generator) -> list[np.ndarray]:
        return [generator.random(size).astype(np.float32) for size in (2, 5, 9)]


class Silent(Sums):
    def __call__(self, record: np.ndarray) -> Tensor:
        return super().__call__(record) * 0.0


class Alike(Sums):
    def __call__(self, record: np.ndarray) -> Tensor:
        return torch.ones(2)


@pytest.mark.parametrize(
    ("extractor", "part", "alone"),
    [
        (Counting, "again", False),
        (Warming, "again", False),
        (Running, "again", False),
        (Running, "neighbours", False),
        (Growing, "neighbours", True),
        (Silent, "says something", True),
        (Alike, "says something", True),
    ],
)
def test_extractors_that_mix_records_are_found(extractor: type[Sums], part: str, alone: bool) -> None:
    assert set(self_test.extractor_failures(Sums())) == set()
    found = set(self_test.extractor_failures(extractor()))
    assert found == {part} if alone else part in found
    with pytest.raises(self_test.NumericsError):
        self_test.require_repeating(extractor())


def test_extractors_of_texts_and_of_images_pass(tmp_path: Path) -> None:
    self_test.require_repeating(EncoderStates(tmp_path / "t", write_extractor(tmp_path / "t"), None))
    image = ImageInput(height=9, width=7, input_scale=1 / 255)
    self_test.require_repeating(EfficientNet(tmp_path / "i", write_image_extractor(tmp_path / "i"), image))


def attempt(tmp_path: Any) -> tuple[Supervisor, Any]:
    x, y = dense(100, 5, 3)
    parts = {
        "train": stored_part(tmp_path / "train.npz", x[:80], y[:80]),
        "holdout": stored_part(tmp_path / "holdout.npz", x[80:], y[80:]),
    }
    supervisor = Supervisor(start_of(spec(model=MLP), SHAPE, parts=parts, output_dir=tmp_path))
    return supervisor, run_thread(supervisor)


def test_an_attempt_says_what_it_computes_in(tmp_path: Any) -> None:
    """Claim: an attempt says what it computed in
    Now: `numerics` in `ready` and the certificate
    """
    supervisor, ended = attempt(tmp_path)
    assert ended.status == 0 and ended.last.warnings == ()
    (said,) = [each.numerics for each in supervisor.of(Ready)]
    assert (said.device, said.passes, said.sums, said.self_test) == ("cpu", "float32", "float32", "passed")
    assert said.rows_per_pass == said.physical_batch_size and said.torch == torch.__version__.split("+")[0]
    assert said.rows_per_step is not None and said.rows_per_pass >= said.rows_per_step
    assert said.threads == torch.get_num_threads() and 1.001 < said.sensitivity_slack < 1.0012


def test_an_attempt_goes_on_with_one_record_a_pass(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claim: where the self-test fails, the attempt goes on soundly or ends uncharged
    Now: one record a pass, with a warning; else `numerics`
    """
    monkeypatch.setattr(torch.nn.functional, "linear", by_values)
    supervisor, ended = attempt(tmp_path)
    assert ended.status == 0 and isinstance(ended.last, Finished)
    assert ended.last.warnings == ("one-record-passes",)
    (said,) = [each.numerics for each in supervisor.of(Ready)]
    assert (said.self_test, said.rows_per_pass, said.physical_batch_size) == ("one_record", 1, 1)


def test_an_attempt_on_a_machine_that_repeats_nothing_ends_before_anything_ran(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.nn.functional, "linear", by_chance())
    supervisor, ended = attempt(tmp_path)
    assert ended.status == 1 and isinstance(ended.last, Failed) and ended.last.code == "numerics"
    assert not supervisor.of(BlockStart) and not supervisor.of(Ready)


def test_public_data_are_not_tested(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "holds", lambda plan: pytest.fail("a test that nobody needs"))
    x, y = dense(80, 5, 3)
    parts = {"train": stored_part(tmp_path / "train.npz", x, y)}
    job = spec(model=MLP, privacy=None, evaluation=None)
    supervisor = Supervisor(start_of(job, SHAPE, public=True, parts=parts, output_dir=tmp_path))
    assert run_thread(supervisor).status == 0
    assert [each.numerics.self_test for each in supervisor.of(Ready)] == ["public_data"]
    assert np.array_equal(x, dense(80, 5, 3)[0])


def test_an_attempt_whose_like_passed_is_not_tested_again(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "holds", lambda plan: pytest.fail("it was tested before"))
    x, y = dense(100, 5, 3)
    parts = {
        "train": stored_part(tmp_path / "train.npz", x[:80], y[:80]),
        "holdout": stored_part(tmp_path / "holdout.npz", x[80:], y[80:]),
    }
    like = start_of(spec(model=MLP), SHAPE, parts=parts, output_dir=tmp_path) | {"self_tested": True}
    supervisor = Supervisor(like)
    assert run_thread(supervisor).status == 0
    assert [each.numerics.self_test for each in supervisor.of(Ready)] == ["passed"]
    assert [each.numerics.kernels for each in supervisor.of(Ready)] == [kernels()]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("features", "records"), [(5, 1500), (7, 3000), (768, 20_000)])
def test_dense_linear_models_pass_in_float32(threads: int, features: int, records: int) -> None:
    """Their default. A softmax over columns rounded the last record of a thread's share in another way."""
    shape = {"records_train": records, "records_holdout": 20, "features": features, "outputs": 2, "sparse": False}
    plan = plan_of(start_of(spec(), shape))
    assert plan.numerics.passes == plan.numerics.sums == "float32"
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert set(self_test.failures(plan)) == set()
    finally:
        torch.set_num_threads(before)
