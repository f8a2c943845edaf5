"""The compiled parts of layers have the numbers of torch, on every path of the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from core.contracts.job_spec import CnnModel, MlpModel
from core.native.library import PATHS
from tests.worker.native import opened
from worker.clipping import rules
from worker.clipping.rules import rule_of
from worker.clipping.terms import Dense, Merged
from worker.models import activations, pooling
from worker.models.activations import Tanh
from worker.models.networks import Network
from worker.models.pooling import AvgPool2x2, MaxPool2x2
from worker.native.layers import LAYERS, Kernel, Layers

SIZES = [(1, 1, 2, 2), (3, 2, 5, 4), (2, 3, 14, 14), (2, 1, 33, 17), (4, 2, 3, 40), (2, 2, 8, 9)]


@pytest.fixture(scope="module", params=PATHS)
def layers(request: pytest.FixtureRequest) -> Layers:
    return Layers(opened(request.param))


def made(*shape: int, ties: bool = False) -> Tensor:
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(math.prod(shape)))
    return numbers.sign() if ties else numbers


def same(one: Tensor | None, other: Tensor) -> bool:
    """To the bit, but for what a NaN holds."""
    return one is not None and bool(
        ((one.view(torch.int32) == other.view(torch.int32)) | (one.isnan() & other.isnan())).all()
    )


@given(
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(*[st.integers(1, 9)] * 2),
    st.tuples(*[st.integers(1, 3)] * 2),
    st.tuples(*[st.integers(0, 3)] * 2),
    st.tuples(*[st.integers(1, 3)] * 2),
    st.tuples(*[st.integers(1, 20)] * 2),
)
def test_patches_of_all_shapes(
    many: tuple[int, int],
    size: tuple[int, int],
    dilation: tuple[int, int],
    padding: tuple[int, int],
    stride: tuple[int, int],
    image: tuple[int, int],
) -> None:
    if LAYERS is None:
        pytest.skip("there is no library")
    kernel, x = Kernel(size, dilation, padding, stride), made(*many, *image)
    found = LAYERS.patches(x, kernel)
    if min(kernel.places(image)) < 1:
        assert found is None
        return
    wanted = F.unfold(x, size, dilation, padding, stride)
    by_places = LAYERS.patches(x, replace(kernel, by_places=True))
    assert same(found, wanted) and by_places is not None and same(by_places.mT.contiguous(), wanted)
    assert same(rules._copied_patches(x, kernel).mT.contiguous(), wanted)


@pytest.mark.parametrize("odd", [None, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("image", [(28, 28, 8, 2, 3), (13, 13, 4, 2, 0), (8, 8, 3, 1, 1), (6, 7, 1, 1, 0)])
def test_patches_on_each_path(layers: Layers, image: tuple[int, int, int, int, int], odd: float | None) -> None:
    tall, wide, size, stride, padding = image
    x = made(3, 2, tall, wide)
    if odd is not None:
        x[1, 0, 0, 1] = odd
    kernel = Kernel((size, size), (1, 1), (padding, padding), (stride, stride))
    wanted = F.unfold(x, size, 1, padding, stride)
    for by_places in (False, True):
        found = layers.patches(x, replace(kernel, by_places=by_places))
        assert found is not None and same(found.mT.contiguous() if by_places else found, wanted)


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("kind", ["numbers", "ties", "not finite"])
@pytest.mark.parametrize(
    ("ours", "torchs"), [(AvgPool2x2, lambda: nn.AvgPool2d(2)), (MaxPool2x2, lambda: nn.MaxPool2d(2, 1))]
)
def test_pooling(
    layers: Layers,
    shape: tuple[int, ...],
    kind: str,
    ours: type[nn.Module],
    torchs: Callable[[], nn.Module],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As without the library, and as torch's own layer."""
    x, found = made(*shape, ties=kind == "ties"), []
    if kind == "not finite":
        x.view(-1)[:3] = torch.tensor([math.nan, math.inf, -math.inf])
    for compiled in (layers, None):
        monkeypatch.setattr(pooling, "LAYERS", compiled)
        leaf = x.clone().requires_grad_()
        pooled = ours()(leaf)
        g = made(*pooled.shape) if kind == "numbers" else made(*pooled.shape).mul(4.0).round()
        pooled.backward(g)
        assert leaf.grad is not None
        found.append((pooled.detach(), leaf.grad))
    assert same(found[0][0], found[1][0]), "values"
    assert torch.equal(found[0][1], found[1][1]), "gradients: the sign of a zero may differ"
    if kind != "not finite":
        leaf = x.clone().requires_grad_()
        pooled = torchs()(leaf)
        pooled.backward(made(*pooled.shape) if kind == "numbers" else made(*pooled.shape).mul(4.0).round())
        assert leaf.grad is not None and torch.equal(pooled, found[0][0])
        assert torch.allclose(leaf.grad, found[0][1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", SIZES)
def test_gradients_that_are_not_finite_stay_so_and_reach_no_other_record(
    layers: Layers, shape: tuple[int, ...]
) -> None:
    x = made(3, *shape[1:])
    means, maxima = made(3, shape[1], shape[2] // 2, shape[3] // 2), made(3, shape[1], shape[2] - 1, shape[3] - 1)

    def back(of_means: bool, g: Tensor) -> Tensor:
        found = layers.average_back(g, x.shape) if of_means else layers.maximum_back(g, x)
        assert found is not None
        return found

    for of_means, g in ((True, means), (False, maxima)):
        for odd in (math.nan, math.inf):
            bad = g.clone()
            bad[1] = odd
            found, clean = back(of_means, bad), back(of_means, g)
            assert torch.equal(found[[0, 2]], clean[[0, 2]]) and not bool(torch.isfinite(found[1]).all())


def test_it_does_float32_alone(layers: Layers) -> None:
    x, kernel = made(2, 3, 8, 8), Kernel((3, 3), (1, 1), (1, 1), (1, 1))
    for other in (x.double(), x.to(memory_format=torch.channels_last), x[:, :, ::2]):
        assert layers.patches(other, kernel) is None
        assert layers.average(other) is None and layers.maximum(other) is None
        assert layers.tanh(other) is None
    assert layers.maximum(x[:, :, :1].contiguous()) is None, "no window"


@pytest.mark.parametrize(
    ("layer", "image"),
    [
        (lambda: nn.Conv2d(1, 4, 8, stride=2, padding=3), (1, 28, 28)),
        (lambda: nn.Conv2d(3, 8, 3, padding=1), (3, 32, 32)),
        (lambda: nn.Conv2d(4, 8, 3, padding="same", padding_mode="reflect", groups=2), (4, 16, 16)),
        (lambda: nn.Conv2d(2, 3, (2, 5), dilation=(2, 1)), (2, 9, 30)),
        (lambda: nn.Conv1d(3, 2, 3, padding=1), (3, 40)),
        (lambda: nn.Conv2d(64, 64, 3, padding=1), (64, 8, 8)),
    ],
)
@pytest.mark.parametrize("bytes_of", [1, 2**12, 2**30])
def test_formed_gradients_have_the_same_bits_in_chunks_and_without_the_library(
    layer: Callable[[], nn.Conv2d], image: tuple[int, ...], bytes_of: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    module, x = layer(), made(12, *image)
    rule = rule_of(module, list(module.parameters()))
    assert rule is not None
    g = made(*module(x).shape)

    def gradients() -> list[Tensor]:
        with torch.no_grad():
            terms = [Merged.of([term]) for _, term in rule(module, x, g)]
        assert any(each.dense is not None for each in terms)
        return [each.dense.gradients.contiguous() for each in terms if each.dense is not None]

    wanted = gradients()
    assert all(isinstance(term, Dense) for _, term in rule(module, x, g)), "this one is formed"
    monkeypatch.setattr(rules, "PATCHES_BYTES", bytes_of)
    monkeypatch.setattr(rules, "LAYERS", None)
    assert all(same(one, other) for one, other in zip(gradients(), wanted, strict=True))


@pytest.mark.parametrize("places", [16, 196, 1024])
def test_narrow_patches_are_multiplied_from_the_other_side_with_the_same_bits(places: int) -> None:
    g, patches = made(12, places, 32), made(12, 27, places).mT
    out = torch.empty(12, 32, 27)
    rules._blockwise(out, g, patches, 1)
    assert same(out, torch.bmm(g.mT, patches))


EVERY = torch.arange(0, 2**32, 2_039, dtype=torch.int64).to(torch.int32).view(torch.float32)  # of all signs and sizes


def test_tanh_has_the_bits_of_torchs_operations(layers: Layers) -> None:
    found = layers.tanh(EVERY)
    assert found is not None and same(found, activations._by_torch(EVERY))
    assert bool((found.isnan() == EVERY.isnan()).all())


def test_tanh_errs_little_and_stays_within_one() -> None:
    x = torch.cat([EVERY[~EVERY.isnan()], torch.linspace(-9.0, 9.0, 1_000_001), torch.tensor([math.inf, -math.inf])])
    found, exact = Tanh()(x), x.double().tanh()
    assert float((found - exact).abs().max()) <= 4.1e-7
    small = x.abs() < 1e-3
    assert float(((found - exact).abs() / exact.abs().clamp(min=1e-37))[small].max()) <= 3e-7
    assert float(found.abs().max()) == 1.0 and same(Tanh()(-x), -found)


def test_tanhs_gradient_and_other_types() -> None:
    x = made(40, 7)
    leaf, wanted = x.clone().requires_grad_(), x.double().requires_grad_()
    Tanh()(leaf).backward(made(40, 7))
    wanted.tanh().backward(made(40, 7).double())
    assert leaf.grad is not None and wanted.grad is not None
    assert float((leaf.grad - wanted.grad).abs().max()) < 5e-6
    for dtype in (torch.float64, torch.bfloat16):
        assert torch.equal(Tanh()(x.to(dtype)), x.to(dtype).tanh())


@pytest.mark.parametrize("spec", [CnnModel(preset="conv5"), MlpModel(hidden=[3])])
def test_networks_take_our_tanh_and_means(spec: CnnModel | MlpModel) -> None:
    layers = list(Network(3072, 2, spec).module().modules())
    assert {type(each) for each in layers if isinstance(each, nn.Tanh)} == {Tanh}
    assert sum(isinstance(each, AvgPool2x2) for each in layers) == (3 if isinstance(spec, CnnModel) else 0)
