"""Augmentation: a record's gradient is the mean over its views, clipped as one; views replay, and are of one record."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from core.contracts.augmentation import Augmentation
from core.contracts.cnn import ImageSize
from core.contracts.dataset_spec import Tensor as ArrayFeatures
from core.contracts.job_spec import Clipping, CnnModel, JobSpec
from core.contracts.model_settings import ImageForm
from core.contracts.slots import PartSlots
from core.errors import PrivacyError
from core.privacy.mechanism import TrainingMechanism
from core.privacy.numerics import PublicSizes, numerics_of
from tests.bound.worst import neighbours
from tests.worker.gang import trained
from tests.worker.layers import Scale
from tests.worker.support import Supervisor, key, plan_of, records, run_direct, spec, start_of
from worker.clipping.bookkeeping import Bookkeeping
from worker.clipping.build import build_engine
from worker.clipping.engine import GradientEngine
from worker.clipping.plain import PlainGradient
from worker.data.passes import EMPTY
from worker.data.records import DenseRecords, SparseRecords
from worker.data.secret_slots import Slotted
from worker.data.sequence_records import SequenceRecords
from worker.models.base import Parameters
from worker.models.linear import Linear
from worker.models.matrix_factorization import MatrixFactorization
from worker.models.networks import Network
from worker.models.residual import StandardizedConv2d
from worker.models.views import Views
from worker.training.self_test import failures, random_parameters

KEY = bytes.fromhex(key("views"))
SIZE = ImageSize(height=8, width=8, channels=2)
CNN: dict[str, Any] = {"kind": "cnn", "preset": "conv5", "image": SIZE.model_dump()}
ALL = {
    "views": 3,
    "transforms": [{"kind": "crop", "padding": 2}, {"kind": "flip"}, {"kind": "erase", "side": 3}],
}
SHAPE = {"records_train": 60, "records_holdout": 12, "features": SIZE.numbers, "outputs": 3, "sparse": False}
POISSON = {"kind": "poisson", "expected_batch_size": 16}
C, GAIN = 0.5, 3.0  # views of one record then have gradients in different directions


def images(n: int, seed: int = 0) -> DenseRecords:
    generator = torch.Generator().manual_seed(seed)
    return DenseRecords(torch.randn(n, SIZE.numbers, generator=generator), torch.arange(n) % 3)


def views(asked: dict[str, Any] = ALL, channels_last: bool = False) -> Views:
    made = Views(Augmentation.model_validate(asked), ImageForm(8, 8, 2, channels_last))
    made.begin(KEY, 1)
    return made


def network(rows: int = 48, dtype: torch.dtype = torch.float64, **more: Any) -> Network:
    return Network(SIZE.numbers, 3, CnnModel.model_validate(CNN | more), dtype=dtype, rows_per_pass=rows)


def training(kind: str, norm: float = C) -> TrainingMechanism:
    made = {"sampling": "full_batch", "sample_rate": 1.0, "steps": 1, "noise_multiplier": 1.0}
    made |= {"max_grad_norm": norm, "clipping": kind, "expected_batch_size": 32}
    return TrainingMechanism.model_validate(made)


def engine_of(model: Network, by: Views | None, kind: str = "flat", name: str = "bookkeeping") -> GradientEngine:
    asked = Clipping.model_validate({"kind": kind, "engine": name, "max_grad_norm": C})
    return build_engine(model, asked, training(kind), views=by)


def flat(parts: Parameters) -> Tensor:
    return torch.cat([each.double().flatten() for each in parts.values()])


def by_autograd(model: Network, parameters: Parameters, batch: DenseRecords, by: Views, kind: str) -> Parameters:
    """Each record's views alone, their gradients averaged, clipped, added up."""
    module = model.module()
    own = dict(module.named_parameters())
    with torch.no_grad():
        for name, value in parameters.items():
            own[name].copy_(value)
    total = {name: torch.zeros_like(value) for name, value in parameters.items()}
    layers = sorted({name.rpartition(".")[0] for name in own})
    for place in range(len(batch)):
        by.begin_pass(place)
        seen = by.of(batch.piece(np.array([place]), torch.float64))
        mean = {name: torch.zeros_like(value) for name, value in total.items()}
        for view in range(by.each):
            loss = model.record_losses(module, seen.select(np.array([view]))).sum()
            for name, each in zip(own, torch.autograd.grad(loss, list(own.values())), strict=True):
                mean[name] += each / by.each
        for group in layers if kind == "per_layer" else [""]:
            names = [name for name in own if not group or name.rpartition(".")[0] == group]
            norm, share = float(flat({n: mean[n] for n in names}).norm()), C / len(layers) ** 0.5
            factor = {
                "flat": min(1.0, C / norm),
                "automatic": C / (norm + 0.01),
                "per_layer": min(1.0, share / norm),
            }[kind]
            for name in names:
                total[name] += factor * mean[name]
    return total


