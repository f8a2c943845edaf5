"""The bookkeeping engine: exact against autograd on one record at a time, and at most C from any record."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from core.errors import PrivacyError
from tests.worker.layers import CASES, TOKENS, WIDTH, Batch, Scale, Tensors, losses, memory_cost, one_at_a_time, take
from worker.clipping import accumulators, methods
from worker.clipping.bookkeeping import Bookkeeping
from worker.clipping.engine import Clip
from worker.clipping.terms import Outer
from worker.data.norms import ROUNDING
from worker.models.positions import Positions


def engine(module: nn.Module, kind: Any = "flat", C: float = 0.3, **more: Any) -> Bookkeeping[Batch]:
    return Bookkeeping(module, losses, **({"rows": 12, "kind": kind, "max_grad_norm": C} | more))


def parameters_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in module.named_parameters() if p.requires_grad}


def assert_close(got: dict[str, Tensor], wanted: dict[str, Tensor], rtol: float = 1e-10) -> None:
    assert list(got) == list(wanted)
    one, two = (torch.cat([each.flatten() for each in parts.values()]) for parts in (got, wanted))
    assert float((one - two).norm()) <= rtol * float(two.norm())


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("kind", "C"), [("flat", 0.3), ("flat", 1e4), ("automatic", 0.7), ("per_layer", 0.3)])
def test_the_sum_is_that_of_gradients_clipped_one_at_a_time(name: str, kind: str, C: float) -> None:
    case = CASES[name]
    module, batch = case.module(), case.batch(7)
    wanted = one_at_a_time(module, batch, kind, C)
    parameters = parameters_of(module)
    got = engine(module, kind, C).private_sum(parameters, Tensors(*batch))
    assert all(each.dtype == torch.float64 for each in got.values())
    assert_close(got, wanted)


STRATEGIES = {
    "ghost": memory_cost(10**9),
    "formed and kept": memory_cost(-(10**9)),
    "formed twice": memory_cost(-(10**9)) | {"FEW_BYTES": 0, "LARGER": 0},
    "in small chunks": {"CHUNK_BYTES": 1500, "FEW_BYTES": 0, "LARGER": 0},
}


def force(monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    for setting, value in STRATEGIES[strategy].items():
        monkeypatch.setattr(methods if hasattr(methods, setting) else accumulators, setting, value)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", ["linear over positions", "tied", "tied, last", "called twice, shared by three"])
def test_every_way_to_a_norm_gives_the_same_sum(name: str, strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch, strategy)
    case = CASES[name]
    module, batch = case.module(), case.batch(9)
    wanted = one_at_a_time(module, batch, "flat", 0.3)
    parameters = parameters_of(module)
    assert_close(engine(module).private_sum(parameters, Tensors(*batch)), wanted)


@pytest.mark.parametrize(
    "name", ["mlp", "conv2d", "untied", "tied", "tied, last", "called twice, shared by three", "no rule"]
)
def test_divisors_act_before_the_clip(name: str) -> None:
    case = CASES[name]
    module, batch = case.module(), case.batch(6)
    parameters = parameters_of(module)
    divisors = {n: 0.1 + torch.rand(p.shape, dtype=torch.float64) for n, p in parameters.items()}
    wanted = one_at_a_time(module, batch, "flat", 0.3, divisors)
    assert_close(engine(module).private_sum(parameters, Tensors(*batch), Clip(0.3, divisors)), wanted)


def test_a_divided_length_s_slack_is_of_its_widths_and_not_of_a_pass_s_records() -> None:
    left, right, divisor = (torch.rand(*shape).double() + 0.5 for shape in ((6, 1, 3), (6, 1, 50), (3, 50)))
    shares = []
    for records in (1, 6):
        outer = Outer(left[:records], right[:records])
        squares, slack = accumulators.ParameterAccumulator([outer], divisor.shape, divisor).squares()
        shares.append(float(slack[0] / squares[0] / ROUNDING))
    assert shares == pytest.approx([3 + 50 + 8] * 2)


@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_a_divisor_that_is_not_finite_gives_bounded_sums_not_errors(bad: float) -> None:
    case = CASES["mlp"]
    parameters = parameters_of(module := case.module())
    divisors = {n: torch.full(p.shape, 0.5, dtype=torch.float64) for n, p in parameters.items()}
    divisors[next(iter(divisors))].view(-1)[0] = bad
    total = flat(engine(module).private_sum(parameters, Tensors(*case.batch(6)), Clip(0.3, divisors)))
    assert float(total.norm()) <= 6 * 0.3 * (1 + 1e-6)


@pytest.mark.parametrize("name", ["mlp", "conv2d", "tied"])
def test_passes_of_any_number_of_rows_give_the_same_sum(name: str) -> None:
    case = CASES[name]
    batch = case.batch(5)
    parameters = parameters_of(case.module())
    whole = engine(case.module(), rows=5).private_sum(parameters, Tensors(*batch))
    for rows in (1, 2, 3, 4, 7, 48):
        assert_close(engine(case.module(), rows=rows).private_sum(parameters, Tensors(*batch)), whole, 1e-13)


def test_no_record_gives_zeros() -> None:
    case = CASES["tied"]
    module = case.module()
    parameters, made = parameters_of(module), engine(module)
    total = made.private_sum(parameters, Tensors(*case.batch(0)))
    assert all(not each.any() and each.dtype == torch.float64 for each in total.values())


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_a_record_that_is_not_finite_contributes_nothing(
    broken: float, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, strategy)
    for name in ("linear over positions", "conv2d", "layer norm, no bias", "no rule"):
        case = CASES[name]
        module, batch = case.module(), case.batch(5)
        parameters, made = parameters_of(module), engine(module)
        wanted = made.private_sum(parameters, Tensors(*take(batch, [0, 1, 3, 4])))
        batch[0][2].view(-1)[1] = broken
        assert_close(made.private_sum(parameters, Tensors(*batch)), wanted, 1e-12)


@pytest.mark.parametrize(
    ("layer", "instead"),
    [
        (nn.BatchNorm1d(8), "GroupNorm"),
        (nn.InstanceNorm1d(6, track_running_stats=True), "GroupNorm"),
        (nn.Dropout(0.1), "leave it out"),
        (nn.MultiheadAttention(8, 1), "Linear"),
        (nn.GRU(8, 8), "Linear"),
        (nn.Embedding(5, 8, max_norm=1.0), "leave them out"),
        (nn.utils.parametrizations.orthogonal(nn.Linear(8, 8)), "plain layer"),
    ],
)
def test_layers_that_mix_records_are_refused(layer: nn.Module, instead: str) -> None:
    with pytest.raises(PrivacyError, match=instead):
        engine(nn.Sequential(nn.Linear(8, 8), layer))


def test_frozen_statistics_mix_nothing() -> None:
    frozen = nn.BatchNorm1d(8).requires_grad_(False).eval()
    engine(nn.Sequential(nn.Linear(8, 8), frozen, nn.Dropout(0.0), nn.InstanceNorm1d(8)))


def test_layers_without_a_rule_are_named() -> None:
    module = CASES["no rule"].module()
    assert engine(module).fallbacks == ("0 (Scale)",)
    assert engine(CASES["tied"].module()).fallbacks == ()


class Folded(nn.Module):
    """Puts positions into dimension 0."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(0, 1)).unflatten(0, x.shape[:2])


