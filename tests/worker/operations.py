"""Each operation of the closed list at odd shapes: do a row's bits move when the values in all other rows do?

`python -m tests.worker.operations` runs every case at every shape, and prints what torch uses of the processor, the
number of comparisons, and the cases whose kept rows moved. Set ATEN_CPU_CAPABILITY before.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from worker.attempt.child import be_deterministic
from worker.training.operations import Recorder

LARGE = 3e38
INTS = {torch.float64: torch.int64, torch.float32: torch.int32, torch.bfloat16: torch.int16}
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
ROWS = (7, 8, 33, 48, 96, 97)  # of a pass with one row there are no neighbours
WIDTHS = (1, 7, 33, 1001)  # numbers of an elementwise row; the last is shared out among threads
NUMBERS = 2048  # of a row, from which a case cuts what it needs
aten = torch.ops.aten
Function = Callable[[Tensor], list[Tensor]]


@dataclass(frozen=True)
class Sweep:
    """Over what a run goes."""

    rows: tuple[int, ...] = ROWS
    widths: tuple[int, ...] = WIDTHS
    threads: tuple[int, ...] = (1,)
    dtypes: tuple[torch.dtype, ...] = DTYPES
    alone: bool = True  # rows are kept one at a time, too


# All sizes on one thread, and sizes that threads share out on several.
WHOLE = (Sweep(), Sweep(rows=(33, 97), widths=(33, 1001), threads=(2, 3, 4)))
REPRESENTATIVE = Sweep(rows=(8, 97), widths=(7, 1001), threads=(3,), dtypes=(torch.float32,), alone=False)


def neighbours(shape: tuple[int, int], generator: torch.Generator) -> dict[str, Tensor]:
    """What stands in the other rows, by its name; the sequence of all these is one pass's."""
    numbers = torch.randn(shape, generator=generator)
    mixed = numbers.clone()
    mixed[0::4, ::3], mixed[1::4, ::2], mixed[2::4, ::5], mixed[3::4] = torch.nan, torch.inf, -torch.inf, LARGE
    return {
        "others": numbers,
        "three times as large": 3.0 * numbers,
        "large": LARGE * numbers.sign(),
        "subnormal": 1e-40 * numbers,
        "zeros": torch.zeros(shape),
        "NaN": torch.full(shape, torch.nan),
        "mixed": mixed,
    }