@pytest.mark.parametrize(
    ("kind", "name", "rows", "channels"),
    [
        ("flat", "bookkeeping", 48, "first"),
        ("flat", "bookkeeping", 2, "last"),
        ("per_layer", "bookkeeping", 3, "first"),
        ("automatic", "bookkeeping", 1, "first"),
        ("flat", "opacus", 4, "first"),
    ],
)
def test_clipped_sums_are_those_of_autograd_over_the_views(kind: str, name: str, rows: int, channels: str) -> None:
    model, batch, by = network(rows, channels=channels), images(7), views(channels_last=channels == "last")
    parameters = random_parameters(model, torch.Generator().manual_seed(1), GAIN)
    wanted = flat(by_autograd(model, parameters, batch, by, kind))
    found = flat(engine_of(model, by, kind, name).private_sum(parameters, batch))
    assert float((found - wanted).norm()) <= 1e-9 * float(wanted.norm())


class EachKind(nn.Module):
    """Layers of several rules, one of a parameter beside layers, and one without a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.first = StandardizedConv2d(2, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)
        self.second = nn.Conv2d(4, 4, 3, stride=2, groups=2)
        self.scale = Scale(4 * 9)
        self.shift = nn.Parameter(torch.zeros(4 * 9))
        self.last = nn.Linear(4 * 9, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.first(x.unflatten(1, (2, 8, 8)))).tanh()
        return self.last(self.scale(self.second(h).flatten(1)).tanh() + self.shift)  # type: ignore[no-any-return]


def test_every_kind_of_layer_sums_over_views() -> None:
    """With a clip that does not bind: the sum of all gradients, by autograd."""
    losses = network().record_losses
    engines: list[GradientEngine] = []
    batch, module = images(7), EachKind().double()
    by = [views(ALL | {"views": 2}) for _ in range(2)]
    private: Bookkeeping[Any] = Bookkeeping(
        copy.deepcopy(module), losses, rows=3, kind="flat", max_grad_norm=1e6, dtype=torch.float64, views=by[0]
    )
    private.examine(images(3, seed=1), random_like(module))
    engines = [private, PlainGradient(module, losses, rows=3, dtype=torch.float64, views=by[1])]
    sums = [flat(each.private_sum(random_like(module), batch)) for each in engines]
    assert float((sums[0] - sums[1]).norm()) <= 1e-9 * float(sums[1].norm())


def random_like(module: nn.Module) -> Parameters:
    generator = torch.Generator().manual_seed(2)
    return {
        name: torch.randn(p.shape, generator=generator, dtype=torch.float64) for name, p in module.named_parameters()
    }


# --- One record moves a sum by at most C, and what would break that is found ---


def apart(batch: Slotted[Any], by: Views) -> Slotted[Any]:
    """The planted fault's records: each view is one."""
    (whole,) = batch.passes(len(batch), torch.float32)
    seen = by.of(whole.records)
    return Slotted(seen, np.where(whole.present.repeat_interleave(by.each), np.arange(len(seen)), EMPTY))