class Overwriting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).mul_(2.0)


class Reusing(nn.Module):
    """Changes a layer's input when the layer has used it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.0
        y = self.layer(x)
        x.mul_(2.0)
        return y + self.layer(x)


def test_what_would_spoil_the_books_is_an_error() -> None:
    case = CASES["linear over positions"]
    for module in (made.double() for made in (Folded(), Overwriting(), Reusing())):
        parameters = parameters_of(module)
        with pytest.raises(PrivacyError):
            engine(module).private_sum(parameters, Tensors(*case.batch(3)))
        with pytest.raises(PrivacyError):
            engine(case.module()).private_sum(parameters | {"more": torch.zeros(1)}, Tensors(*case.batch(3)))


# --- Sensitivity ---


def flat(parts: dict[str, Tensor]) -> Tensor:
    return torch.cat([each.flatten() for each in parts.values()])


def largest_change(module: nn.Module, batch: Batch, kind: str, C: float) -> float:
    """What leaving any one record out changes, over C."""
    parameters = {name: p.detach().double() for name, p in module.named_parameters() if p.requires_grad}
    made = engine(module, kind, C)
    n = len(batch[0])
    whole = flat(made.private_sum(parameters, Tensors(*batch)))
    rest = [
        flat(made.private_sum(parameters, Tensors(*take(batch, [i for i in range(n) if i != at])))) for at in range(n)
    ]
    return max(float((whole - each).norm()) / C for each in rest)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    "name", ["mlp", "linear over positions", "conv2d", "group norm", "tied", "tied, last", "no rule"]
)
def test_no_record_changes_the_sum_by_more_than_c(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    for seed, kind in itertools.product(range(2), ("flat", "automatic", "per_layer")):
        module, (x, y) = case.module(seed).to(dtype), case.batch(6, seed)
        x = x if x.dtype == torch.int64 else (x * 10.0**seed).to(dtype)
        x, y = torch.cat([x, x[:1].expand_as(x)]), torch.cat([y, y[:1].expand_as(y)])  # many alike
        assert largest_change(module, (x, y), kind, 10.0 ** (-seed)) <= 1 + 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_tied_norm_that_cancels_is_not_underestimated(
    dtype: torch.dtype, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AᵀP ≈ −QᵀH: both parts of the tied gradient are large and their sum is small; C is far below both."""
    force(monkeypatch, strategy)
    for seed, gap in itertools.product(range(3), (1e-1, 1e-3, 1e-6, 0.0)):
        module, batch = Cancelling(seed, gap).to(dtype), (torch.zeros(2, 1, dtype=torch.int64), torch.zeros(2, 1))
        parameters = {name: p.detach().double() for name, p in module.named_parameters()}
        made: Bookkeeping[Batch] = Bookkeeping(module, lambda m, b: m(b[0]), rows=2, kind="flat", max_grad_norm=1e-9)
        whole = flat(made.private_sum(parameters, Tensors(*batch)))
        one = flat(made.private_sum(parameters, Tensors(*take(batch, slice(0, 1)))))
        assert float(one.norm()) <= 1e-9 * (1 + 1e-6) and float((whole - one).norm()) <= 1e-9 * (1 + 1e-6)


