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

from app.contracts.dataset_spec import Features, Task
from app.contracts.extractor import ImageInput
from app.privacy.numerics import Arithmetic
from tests.worker.extractor import write_extractor, write_image_extractor
from tests.worker.support import Supervisor, dense, plan_of, records, run_thread, spec, start_of, stored_part
from tests.worker.test_preconditioned import dp2
from worker.attempt import tested
from worker.attempt.fork_server import ForkServer
from worker.data.records import DenseRecords, SparseRecords
from worker.extractors.bert import BertMean
from worker.extractors.efficientnet import EfficientNet
from worker.messages import BlockStart, Failed, Finished, Ready
from worker.noise.order import shuffled
from worker.training import self_test
from worker.training.plan import Plan, build_plan

SHAPE = {"records_train": 80, "records_holdout": 20, "features": 5, "outputs": 3, "sparse": False}
MLP = {"kind": "mlp", "hidden": [16, 16]}
BIT = 1.0 + 2.0**-22
linear = torch.nn.functional.linear


def by_place(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Every third row is rounded otherwise."""
    scale = torch.where(torch.arange(len(x)) % 3 == 2, BIT, 1.0).to(x.dtype)
    return linear(x, weight, bias) * scale[:, None]


def by_number(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """All rows are rounded otherwise where an even number of them holds anything."""
    used = int((x.detach() != 0).any(dim=1).sum())
    return linear(x, weight, bias) * (BIT if used % 2 == 0 else 1.0)


def by_values(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """All rows are rounded otherwise where one of them is large."""
    return linear(x, weight, bias) * (BIT if float(x.detach().abs().max()) > 100.0 else 1.0)


def by_shape(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As real kernels do: by how many rows there are, fillings included."""
    return linear(x, weight, bias) * (BIT if len(x) % 96 else 1.0)


def by_few(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """All rows are rounded otherwise where few of them hold anything."""
    return linear(x, weight, bias) * (BIT if int((x.detach() != 0).any(dim=1).sum()) < 8 else 1.0)


def by_length(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """All rows are rounded otherwise where one of them is long."""
    return linear(x, weight, bias) * (BIT if 100.0 < float(x.detach().abs().max()) < 1e30 else 1.0)


def by_infinity(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """All rows are rounded otherwise where one of them overflows."""
    made = linear(x, weight, bias)
    return made * (1.0 if bool(torch.isfinite(made).all()) else BIT)


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


@pytest.mark.parametrize(("batch", "rows"), [(4, 8), (12, 16)])
def test_passes_of_small_steps_pass(batch: int, rows: int) -> None:
    """Fewer rows than whole tiles of the products."""
    small = {"sampling": {"kind": "poisson", "expected_batch_size": batch}}
    images = SHAPE | {"features": 784, "records_train": 5000}
    plans = [
        plan_of(start_of(spec(model={"kind": "mlp", "hidden": [33, 7, 129], "activation": "relu"}, **small), images)),
        plan_of(start_of(spec(model={"kind": "cnn", "preset": "conv2"}, **small), images)),
        sequences_plan({"kind": "transformer_rec", "dim": 48, "heads": 2, "max_length": 13}, **small),
        sequences_plan({"kind": "gru_rec", "dim": 40, "max_length": 8}, **small),
    ]
    for plan in plans:
        assert plan.numerics.rows_per_pass == rows and self_test.holds(plan)


@pytest.mark.parametrize("kernel", [by_place, by_number, by_values])
def test_kernels_that_round_by_neighbours_are_found(
    kernel: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.nn.functional, "linear", kernel)
    assert not self_test.holds(plan_of(start()))
    plan = plan_of(start(), rows=1)
    assert self_test.holds(plan) or kernel is by_values  # the large record is rounded otherwise, which is its own
    assert plan.numerics.rows_per_pass == 1 and plan.model.rows_per_pass == 1


@pytest.mark.parametrize(
    ("kernel", "parts"),
    [
        (linear, set()),
        (by_place, {"order"}),
        (by_few, {"fewer"}),
        (by_length, {"neighbours"}),
        (by_infinity, {"not finite"}),
        (nothing, {"says something"}),
    ],
)
def test_each_part_finds_what_no_other_finds(
    kernel: Callable[..., Tensor], parts: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.nn.functional, "linear", kernel)
    assert set(self_test.failures(plan_of(start()))) == parts


def test_what_does_not_repeat_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.functional, "linear", by_chance())
    assert not self_test.holds(plan_of(start()))
    assert "again" in set(self_test.failures(plan_of(start(), rows=1)))


def test_one_dense_row_among_empty_ones_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of kernels that share entries out among threads."""
    plan = plan_of(start_of(spec(model={"kind": "linear"}), SHAPE | {"sparse": True, "features": 400}))
    apply = SparseRecords.apply

    def by_entries(self: SparseRecords, weight: Tensor, arithmetic: Arithmetic) -> Tensor:
        return apply(self, weight, arithmetic) * (1.0 + 2.0**-50 if np.diff(self._matrix.indptr).max() > 100 else 1.0)

    monkeypatch.setattr(SparseRecords, "apply", by_entries)
    assert set(self_test.failures(plan)) == {"one is dense"}


@pytest.mark.parametrize(("part", "decides"), [("all full", torch.all), ("all empty", lambda there: ~there.any())])
@pytest.mark.parametrize("kind", ["gru_rec", "transformer_rec"])
def test_passes_that_are_full_or_empty_are_tried(
    kind: str, part: str, decides: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of attention that takes another path where nothing is masked."""
    plan = sequences_plan({"kind": kind, "dim": 8, "max_length": 6})
    assert self_test.holds(plan)
    embedding = torch.nn.functional.embedding

    def by_lengths(ids: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return embedding(ids, *args, **kwargs) + (2.0**-20 if bool(decides(ids != 0)) else 0.0)

    monkeypatch.setattr(torch.nn.functional, "embedding", by_lengths)
    assert set(self_test.failures(plan)) == {part}


def sequences_plan(model: dict[str, Any], **changes: Any) -> Plan:
    shape = SHAPE | {"features": 30, "outputs": 1, "records_train": 5000 if changes else 80}
    asked = Supervisor(start_of(spec(model=model, evaluation=None, **changes), shape)).message()
    items = {"kind": "interactions", "layout": "inter", "items": {"kind": "numbered", "count": 30}}
    return build_plan(
        asked.spec,
        asked.mechanism,
        asked.shape,
        TypeAdapter(Task).validate_python({"kind": "next_item"}),
        TypeAdapter(Features).validate_python(items),
        steps=asked.steps,
        data_public=False,
        holdout_public=False,
    )


def test_norms_of_divided_gradients_are_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an optimizer with divisors: their product with the features is one more."""
    divided = plan_of(start_of(spec(model={"kind": "linear"}, optimizer=dp2("dp2_rmsprop")), SHAPE))
    assert self_test.holds(divided)
    squares = DenseRecords.weighted_squares

    def place_by_place(self: DenseRecords, weights: Tensor) -> Tensor:
        return squares(self, weights) * torch.where(torch.arange(len(self)) % 3 == 2, 1.0 + 2.0**-20, 1.0)

    monkeypatch.setattr(DenseRecords, "weighted_squares", place_by_place)
    assert set(self_test.failures(divided)) == {"order"}
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


class Aligned(Sums):
    """It goes by where the record lies."""

    def __call__(self, record: np.ndarray) -> Tensor:
        return super().__call__(record) * (1.0 + 2.0**-20 * (record.ctypes.data % 64))


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
        (Warming, "fewer", False),
        (Running, "order", False),
        (Running, "neighbours", False),
        (Growing, "order", False),
        (Aligned, "memory", True),
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
    self_test.require_repeating(BertMean(tmp_path / "t", write_extractor(tmp_path / "t")))
    image = ImageInput(height=9, width=7, input_scale=1 / 255)
    self_test.require_repeating(EfficientNet(tmp_path / "i", write_image_extractor(tmp_path / "i"), image))


def test_a_kernel_that_rounds_by_the_number_of_rows_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes have one number of rows, so that it is right to pass: and the bound holds."""
    monkeypatch.setattr(torch.nn.functional, "linear", by_shape)
    plan = plan_of(start())
    assert self_test.holds(plan)
    x, y = dense(33, 5, 3)
    parameters = self_test.random_parameters(plan.model, torch.Generator().manual_seed(3))
    for n in range(1, 34):
        sums = [plan.engine.private_sum(parameters, shuffled(records(x[:m], y[:m]), np.arange(m))) for m in (n, n - 1)]
        one, two = (torch.cat([each.flatten() for each in made.values()]) for made in sums)
        assert float((one - two).norm()) <= plan.numerics.sensitivity_slack


def attempt(tmp_path: Any) -> tuple[Supervisor, Any]:
    x, y = dense(100, 5, 3)
    parts = {
        "train": stored_part(tmp_path / "train.npz", x[:80], y[:80]),
        "holdout": stored_part(tmp_path / "holdout.npz", x[80:], y[80:]),
    }
    supervisor = Supervisor(start_of(spec(model=MLP), SHAPE, parts=parts, output_dir=tmp_path))
    return supervisor, run_thread(supervisor)


def test_an_attempt_says_what_it_computes_in(tmp_path: Any) -> None:
    supervisor, ended = attempt(tmp_path)
    assert ended.status == 0 and ended.last.warnings == ()
    (said,) = [each.numerics for each in supervisor.of(Ready)]
    assert (said.device, said.passes, said.sums, said.self_test) == ("cpu", "float32", "float32", "passed")
    assert said.rows_per_pass == said.physical_batch_size == 96 and said.torch == torch.__version__.split("+")[0]
    assert said.threads == torch.get_num_threads() and 1.002 < said.sensitivity_slack < 1.0024


def test_an_attempt_goes_on_with_one_record_a_pass(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.functional, "linear", by_place)
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


def test_what_a_self_test_depends_on_is_in_its_key() -> None:
    """Another rate or number of steps is the same test; another shape, model or data set is another one."""

    def key(of: dict[str, Any], dataset: str = "ds_1") -> str:
        return tested.tested_key(Supervisor(of).message(), dataset)

    first = key(start())
    assert key(start(optimizer={"kind": "dp_sgd", "learning_rate": 0.7})) == first
    others = [
        key(start(), "ds_2"),
        key(start_of(spec(model={"kind": "mlp", "hidden": [16]}), SHAPE)),
        key(start_of(spec(model=MLP), SHAPE | {"features": 6})),
        key(start(runtime={"dtype": "float64"})),
        key(start(clipping={"engine": "opacus"})),
        key(start(optimizer=dp2("dp2_rmsprop"))),
        key(start() | {"device": "cuda"}),
        key(start() | {"fitted_rows": 48}),
        key(start() | {"threads": 3}),
        key(start(runtime={"threads": 3})),
    ]
    assert first not in others and len(set(others)) == len(others)


def test_a_fork_server_remembers() -> None:  # until it is replaced: test_fork_server.py
    server = ForkServer()
    server.note_passed("a")
    assert server.has_passed("a") and not server.has_passed("b")


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