def largest_move(model: Network, summed: Callable[[Parameters, Slotted[Any]], Parameters]) -> float:
    """max ‖S − S′‖ / C over records more or less, at weights of a gain of 30."""
    parameters = random_parameters(model, torch.Generator().manual_seed(1))
    batch, moved = images(18), 0.0
    for n in (1, 2, 3, 5, 17):
        for pair in neighbours(batch, n):  # type: ignore[arg-type]
            whole, fewer = (flat(summed(parameters, each)) for each in pair)
            moved = max(moved, float((whole - fewer).norm()) / C)
    return moved


def test_one_record_moves_a_sum_by_at_most_c_whatever_its_views() -> None:
    """Each record keeps its views, as in the proof: the pairs that the two mixtures are made of."""
    model, by = network(dtype=torch.float32), views()
    engine = engine_of(model, by)

    def summed(parameters: Parameters, batch: Slotted[Any]) -> Parameters:
        with by.still():
            return engine.private_sum(parameters, batch)

    assert 0.5 < largest_move(model, summed) <= 1.0 + 1e-5


def test_views_that_count_as_records_move_it_by_k_times_as_much() -> None:
    """The planted fault: the bound above finds it."""
    model, by = network(dtype=torch.float32), views()
    engine = engine_of(model, None)

    def summed(parameters: Parameters, batch: Slotted[Any]) -> Parameters:
        with by.still():
            return engine.private_sum(parameters, apart(batch, by))

    assert largest_move(model, summed) > 1.5


def test_clipping_each_view_before_the_mean_is_found() -> None:
    """The planted fault keeps the bound, and is another sum: the comparison with autograd finds it."""
    model, batch, by = network(), images(7), views()
    parameters = random_parameters(model, torch.Generator().manual_seed(1), GAIN)
    wanted = flat(by_autograd(model, parameters, batch, by, "flat"))
    by.begin(KEY, 1)
    fault = flat(engine_of(model, None).private_sum(parameters, apart(Slotted(batch, np.arange(7)), by))) / by.each
    assert float((fault - wanted).norm()) > 0.01 * float(wanted.norm())


def test_the_last_record_s_views_move_no_other_s() -> None:
    model, by = network(rows=3), views()
    parameters, engine = random_parameters(model, torch.Generator().manual_seed(1), 1.0), engine_of(model, by)
    sums = [engine.private_sum(parameters, images(8).select(np.arange(n))) for n in (7, 8)]
    assert 0.0 < float((flat(sums[1]) - flat(sums[0])).norm()) <= C * (1.0 + 1e-9)


def test_a_record_that_is_not_finite_adds_nothing() -> None:
    batch = images(3)
    batch.tensors[0][1, 5] = torch.nan
    broken = DenseRecords(batch.tensors[0], batch.labels)
    model, by = network(), views()
    parameters, engine = random_parameters(model, torch.Generator().manual_seed(1), 1.0), engine_of(model, by)
    with by.still():
        found, wanted = (flat(engine.private_sum(parameters, x)) for x in (broken, broken.select(np.array([0, 2]))))
    assert bool(torch.isfinite(found).all()) and torch.allclose(found, wanted, rtol=1e-12)


# --- Views ---


def test_views_belong_to_a_step_and_a_place_however_a_batch_is_cut() -> None:
    by, batch = views(), images(7)
    whole = by.of(batch.piece(np.arange(7), torch.float32)).tensors[0]
    for start in (2, 5):
        by.begin_pass(start)
        piece = by.of(batch.piece(np.arange(start, start + 2), torch.float32)).tensors[0]
        assert torch.equal(piece, whole[3 * start : 3 * start + 6])
    by.begin(KEY, 2)
    assert not torch.equal(by.of(batch.piece(np.arange(7), torch.float32)).tensors[0], whole)
    assert len({each.numpy().tobytes() for each in whole}) == 21