class Cancelling(nn.Module):
    """loss = ⟨h, E₀⟩ − (1 + gap) ⟨stop(h), …⟩: what flows into the embedding is minus what flows into the output."""

    def __init__(self, seed: int, gap: float) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding, self.output = nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, TOKENS, bias=False)
        self.output.weight = self.embedding.weight
        self.direction = 1000 * torch.randn(WIDTH)
        self.gap = gap

    def forward(self, ids: Tensor) -> Tensor:
        embedded = self.embedding(ids)[:, 0]
        h = self.direction.to(embedded.dtype).expand_as(embedded)
        return self.output(h)[:, 0] - (embedded * ((1 + self.gap) * h + self.gap * torch.sin(h))).sum(dim=1)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_bounds_of_rounding_cost_little(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 a record that is clipped still weighs nearly C."""
    force(monkeypatch, strategy)
    for name in ("tied", "linear over positions", "conv2d", "mlp"):
        module, batch = CASES[name].module().float(), CASES[name].batch(1)
        batch = (batch[0].float() if batch[0].is_floating_point() else batch[0], batch[1])
        parameters = {each: p.detach().double() for each, p in module.named_parameters()}
        weight = float(flat(engine(module, "flat", 1e-3).private_sum(parameters, Tensors(*batch))).norm())
        assert 0.998 <= weight / 1e-3 <= 1 + 1e-6


# --- Any architecture ---


@st.composite
def architectures(draw: st.DrawFn) -> tuple[nn.Module, Batch]:
    """Stacks of layers over tokens or vectors, some of them shared, with batches of any size."""
    width, length, n = draw(st.integers(1, 6)), draw(st.integers(1, 5)), draw(st.integers(1, 6))
    torch.manual_seed(draw(st.integers(0, 2**31)))
    tokens = draw(st.booleans())
    layers: list[nn.Module] = [nn.Embedding(TOKENS, width)] if tokens else []
    shared = nn.Linear(width, width)
    kinds = st.sampled_from(["linear", "shared", "layer", "rms", "tanh", "conv", "positions", "free"])
    for kind in draw(st.lists(kinds, max_size=5)):
        layers.append(
            {
                "linear": lambda: nn.Linear(width, width, bias=draw(st.booleans())),
                "shared": lambda: shared,
                "layer": lambda: nn.LayerNorm(width),
                "rms": lambda: nn.RMSNorm(width),
                "tanh": nn.Tanh,
                "conv": lambda: nn.Conv1d(length, length, 1 + 2 * (width > 2), padding=int(width > 2)),
                "positions": lambda: Positions(length, width),
                "free": lambda: Scale(width),
            }[kind]()
        )
    output = nn.Linear(width, TOKENS, bias=draw(st.booleans()))
    if tokens and draw(st.booleans()):
        output.weight = layers[0].weight  # type: ignore[assignment]
    module = nn.Sequential(*layers, output).double()
    for parameter in module.parameters():
        parameter.data.normal_(0.0, 0.7)
    x = torch.randint(0, TOKENS, (n, length)) if tokens else torch.randn(n, length, width, dtype=torch.float64)
    return module, (x, torch.randint(0, TOKENS, (n, length)))


@settings(max_examples=40)
@given(architectures(), st.sampled_from(["flat", "automatic", "per_layer"]), st.sampled_from([0.01, 1.0, 100.0]))
def test_random_architectures(made: tuple[nn.Module, Batch], kind: str, C: float) -> None:
    module, batch = made
    wanted = one_at_a_time(module, batch, kind, C)
    parameters = parameters_of(module)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accumulators, "NORM_FLOOR", 0.0)  # it shortens gradients that cancel over positions
        assert_close(engine(module, kind, C).private_sum(parameters, Tensors(*batch)), wanted)


def test_how_others_are_bounded_does_not_depend_on_one_record_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients that cancel over positions: the two ways to a norm bound them differently, so that a batch must not go
    from one way to the other because a record came."""
    for name, value in {"FEW_BYTES": 2**20, "LARGER": 0}.items():  # 64 of these records' bytes
        monkeypatch.setattr(methods, name, value)
    positions, width = 40, 64
    torch.manual_seed(0)
    module = nn.Linear(width, width, bias=False)
    x = torch.ones(1, positions, width) + 1e-3 * torch.randn(1, positions, width)
    weights = 100 * torch.randn(1, 1, width) * torch.tensor([1.0, -1.0]).repeat(positions // 2)[None, :, None]

    def of(model: nn.Module, batch: Any) -> Tensor:
        return (model(batch[0]) * weights).sum(dim=(1, 2))

    clipped: Bookkeeping[Any] = Bookkeeping(module, of, rows=96, kind="flat", max_grad_norm=1.0)
    parameters = {"weight": torch.zeros(width, width, dtype=torch.float64)}
    one, two = (clipped.private_sum(parameters, Tensors(x.expand(n, -1, -1)))["weight"] for n in (64, 65))
    assert float((one - two).norm()) <= 1 + 1e-6


def test_more_positions_than_are_paid_for_are_refused() -> None:
    """What sums may round is bounded by them. Uses of one parameter count together, rows and formed gradients too.

    Claim: the positions that the slack is computed for are those that are summed
    Now: more of them end the attempt
    """

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.layer(x))  # type: ignore[no-any-return]

    batch = Tensors(torch.randn(5, 3, WIDTH).double())

    def of(model: nn.Module, held: Any) -> Tensor:
        return model(held[0]).square().sum(dim=(1, 2))  # type: ignore[no-any-return]

    def asked(positions: int) -> dict[str, Tensor]:
        module = Twice().double()
        parameters = parameters_of(module)
        made: Bookkeeping[Any] = Bookkeeping(
            module, of, rows=12, kind="flat", max_grad_norm=1.0, dtype=torch.float64, positions=positions
        )
        return made.private_sum(parameters, batch)

    assert torch.isfinite(asked(6)["layer.weight"]).all()
    with pytest.raises(PrivacyError, match="at 6 positions, but only 5 are paid for"):
        asked(5)