def moved_rows(function: Function, rows: int, dtype: torch.dtype, *, alone: bool = True) -> Iterator[str]:
    """The kinds of neighbours beside which a kept row's bits are others. `alone`: one row is kept, too."""
    numbers, first = NUMBERS, 0 if alone else 3
    generator = torch.Generator().manual_seed(rows)
    base = torch.randn(rows, numbers, generator=generator)
    known = function(base.to(dtype))
    for name, others in neighbours((rows, numbers), generator).items():
        for kept in ([0], [rows // 2], [rows - 1], [0, rows // 2, rows - 1])[first:]:
            others_beside = others.clone()
            others_beside[kept] = base[kept]
            found = function(others_beside.to(dtype))
            if not all(same(a[kept], b[kept]) for a, b in zip(known, found, strict=True)):
                yield name


def same(a: Tensor, b: Tensor) -> bool:
    """True if all bits are the same; one NaN is as good as another."""
    if a.is_floating_point():
        a, b = (torch.where(each.isnan(), torch.nan, each).contiguous().view(INTS[each.dtype]) for each in (a, b))
    return torch.equal(a, b)


# --- Cases: functions from rows (P, numbers) to tensors whose dimension 0 is rows ---


def cut(rows: Tensor, *shapes: tuple[int, ...]) -> list[Tensor]:
    """(P, *shape) each, from a row's numbers one after the other, and again from the first."""
    sizes = [int(torch.Size(shape).numel()) for shape in shapes]
    copies = -(-sum(sizes) // rows.shape[1])
    parts = rows.repeat(1, copies)[:, : sum(sizes)].split(sizes, dim=1)
    return [part.reshape(len(rows), *shape).contiguous() for part, shape in zip(parts, shapes, strict=True)]


def ids(rows: Tensor, below: int, *shape: int) -> Tensor:
    """Whole numbers (P, *shape) from the rows' numbers."""
    (numbers,) = cut(rows, shape)
    return (numbers.float().nan_to_num(0.0, 5.0, 3.0).clamp(-1e6, 1e6) * 977).abs().long() % below


def weight(*shape: int, dtype: torch.dtype, seed: int = 5) -> Tensor:
    numbers = torch.arange(torch.Size(shape).numel())
    return torch.sin(numbers * (1.0 + seed)).view(shape).to(dtype)


def both_ways(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """The result, and the gradients at the inputs from a gradient at the result that is cut from the first input."""
    leaves = [each.detach().requires_grad_() for each in inputs]
    made = function(*leaves)
    (upstream,) = cut(inputs[0].flatten(1).flip(1), tuple(made.shape[1:]))
    return [made.detach(), *torch.autograd.grad(made, leaves, upstream.to(made.dtype))]


def _elementwise(rows: Tensor) -> dict[str, Callable[[Tensor], Any]]:
    """Functions of one tensor x (P, m) and of another one, y."""
    (y,) = cut(rows.flip(1), (rows.shape[1],))
    bits, whole = rows.isfinite(), ids(rows, 1000, rows.shape[1])
    floats = {each: getattr(torch, each) for each in FLOATS}
    return {
        **floats,
        **{each: getattr(F, each) for each in ACTIVATIONS},
        "gelu, tanh": partial(F.gelu, approximate="tanh"),
        "add, sub": lambda x: (x + y) * 2.0 - (1.0 - y) + y - x.sub(3.0),
        "in place": lambda x: x.clone().add_(y, alpha=0.3).mul_(y).sub_(1.5).div_(y).clamp_(min=0.0).neg_(),
        "mul, div": lambda x: [x * y, x / y, 2.0 / x, torch.mul(x, torch.tensor(3.0)), torch.div(x, 3.0)],
        "out": lambda x: [
            torch.div(x, y, out=x.clone()),
            torch.maximum(x, y, out=x.clone()),
            torch.add(x, y, out=x.clone()),
        ],
        "nan_to_num, out": lambda x: torch.nan_to_num(x, out=x.clone()),
        "fused": lambda x: [torch.addcmul(x, x, y), torch.addcdiv(x, x, y), torch.lerp(x, y, 0.3)],
        "pairs": lambda x: [torch.maximum(x, y), torch.minimum(x, y), torch.copysign(x, y)],
        "powers": lambda x: [x.pow(3), x.pow(2), x.abs() ** 0.3, x.abs().pow(y), 2.0**x],
        "clamp": lambda x: [x.clamp(-1, 2), x.clamp_min(0.1), x.clamp_max(0.1), x.clamp(y - 1, y + 1)],
        "remainders": lambda x: [x.remainder(3.0), x.fmod(3.0), whole % 7],
        "comparisons": lambda x: [x < y, x <= y, x > y, x >= y, x == y, x != y],
        "with a number": lambda x: [x < 1, x <= 1, x > 1, x >= 1, x == 1, x != 1, x.isnan(), x.isinf()],
        "logical": lambda x: [bits.logical_and(x > 0), bits.logical_or(x > 0), bits.logical_not()],
        "bits": lambda x: [~bits, bits & (x > 0), bits | (x > 0), bits ^ (x > 0), whole & 5, whole << 2, whole >> 1],
        "whole": lambda x: [whole & (whole + 3), (whole - 500) * 3],
        "scalars": lambda x: [
            aten.add.Scalar(x, 2),
            aten.sub.Scalar(x, 2),
            aten.div.Scalar(x, 3),
            aten.mul.Scalar(x, 3),
        ],
        "where": lambda x: [torch.where(bits, x, y), torch.where(bits, x, 0.5), torch.where(bits, 0.5, x)],
        "masked": lambda x: [x.masked_fill(bits, 0.5), x.masked_fill(bits, torch.tensor(0.5))],
        "types": lambda x: [x.double(), x.float(), x.to(torch.bfloat16)],
    }


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FLOATS = _words(
    """abs ceil cos erf erfc exp exp2 expm1 floor log log1p log2 nan_to_num neg reciprocal round rsqrt sigmoid sign
    sin sqrt tan tanh trunc isnan square"""
)
ACTIVATIONS = _words(
    """elu gelu hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu relu6 silu softplus selu softsign
    tanhshrink"""
)
BACKWARD = ("sigmoid", "tanh", "exp", "log", "sqrt", "erf", *ACTIVATIONS, "gelu, tanh", "powers of x")


def elementwise(name: str, width: int) -> Function:
    def function(rows: Tensor) -> list[Tensor]:
        made = _elementwise(rows[:, :width])[name](rows[:, :width])
        return made if isinstance(made, list) else [made]

    return function


def elementwise_back(name: str, width: int) -> Function:
    def function(rows: Tensor) -> list[Tensor]:
        x = rows[:, :width]
        found = (lambda v: v**3) if name == "powers of x" else _elementwise(x.detach())[name]
        return both_ways(found, x)

    return function


def _within(width: int, dtype: torch.dtype) -> dict[str, Function]:
    """Reductions, norms and pools within a row; in the last dimension, and in one before it."""
    gain, shift = weight(width, dtype=dtype), weight(width, dtype=dtype, seed=6)

    def reductions(rows: Tensor) -> list[Tensor]:
        (x,) = cut(rows, (5, width))
        bits = x > 0.3
        ways = [torch.sum, torch.mean, torch.amax, torch.amin, torch.logsumexp, torch.argmax, torch.linalg.vector_norm]
        found = [way(x, dim=at) for way in ways for at in (1, 2)] + [
            x.var(dim=2, correction=0),
            x.sum(dim=(1, 2)),
            x.cumsum(dim=2),
        ]
        return [*found, x.max(dim=2)[0], bits.all(dim=2), bits.any(dim=1), x.double().square().sum(dim=2)]

    def columns(rows: Tensor) -> list[Tensor]:
        (x,) = cut(rows, (width,))
        x = x.T.contiguous()  # rows are the fast dimension
        stacked = torch.stack([x, 2 * x, x.square()])
        whole = [x.logsumexp(dim=0), x.sum(dim=0), x.argmax(dim=0), torch.isfinite(x).all(dim=0)]
        return [*whole, stacked.sum(dim=0).T, stacked.amax(dim=0).T]

    def softmax(rows: Tensor) -> list[Tensor]:
        (x,) = cut(rows, (3, width))
        out = torch.softmax(x, dim=2, out=torch.empty_like(x))
        ways: list[Callable[[Tensor], Tensor]] = [
            *(partial(each, dim=2) for each in (torch.softmax, torch.log_softmax)),
            partial(torch.softmax, dim=1),
        ]
        return [out, *(each for way in ways for each in both_ways(way, x))]

    def losses(rows: Tensor) -> list[Tensor]:
        x, labels = cut(rows, (width,))[0], ids(rows, width)
        return both_ways(lambda v: F.cross_entropy(v, labels, reduction="none"), x)

    def norms(rows: Tensor) -> list[Tensor]:
        (x,) = cut(rows, (5, width))
        (images,) = cut(rows, (6, 5, 7))
        layer = both_ways(lambda v: F.layer_norm(v, (width,), gain, shift), x)
        plain = both_ways(lambda v: F.layer_norm(v, (width,)), x)
        return [*layer, *plain, *both_ways(lambda v: F.group_norm(v, 3), images)]

    def pools(rows: Tensor) -> list[Tensor]:
        (x,) = cut(rows, (3, 9, 11))
        ways = [lambda v: F.avg_pool2d(v, 2), lambda v: F.max_pool2d(v, 3, 2)]
        sized = [F.interpolate(x, size=(5, 13), mode=mode) for mode in ("bilinear", "nearest")]
        return [*sized, *(each for way in ways for each in both_ways(way, x))]

    return {f.__name__: f for f in (reductions, columns, softmax, losses, norms, pools)}


def _products(width: int, dtype: torch.dtype) -> dict[str, Function]:
    """Products of rows with weights, and of a record's own matrices."""
    matrix, bias = weight(19, width, dtype=dtype), weight(19, dtype=dtype)

    def linear(rows: Tensor) -> list[Tensor]:
        one, many = cut(rows, (width,), (5, width))
        ways = [lambda v: F.linear(v, matrix, bias), lambda v: F.linear(v, matrix)]
        out = torch.mm(one, matrix.T, out=one.new_empty(len(one), 19))
        by_columns = [(matrix @ one.T).T, torch.mv(one, matrix[0])]
        return [out, *by_columns, *(each for way in ways for v in (one, many) for each in both_ways(way, v))]

    def batched(rows: Tensor) -> list[Tensor]:
        a, b, c = cut(rows, (5, width), (width, 6), (5, 6))
        wide = [each.double() for each in (a, b)]
        out = torch.bmm(a, b, out=a.new_empty(len(a), 5, 6))
        return [
            out,
            torch.baddbmm(c, a, b),
            torch.bmm(*wide),
            torch.bmm(wide[0], wide[0].mT),
            *both_ways(Tensor.bmm, a, b),
        ]

    def attention(rows: Tensor) -> list[Tensor]:
        q, k, v = cut(rows, *[(2, 6, 4)] * 3)
        there = ids(rows, 2, 6).bool()
        there[:, 0] = True
        mask = there[:, None, None, :].expand(len(q), 1, 6, 6)
        attend = F.scaled_dot_product_attention
        ways: list[Callable[..., Tensor]] = [
            attend,
            partial(attend, is_causal=True),
            partial(attend, attn_mask=mask),
        ]
        return [each for way in ways for each in both_ways(way, q, k, v)]

    def convolutions(rows: Tensor) -> list[Tensor]:
        images, long = cut(rows, (3, 7, 9), (3, 21))
        square, strip = weight(5, 3, 3, 3, dtype=dtype), weight(5, 3, 3, dtype=dtype)
        single = weight(6, 1, 3, 3, dtype=dtype)
        ways = [
            lambda v: F.conv2d(v, square, padding=1),
            lambda v: F.conv2d(v, square, stride=2),
            lambda v: F.conv2d(v, single, groups=3, dilation=2),
        ]
        return [
            *(each for way in ways for each in both_ways(way, images)),
            *both_ways(lambda v: F.conv1d(v, strip, padding=2), long),
        ]

    return {f.__name__: f for f in (linear, batched, attention, convolutions)}


def _gathers(width: int, dtype: torch.dtype) -> dict[str, Function]:
    """Copies and additions by ids."""
    table = weight(29, width, dtype=dtype)

    def tables(rows: Tensor) -> list[Tensor]:
        at = ids(rows, 29, 6)
        return [F.embedding(at, table), table[at], table.index_select(0, at[:, 0])]

    def within(rows: Tensor) -> list[Tensor]:
        (x,) = cut(rows, (9, width))
        at, everyone = ids(rows, 9), torch.arange(len(x))
        again = at[:, None, None].expand(-1, 4, width)
        added = torch.zeros_like(x).scatter_add(1, again, x[:, :4])
        ordered = torch.sort(ids(rows, 9, 11), dim=1, stable=True)
        return [added, *ordered, *both_ways(lambda v: v[everyone, at], x), *both_ways(lambda v: v.gather(1, again), x)]

    def apart(rows: Tensor) -> list[Tensor]:
        """Each record's rows of a table of its own, as `Rows.dense_onto` forms them."""
        (x,) = cut(rows, (6, width))
        at = ids(rows, 29, 6) + 29 * torch.arange(len(x))[:, None]
        total = torch.zeros(29 * len(x), width, dtype=dtype)
        total.index_add_(0, at.flatten(), x.flatten(0, 1))
        put = torch.zeros_like(total).index_put((at.flatten(),), x.flatten(0, 1), accumulate=True)
        return [total.view(len(x), 29, width), put.view(len(x), 29, width)]

    def places(rows: Tensor) -> list[Tensor]:
        """Numbers that are copied."""
        (x,) = cut(rows, (5, width))
        (square,) = cut(rows, (4, 4))
        halves = [*x.split(3, dim=1), *x.unbind(1), x.split([1, 4], dim=1)[1]]
        strided = x.as_strided((len(x), 3, width), (x.stride(0), width, 1))
        turned = [strided, x.flip(1), x.roll(1, dims=1), square.tril(), square.triu(), square.diagonal(dim1=1, dim2=2)]
        bits = x.view(INTS[dtype])
        filled = [x.new_full(x.shape, 2.0), x.new_ones(x.shape), torch.full_like(x, 3.0), torch.ones_like(x)]
        filled += [torch.empty_like(x).copy_(x), x.clone().fill_(2.0), x.clone().zero_()]
        joined = [
            torch.cat([x, x[:, :2]], dim=1),
            x[:, :1].squeeze(1),
            x[:, None].squeeze((1,)),
            x.unfold(1, 3, 1),
            F.pad(x, (1, 2)),
        ]
        ways = [lambda v: v[:, 1:4], lambda v: v.select(1, 2), lambda v: torch.stack([v, v], dim=1)]
        back = [each for way in ways for each in both_ways(way, x)]
        return [*halves, *turned, bits, *filled, *joined, *back]

    return {f.__name__: f for f in (tables, within, apart, places)}


def cases(sweep: Sweep, dtype: torch.dtype) -> dict[str, Function]:
    """All cases of a number type, by their names."""
    found: dict[str, Function] = {}
    for width in sweep.widths:
        found |= {f"{name}, {width}": elementwise(name, width) for name in _elementwise(torch.ones(1, 1))}
        found |= {f"{name} backward, {width}": elementwise_back(name, width) for name in BACKWARD}
        few = min(width, 257)
        for kind in (_within, _products, _gathers):
            found |= {f"{name}, {width}": function for name, function in kind(few, dtype).items()}
    return found


def moved(sweep: Sweep) -> tuple[list[str], int]:
    """What moved, by case, rows, threads, type and neighbours; and how many cases ran."""
    faults, count, before = [], 0, torch.get_num_threads()
    try:
        for dtype in sweep.dtypes:
            for name, function in cases(sweep, dtype).items():
                for threads in sweep.threads:
                    torch.set_num_threads(threads)
                    for rows in sweep.rows:
                        count += 1
                        where = f"{name}, {rows} rows, {threads} threads, {dtype}"
                        faults += [f"{where}: {kind}" for kind in moved_rows(function, rows, dtype, alone=sweep.alone)]
    finally:
        torch.set_num_threads(before)
    return faults, count


def names(sweep: Sweep) -> set[str]:
    """The operations that the cases run."""
    rows = torch.randn(8, NUMBERS)
    with Recorder() as recorder:
        for function in cases(sweep, torch.float32).values():
            function(rows)
    return recorder.names


if __name__ == "__main__":
    be_deterministic()
    runs = [moved(sweep) for sweep in WHOLE]
    report = {
        "capability": torch.backends.cpu.get_cpu_capability(),
        "cases": sum(count for _, count in runs),
        "moved": [fault for faults, _ in runs for fault in faults],
    }
    sys.stdout.write(json.dumps(report) + "\n")