@pytest.mark.parametrize("fill", ["reflect", "zeros"])
def test_a_crop_is_a_piece_of_the_padded_image(fill: str) -> None:
    by, batch = views({"views": 64, "transforms": [{"kind": "crop", "padding": 2, "fill": fill}]}), images(2)
    mode = "reflect" if fill == "reflect" else "constant"
    found = by.of(batch.piece(np.arange(2), torch.float32)).tensors[0].view(2, 64, 2, 8, 8)
    for image, seen in zip(batch.tensors[0].view(2, 2, 8, 8), found, strict=True):
        padded = F.pad(image[None], (2, 2, 2, 2), mode=mode)[0]
        pieces = {padded[:, y : y + 8, x : x + 8].numpy().tobytes() for y in range(5) for x in range(5)}
        known = {each.numpy().tobytes() for each in seen}
        assert known <= pieces and len(known) > 15


def test_a_flip_mirrors_half_of_the_views_and_a_square_is_erased() -> None:
    batch = images(2)
    image = batch.tensors[0].view(2, 1, 2, 8, 8)
    flipped = views({"views": 64, "transforms": [{"kind": "flip"}]}).of(batch.piece(np.arange(2), torch.float32))
    found = flipped.tensors[0].view(2, 64, 2, 8, 8)
    mirrored = (found == image.flip(4)).flatten(2).all(dim=2)
    assert bool((mirrored ^ (found == image).flatten(2).all(dim=2)).all())
    assert 40 <= int(mirrored.sum()) <= 88
    erased = views({"views": 64, "transforms": [{"kind": "erase", "side": 3}]}).of(
        batch.piece(np.arange(2), torch.float32)
    )
    gone = (erased.tensors[0].view(2, 64, 2, 8, 8) == 0.0) & (image != 0.0)
    assert bool((gone.sum(dim=(3, 4)) == 9).all())
    rows, columns = (gone.any(dim=at).sum(dim=-1) for at in (4, 3))
    assert bool((rows == 3).all() and (columns == 3).all())


def test_words_are_dropped_but_not_a_text_s_marks() -> None:
    lengths = np.array([9, 1, 0, 12])
    ends = np.cumsum(lengths)
    items = np.arange(lengths.sum()).astype(np.int32)
    texts = SequenceRecords(items, ends - lengths, ends, torch.arange(4))
    asked = Augmentation.model_validate({"views": 64, "transforms": [{"kind": "drop_words", "rate": 0.3}]})
    by = Views(asked, None, length=10)
    by.begin(KEY, 1)
    seen = by.of(texts)
    assert torch.equal(seen.labels, torch.arange(4).repeat_interleave(64))
    ids = seen.padded(10).view(4, 64, 10)
    whole = texts.padded(10)
    counts = (ids != 0).sum(dim=2)
    assert bool((ids[0, :, 0] == 1).all()) and bool((ids[0].max(dim=1).values == 9).all())
    assert bool((ids[1, :, 0] == whole[1, 0]).all()) and not ids[2].any()
    assert abs(float(counts[0].double().mean()) - (2 + 7 * 0.7)) < 0.6
    assert bool((ids[3, :, 0] == whole[3, 0]).all())
    for view in ids[0]:
        there = view[view != 0]
        assert bool((there.diff() > 0).all()), "in their order"


def test_without_a_step_or_for_other_records_there_are_none() -> None:
    by = Views(Augmentation.model_validate(ALL), ImageForm(8, 8, 2, channels_last=False))
    with pytest.raises(PrivacyError, match="before a step"):
        by.of(images(1))
    by.begin(KEY, 1)
    with pytest.raises(PrivacyError, match="this kind"):
        by.of(SequenceRecords(np.zeros(1, np.int32), np.zeros(1, np.int64), np.ones(1, np.int64)))
    with pytest.raises(PrivacyError, match="hashed words"):
        linear = build_engine(Linear(SIZE.numbers, 3), Clipping(), training("flat"), views=by)
        linear.private_sum(Linear(SIZE.numbers, 3).init(), images(2))
    with pytest.raises(PrivacyError, match="one view"):
        build_engine(MatrixFactorization(2, 2, 2, (1.0, 5.0)), Clipping(), training("flat"), views=by)


# --- Hashed words ---

WORDS, LABELS = 40, 3
DROPPED = {"views": 3, "transforms": [{"kind": "drop_words", "rate": 0.3}]}


def hashed(n: int = 9, bad: bool = False) -> SparseRecords:
    generator = np.random.default_rng(0)
    x = generator.random((n, WORDS)) * (generator.random((n, WORDS)) < 0.3)
    x[0] = 0.0  # a text without words
    x[1:] /= np.linalg.norm(x[1:], axis=1, keepdims=True)
    if bad:
        x[2, 0] = np.inf
    return SparseRecords(scipy.sparse.csr_matrix(x), torch.arange(n) % LABELS)


def word_views() -> Views:
    made = Views(Augmentation.model_validate(DROPPED), None)
    made.begin(KEY, 1)
    return made


def test_each_view_of_hashed_words_is_what_hashing_the_others_gives() -> None:
    batch = hashed()
    seen = word_views().of(batch.piece(np.arange(9), torch.float64))
    whole = batch.dense(torch.float64).repeat_interleave(3, dim=0)
    found = seen.dense(torch.float64)
    there = found != 0.0
    kept = torch.where(there, whole, 0.0)
    scaled = kept / kept.norm(dim=1, keepdim=True).clamp(min=1e-9)
    torch.testing.assert_close(found, scaled, rtol=1e-12, atol=1e-14)
    assert 0.15 < 1.0 - float(there[3:].double().sum() / (whole[3:] != 0.0).double().sum()) < 0.45
    assert len({each.numpy().tobytes() for each in found[3:]}) > 20
    assert bool((seen.private_norms >= found.norm(dim=1)).all())


def test_products_of_views_are_a_record_s_own() -> None:
    seen = word_views().of(hashed())
    rows = seen.dense(torch.float64).view(9, 3, WORDS)
    torch.testing.assert_close(seen.grams(3), torch.bmm(rows, rows.mT), rtol=1e-14, atol=1e-15)
    alone = word_views().of(hashed().select(np.arange(5)))
    assert torch.equal(alone.grams(3), seen.grams(3)[:5])


@pytest.mark.parametrize(("kind", "rows", "bias"), [("flat", 48, True), ("flat", 2, False), ("automatic", 3, True)])
def test_a_linear_model_s_sums_are_those_of_autograd_over_the_views(kind: str, rows: int, bias: bool) -> None:
    model, batch, by = Linear(WORDS, LABELS, bias=bias, rows_per_pass=rows), hashed(), word_views()
    generator = torch.Generator().manual_seed(1)
    parameters = {n: 4.0 * torch.randn(v.shape, generator=generator).double() for n, v in model.init().items()}
    engine = build_engine(model, Clipping.model_validate({"kind": kind, "max_grad_norm": C}), training(kind), views=by)
    seen = by.of(batch.piece(np.arange(9), torch.float64)).dense(torch.float64).view(9, 3, WORDS)
    total, binding = torch.zeros_like(flat(parameters)), 0
    for x, label in zip(seen, batch.labels, strict=True):
        leaves = [value.clone().requires_grad_() for value in parameters.values()]
        loss = F.cross_entropy(F.linear(x, *leaves), label.expand(3))
        gradient = torch.cat([each.flatten() for each in torch.autograd.grad(loss, leaves)])
        norm = float(gradient.norm())
        binding += norm > C
        total += gradient * (min(1.0, C / max(norm, 1e-12)) if kind == "flat" else C / (norm + 0.01))
    assert binding > 2
    found = flat(engine.private_sum(parameters, batch))
    assert float((found - total).norm()) <= 1e-9 * float(total.norm())


@pytest.mark.parametrize("bad", [False, True])
def test_one_text_moves_a_linear_model_s_sum_by_at_most_c(bad: bool) -> None:
    model, batch, by = Linear(WORDS, LABELS, bias=True), hashed(9, bad), word_views()
    parameters = random_parameters(model, torch.Generator().manual_seed(1))
    engine = build_engine(model, Clipping(max_grad_norm=C), training("flat"), views=by)
    moved = []
    with by.still():
        for n in (1, 2, 4, 9):
            for pair in neighbours(batch, n):  # type: ignore[arg-type]
                whole, fewer = (flat(engine.private_sum(parameters, each)) for each in pair)
                moved.append(float((whole - fewer).norm()) / C)
    assert 0.5 < max(moved) <= 1.0 + 1e-9


def test_a_job_on_hashed_words_replays_and_passes_its_self_test() -> None:
    shape = {"records_train": 60, "records_holdout": 0, "features": WORDS, "outputs": LABELS, "sparse": True}
    asked = {"augmentation": DROPPED, "sampling": POISSON, "evaluation": None, "length": {"steps": 10}}
    made = start_of(spec(**asked), shape)
    plan = plan_of(made)
    assert plan.views is not None and list(failures(plan)) == []
    train = hashed(60)
    straight, record = Supervisor(made), Supervisor(made, die_at=4)
    weights = flat(run_direct(straight, train, None)[0].parameters)
    with pytest.raises(ConnectionError):
        run_direct(record, train, None)
    record.die_at = None
    assert torch.equal(flat(run_direct(record, train, None)[0].parameters), weights) and record.resalts == 0


# --- Jobs ---

X = images(72).tensors[0].numpy()
TRAIN, HOLDOUT = records(X[:60], np.arange(60) % 3), records(X[60:], np.arange(12) % 3)


def start(**changes: Any) -> dict[str, Any]:
    return start_of(
        spec(**{"model": CNN, "augmentation": ALL, "sampling": POISSON, "length": {"steps": 10}, **changes}), SHAPE
    )


def ended(record: Supervisor) -> Tensor:
    return flat(run_direct(record, TRAIN, HOLDOUT)[0].parameters)


def test_one_view_of_no_transform_is_a_job_without_augmentation() -> None:
    plain, same = (Supervisor(start(augmentation=each)) for each in (None, {"views": 1}))
    assert torch.equal(ended(plain), ended(same)) and plain.digests() == same.digests()
    other = Supervisor(start(augmentation={"transforms": [{"kind": "flip"}]}))
    assert not torch.equal(ended(other), ended(plain))


@pytest.mark.parametrize("sampling", [{"kind": "full_batch"}, POISSON])
def test_a_killed_attempt_goes_on_to_the_same_bits(sampling: dict[str, Any]) -> None:
    straight = Supervisor(start(sampling=sampling))
    weights = ended(straight)
    record = Supervisor(start(sampling=sampling), die_at=4)
    with pytest.raises(ConnectionError):
        run_direct(record, TRAIN, HOLDOUT)
    record.die_at = None
    assert torch.equal(ended(record), weights)
    assert record.digests() == straight.digests() and record.resalts == 0


def test_every_number_of_ranks_gives_the_same_model() -> None:
    """Passes of a few records, so that each rank has some."""
    asked = {"model": CNN, "augmentation": ALL, "evaluation": None, "seed": 7, "length": {"steps": 3}}
    made = start_of(spec(runtime={"physical_batch_size": 4}, **asked), SHAPE | {"records_holdout": 0}, public=True)
    wanted = trained(Supervisor(made), TRAIN, 1)[0].parameters
    for each in trained(Supervisor(made), TRAIN, 2):
        assert torch.equal(flat(each.parameters), flat(wanted))


def test_the_self_test_and_the_numerics_know_of_the_views() -> None:
    plan = plan_of(start(runtime={"physical_batch_size": 1}))
    assert list(failures(plan)) == []
    slots = PartSlots(units=63_064, rows=63_064)
    sizes = PublicSizes(60_000, 1, SIZE.numbers, 3, sparse=False, slots=slots)
    asked = [JobSpec.model_validate(spec(model=CNN, augmentation=each)) for each in (None, ALL)]
    one, three = (numerics_of(each, sizes, ArrayFeatures(array="x")) for each in asked)
    assert three.positions == 3 * one.positions and three.rows_per_pass <= one.rows_per_pass // 2
    # A group of 96 rows in float32 on either side: 2 · 96 · 100 · 2⁻²⁴.
    assert three.sensitivity_slack == pytest.approx(1.0 + 2 * 96 * 100 * 2.0**-24, abs=2e-7)
