"""What each operation of a graph becomes in ONNX, by hand (scrimp.onnx_graph). One without a form is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from scrimp.onnx_graph import END, TYPES, Call, Form

# --- Number by number ---


def _one(operator: str, **attributes: Any) -> Form:
    return lambda call: call.add(operator, *call.same("self"), **attributes)


def _rounded(operator: str) -> Form:
    """Of whole numbers the number itself."""
    return lambda call: call.add(operator if call.floats else "Identity", *call.same("self"))


def _two(operator: str, other: str = "other") -> Form:
    return lambda call: call.add(operator, *call.same("self", other))


def _sum(operator: str, *, turned: bool = False) -> Form:
    """self ± alpha · other; `turned`: other − alpha · self."""

    def form(call: Call) -> str:
        first, second = call.same("self", "other")
        if turned:
            first, second = second, first
        alpha = call.argument("alpha", 1)
        return call.add(operator, first, second if alpha == 1 else call.add("Mul", second, call.number(alpha)))

    return form


def _compared(operator: str, *, negated: bool = False) -> Form:
    def form(call: Call) -> str:
        kinds = [call.kind_of(name) for name in ("self", "other")]
        kind = next(kind for kind in (np.float32, np.int64, np.int32, np.bool_) if kind in kinds)
        kind = np.int32 if kind is np.bool_ else kind
        result = call.add(operator, call.tensor("self", kind), call.tensor("other", kind))
        return call.add("Not", result) if negated else result

    return form


def _logical(operator: str, *, bits: bool = False) -> Form:
    def form(call: Call) -> str:
        if bits and call.kind is not np.bool_:
            raise call.unfit("bits of whole numbers have no ONNX form here")
        names = ("self",) if operator == "Not" else ("self", "other")
        return call.add(operator, *(call.tensor(name, np.bool_) for name in names))

    return form


def _of(function: Callable[[Call, str], str]) -> Form:
    """A function of one input."""
    return lambda call: function(call, *call.same("self"))


def _times(call: Call, x: str, factor: float) -> str:
    return call.add("Mul", x, call.number(factor))


def _gelu(call: Call, x: str) -> str:
    if call.argument("approximate", "none") == "tanh":
        cubed = _times(call, call.add("Mul", x, call.add("Mul", x, x)), 0.044715)
        inner = call.add("Tanh", _times(call, call.add("Add", x, cubed), math.sqrt(2 / math.pi)))
    else:
        inner = call.add("Erf", _times(call, x, math.sqrt(0.5)))
    return call.add("Mul", _times(call, x, 0.5), call.add("Add", inner, call.number(1.0)))


def _softplus(call: Call, x: str) -> str:
    beta = call.argument("beta", 1.0)
    return x if not beta else _times(call, call.add("Softplus", _times(call, x, beta)), 1 / beta)


def _elu(call: Call, x: str) -> str:
    if call.argument("scale", 1) != 1 or call.argument("input_scale", 1) != 1:
        raise call.unfit("its scales have no ONNX form here")
    return call.add("Elu", x, alpha=float(call.argument("alpha", 1.0)))


def _no_nan(call: Call, x: str) -> str:
    if not call.floats:
        return x
    ends = np.finfo(np.float32)
    high, low = call.argument("posinf", float(ends.max)), call.argument("neginf", float(ends.min))
    x = call.add("Where", call.add("IsNaN", x), call.number(call.argument("nan", 0.0)), x)
    x = call.add("Where", call.add("IsInf", x, detect_negative=0), call.number(high), x)
    return call.add("Where", call.add("IsInf", x, detect_positive=0), call.number(low), x)


def _clipped(low_name: str, high_name: str) -> Form:
    def form(call: Call) -> str:
        ends = [call.tensor(name, call.kind) if call.has(name) else "" for name in (low_name, high_name)]
        (x,) = call.same("self")
        for operator, end in zip(("Max", "Min"), ends, strict=True):
            x = call.add(operator, x, end) if end else x
        return x

    return form


def _clip(floor: float, ceiling: float, names: tuple[str, str] = ("", "")) -> Form:
    def form(call: Call) -> str:
        low, high = call.argument(names[0], floor), call.argument(names[1], ceiling)
        return call.add("Clip", *call.same("self"), call.number(low), call.number(high))

    return form


def _where(call: Call) -> str:
    return call.add("Where", call.tensor("condition", np.bool_), *call.same("self", "other"))


def _filled(call: Call) -> str:
    return call.add("Where", call.tensor("mask", np.bool_), *call.same("value", "self"))


def _lerp(call: Call) -> str:
    start, end, weight = call.same("self", "end", "weight")
    return call.add("Add", start, call.add("Mul", weight, call.add("Sub", end, start)))


def _added(operator: str) -> Form:
    """self + value · (tensor1 · or / tensor2)."""

    def form(call: Call) -> str:
        one, two, three = call.same("self", "tensor1", "tensor2")
        return call.add("Add", one, _times(call, call.add(operator, two, three), call.argument("value", 1)))

    return form


def _prelu(call: Call) -> str:
    x, weight = call.same("self", "weight")
    channels, dims = call.sizes("weight"), len(call.sizes("self"))
    if channels != [1] and dims > 2:
        weight = call.add("Reshape", weight, call.program.shape([*channels, *[1] * (dims - 2)]))
    return call.add("PRelu", x, weight)


def _divided(mode: str) -> Form:
    """By a positive number, rounded down or towards 0; or what is left."""

    def form(call: Call) -> str:
        x, other = call.same("self", "other")
        rounding = call.argument("rounding_mode") if mode == "asked" else mode
        if rounding is None:
            return call.add("Div", x, other)
        if rounding == "rest of trunc":
            return call.add("Mod", x, other, fmod=1)
        if not call.floats:
            remainder = call.add("Mod", x, other, fmod=int(rounding == "trunc"))
            return remainder if rounding == "rest" else call.add("Div", call.add("Sub", x, remainder), other)
        share = call.add("Div", x, other)
        share = call.add("Floor", share) if rounding in ("floor", "rest") else _trunc(call, share)
        return call.add("Sub", x, call.add("Mul", share, other)) if rounding == "rest" else share

    return form


def _trunc(call: Call, x: str) -> str:
    return call.add("Mul", call.add("Sign", x), call.add("Floor", call.add("Abs", x))) if call.floats else x


# --- Along dimensions ---


def _along(operator: str) -> Form:
    return lambda call: call.add(operator, *call.same("self"), axis=call.dims()[0])


def _running_sum(call: Call) -> str:
    return call.add("CumSum", *call.same("self"), call.number(call.dims()[0], np.int64))


def _gated(call: Call) -> str:
    (at,) = call.dims(-1)
    half = call.sizes("self")[at] // 2
    (x,) = call.same("self")
    value, gate = (_sliced(call, x, at, start, start + half) for start in (0, half))
    return call.add("Mul", value, call.add("Sigmoid", gate))


def _sliced(call: Call, x: str, at: int, start: int, end: int, step: int = 1) -> str:
    return call.add("Slice", x, *(call.number([one], np.int64) for one in (start, end, at, step)))


def _flipped(call: Call) -> str:
    (x,) = call.same("self")
    for at in call.dims(name="dims"):
        x = _sliced(call, x, at, -1, -END, -1)
    return x


def _rolled(call: Call) -> str:
    if not call.argument("dims"):
        raise call.unfit("over all dimensions at once it has no ONNX form here")
    (x,) = call.same("self")
    shifts = call.argument("shifts")
    for at, shift in zip(call.dims(name="dims"), shifts, strict=True):
        size = call.sizes("self")[at]
        if shift % size:
            cut = size - shift % size
            x = call.add("Concat", _sliced(call, x, at, cut, END), _sliced(call, x, at, 0, cut), axis=at)
    return x


def _reduced(operator: str, kind: Any = None) -> Form:
    """`kind`: what is computed in, if it is not the result's."""

    def form(call: Call) -> str:
        x = call.tensor("self", kind or call.kind)
        reduced = _reduce(call, operator, x)
        return call.cast(reduced, kind or call.kind, call.kind)

    return form


def _reduce(call: Call, operator: str, x: str, *, keepdim: bool | None = None) -> str:
    keepdims = int(call.argument("keepdim", False) if keepdim is None else keepdim)
    dims = sorted(call.dims())
    if operator == "ReduceSum":  # its dimensions are an input since opset 13
        return call.add(operator, x, call.number(dims, np.int64), keepdims=keepdims)
    return call.add(operator, x, axes=dims, keepdims=keepdims)


def _extreme(operator: str, place: str) -> Form:
    def form(call: Call) -> list[str]:
        (x,) = call.same("self")
        (at,), keepdims = call.dims(), int(call.argument("keepdim", False))
        return [_reduce(call, operator, x), call.add(place, x, axis=at, keepdims=keepdims)]

    return form


def _place(operator: str) -> Form:
    def form(call: Call) -> str:
        keepdims = int(call.argument("keepdim", False))
        return call.add(operator, call.tensor("self"), axis=call.dims()[0], keepdims=keepdims)

    return form


def _spread(*, rooted: bool) -> Form:
    def form(call: Call) -> str:
        (x,) = call.same("self")
        count = math.prod(call.sizes("self")[at] for at in call.dims())
        centred = call.add("Sub", x, _reduce(call, "ReduceMean", x, keepdim=True))
        summed = _reduce(call, "ReduceSum", call.add("Mul", centred, centred))
        spread = _times(call, summed, 1 / max(1e-38, count - call.argument("correction", 1)))
        return call.add("Sqrt", spread) if rooted else spread

    return form


def _norm(name: str) -> Form:
    def form(call: Call) -> str:
        order, (x,) = float(call.argument(name, 2)), call.same("self")
        if order in (1.0, 2.0):
            return _reduce(call, f"ReduceL{order:.0f}", x)
        size = call.add("Abs", x)
        if math.isinf(order):
            return _reduce(call, "ReduceMax" if order > 0 else "ReduceMin", size)
        if order == 0:
            raise call.unfit("a count of numbers that are not 0 has no ONNX form here")
        summed = _reduce(call, "ReduceSum", call.add("Pow", size, call.number(order)))
        return call.add("Pow", summed, call.number(1 / order))

    return form


# --- Sizes and places ---


def _reshaped(call: Call) -> str:
    return call.reshaped(*call.same("self"))


def _selected(call: Call) -> str:
    return call.add("Gather", call.tensor("self"), call.number(call.argument("index"), np.int64), axis=call.dims()[0])


def _cut(call: Call) -> str:
    end = call.argument("end", END)
    end = END if isinstance(end, Mapping) else end
    step = call.argument("step", 1)
    return _sliced(call, call.tensor("self"), call.dims(0)[0], call.argument("start", 0), end, step)


def _permuted(call: Call) -> str:
    return call.add("Transpose", call.tensor("self"), perm=call.dims(name="dims"))


def _turned(call: Call) -> str:
    order = list(range(len(call.sizes("self"))))
    if "dim0" in call.node["arguments"]:
        one, two = call.dims(name="dim0")[0], call.dims(name="dim1")[0]
    else:
        one, two = 0, len(order) - 1
    order[one], order[two] = order[two], order[one]
    return call.add("Transpose", call.tensor("self"), perm=order)


def _expanded(call: Call) -> str:
    sizes = call.sizes("self")
    padded = [1] * (len(call.result) - len(sizes)) + sizes
    wanted = [1 if isinstance(one, Mapping) else size for one, size in zip(padded, call.result, strict=True)]
    return call.add("Expand", call.tensor("self"), call.program.counted(wanted))


def _repeated(call: Call) -> str:
    repeats, sizes = call.argument("repeats"), call.sizes("self")
    wide = [1] * (len(repeats) - len(sizes)) + sizes
    x = call.add("Reshape", call.tensor("self"), call.program.shape(wide))
    return call.add("Tile", x, call.program.counted(repeats))


def _joined(*, stacked: bool) -> Form:
    def form(call: Call) -> str:
        names = [one["value"] for one in call.argument("tensors")]
        at = call.argument("dim", 0) % len(call.result)
        parts = []
        for name in names:
            part = call.cast(call.program.named(name), call.program.kind_of(name), call.kind)
            if stacked:
                part = call.add("Unsqueeze", part, call.number([at], np.int64))
            parts.append(part)
        return call.add("Concat", *parts, axis=at)

    return form


def _apart(call: Call) -> list[str]:
    x, (at,) = call.tensor("self"), call.dims(0)
    parts, start = [], 0
    for name in call.node["results"]:
        size = call.program.sizes(name)[at]
        parts.append(_sliced(call, x, at, start, start + size))
        start += size
    return parts


def _unbound(call: Call) -> list[str]:
    x, (at,) = call.tensor("self"), call.dims(0)
    places = range(len(call.node["results"]))
    return [call.add("Gather", x, call.number(place, np.int64), axis=at) for place in places]


def _made(value: float | None) -> Form:
    """A tensor of one number."""

    def form(call: Call) -> str:
        number = call.argument("fill_value") if value is None else value
        like = "size" not in call.node["arguments"]
        sizes = call.add("Shape", call.tensor("self")) if like else call.program.counted(call.result)
        return call.add("ConstantOfShape", sizes, value=call.program.nodes.tensor([number], call.kind))

    return form


def _counting(call: Call) -> str:
    start, step = call.argument("start", 0), call.argument("step", 1)
    return call.number(np.arange(start, call.argument("end"), step))


def _padded(call: Call) -> str:
    mode = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}.get(call.argument("mode", "constant"))
    if mode is None:
        raise call.unfit("this mode has no ONNX form here")
    pads, dims = call.argument("pad"), len(call.sizes("self"))
    begins, ends = [0] * dims, [0] * dims
    for back, (begin, end) in enumerate(zip(pads[::2], pads[1::2], strict=True), start=1):
        begins[dims - back], ends[dims - back] = begin, end
    places = call.number([*begins, *ends], np.int64)
    return call.add("Pad", *call.same("self"), places, call.number(call.argument("value", 0)), mode=mode)


# --- Layers ---


def _linear(call: Call) -> str:
    weight = call.add("Transpose", call.tensor("weight"), perm=[1, 0])
    x = call.add("MatMul", call.tensor("input"), weight)
    return call.add("Add", x, call.tensor("bias")) if call.has("bias") else x


def _each(value: Any, places: int) -> list[int]:
    numbers = list(value) if isinstance(value, Sequence) else [value]
    return numbers * places if len(numbers) == 1 else numbers


def _window(call: Call, places: int) -> dict[str, list[int]]:
    padding = _each(call.argument("padding", 0), places)
    return {"pads": padding * 2, "dilations": _each(call.argument("dilation", 1), places)}


def _convolved(operator: str) -> Form:
    def form(call: Call) -> str:
        places = len(call.sizes("weight")) - 2
        attributes = _window(call, places) | {"strides": _each(call.argument("stride", 1), places)}
        if operator == "ConvTranspose":
            attributes["output_padding"] = _each(call.argument("output_padding", 0), places)
        names = ("input", "weight", "bias") if call.has("bias") else ("input", "weight")
        return call.add(operator, *map(call.tensor, names), group=call.argument("groups", 1), **attributes)

    return form


def _pooled(operator: str, places: int) -> Form:
    def form(call: Call) -> str:
        kernel = _each(call.argument("kernel_size"), places)
        if call.argument("ceil_mode", False) or call.has("divisor_override"):
            raise call.unfit("ceil_mode and divisor_override have no ONNX form here")
        attributes: dict[str, Any] = _window(call, places) | {
            "strides": _each(call.argument("stride") or kernel, places)
        }
        if operator == "AveragePool":
            attributes["count_include_pad"] = int(call.argument("count_include_pad", True))
            del attributes["dilations"]
        return call.add(operator, call.tensor("self"), kernel_shape=kernel, **attributes)

    return form


def _pooled_to(operator: str) -> Form:
    """To so many places: windows of one size, where they divide the places."""

    def form(call: Call) -> str:
        kernel = []
        for size, wanted in zip(call.sizes("self")[2:], call.result[2:], strict=True):
            if size % wanted:
                raise call.unfit(f"{size} places in {wanted} windows of one size do not fit: it has no ONNX form here")
            kernel.append(size // wanted)
        return call.add(operator, call.tensor("self"), kernel_shape=kernel, strides=kernel)

    return form


def _scaled(mode: str) -> Form:
    def form(call: Call) -> str:
        sizes, wanted = call.sizes("input")[2:], call.result[2:]
        factors = call.argument("scale_factors") or [target / size for size, target in zip(sizes, wanted, strict=True)]
        corners = bool(call.argument("align_corners", False))
        coordinates = "asymmetric" if mode == "nearest" else "align_corners" if corners else "half_pixel"
        attributes = {"nearest_mode": "floor"} if mode == "nearest" else {}
        scales = call.number([1.0, 1.0, *map(float, factors)], np.float32)
        names = (call.tensor("input"), "", scales)
        return call.add("Resize", *names, mode=mode, coordinate_transformation_mode=coordinates, **attributes)

    return form


def _shuffled(call: Call) -> str:
    _require_images(call)
    blocks = call.argument("upscale_factor")
    return call.add("DepthToSpace", call.tensor("self"), blocksize=blocks, mode="CRD")


def _unshuffled(call: Call) -> str:
    _require_images(call)
    by, (_, channels, high, wide) = call.argument("downscale_factor"), call.sizes("self")
    sizes = [-1, channels, high // by, by, wide // by, by]
    x = call.add("Reshape", call.tensor("self"), call.number(sizes, np.int64))
    return call.reshaped(call.add("Transpose", x, perm=[0, 1, 3, 5, 2, 4]))


def _require_images(call: Call) -> None:
    if len(call.sizes("self")) != 4:
        raise call.unfit("of other than images it has no ONNX form here")


def _layer_norm(call: Call) -> str:
    shape = call.argument("normalized_shape")
    scale = call.tensor("weight") if call.has("weight") else call.number(np.ones(shape))
    bias = (call.tensor("bias"),) if call.has("bias") else ()
    eps = call.argument("eps", 1e-5)
    return call.add("LayerNormalization", call.tensor("input"), scale, *bias, axis=-len(shape), epsilon=eps)


def _rms_norm(call: Call) -> str:
    x, dims = call.tensor("input"), len(call.argument("normalized_shape"))
    mean = call.add("ReduceMean", call.add("Mul", x, x), axes=list(range(-dims, 0)), keepdims=1)
    eps = call.argument("eps", float(np.finfo(np.float32).eps))
    x = call.add("Div", x, call.add("Sqrt", call.add("Add", mean, call.number(eps))))
    return call.add("Mul", x, call.tensor("weight")) if call.has("weight") else x


def _group_norm(call: Call) -> str:
    groups, sizes = call.argument("num_groups"), call.sizes("input")
    x = call.add("Reshape", call.tensor("input"), call.number([-1, groups, math.prod(sizes[1:]) // groups], np.int64))
    plain = (call.number(np.ones(groups)), call.number(np.zeros(groups)))
    x = call.add("InstanceNormalization", x, *plain, epsilon=call.argument("eps", 1e-5))
    return _affine(call, call.reshaped(x), sizes)


def _affine(call: Call, x: str, sizes: Sequence[Any]) -> str:
    """A factor and a summand for each channel."""
    for operator, name in (("Mul", "weight"), ("Add", "bias")):
        x = call.add(operator, x, _channels(call, name, sizes)) if call.has(name) else x
    return x


def _channels(call: Call, name: str, sizes: Sequence[Any]) -> str:
    return call.add("Reshape", call.tensor(name), call.number([sizes[1], *[1] * (len(sizes) - 2)], np.int64))


def _frozen_norm(call: Call) -> list[str]:
    sizes = call.sizes("input")
    mean, spread = (_channels(call, f"running_{name}", sizes) for name in ("mean", "var"))
    root = call.add("Sqrt", call.add("Add", spread, call.number(call.argument("eps"))))
    return [_affine(call, call.add("Div", call.add("Sub", call.tensor("input"), mean), root), sizes)]


def _within(call: Call, ids: str, kind: Any, floor: int, size: int) -> str:
    return call.add("Clip", call.cast(ids, kind, np.int64), *(call.number(end, np.int64) for end in (floor, size - 1)))


def _embedded(call: Call) -> str:
    rows = call.sizes("weight")[0]
    ids = _within(call, call.tensor("indices"), call.kind_of("indices"), 0, rows)
    return call.add("Gather", call.tensor("weight"), ids, axis=0)


def _gathered(call: Call) -> str:
    (at,) = call.dims()
    ids = _within(call, call.tensor("index"), call.kind_of("index"), 0, call.sizes("self")[at])
    return call.add("GatherElements", call.tensor("self"), ids, axis=at)


def _chosen(call: Call) -> str:
    return call.add("Gather", call.tensor("self"), call.tensor("index", np.int64), axis=call.dims()[0])


def _indexed(call: Call) -> str:
    at, name = next((at, one["value"]) for at, one in enumerate(call.argument("indices")) if one is not None)
    size = call.sizes("self")[at]
    ids = _within(call, call.program.named(name), call.program.kind_of(name), -size, size)
    return call.add("Gather", call.tensor("self"), ids, axis=at)


def _product(first: str, second: str) -> Form:
    return lambda call: call.add("MatMul", *call.same(first, second))


def _added_product(call: Call) -> str:
    names = ("mat1", "mat2") if call.has("mat1") else ("batch1", "batch2")
    product = _times(call, call.add("MatMul", *call.same(*names)), call.argument("alpha", 1))
    (x,) = call.same("self")
    return call.add("Add", _times(call, x, call.argument("beta", 1)), product)


def _attention(call: Call) -> str:
    query, key, value = call.same("query", "key", "value")
    sizes = call.sizes("key")
    order = [*range(len(sizes) - 2), len(sizes) - 1, len(sizes) - 2]
    scale = call.argument("scale", call.sizes("query")[-1] ** -0.5)
    scores = _times(call, call.add("MatMul", query, call.add("Transpose", key, perm=order)), scale)
    mask = None
    if call.argument("is_causal", False):
        mask = call.number(np.tril(np.ones((call.sizes("query")[-2], sizes[-2]), dtype=bool)), np.bool_)
    elif call.has("attn_mask"):
        mask = call.tensor("attn_mask")
        if call.kind_of("attn_mask") is not np.bool_:
            scores, mask = call.add("Add", scores, mask), None
    if mask is not None:
        scores = call.add("Where", mask, scores, call.number(-np.inf))
    return call.add("MatMul", call.add("Softmax", scores, axis=-1), value)


def _weight_norm(call: Call) -> list[str]:
    v, g = call.tensor("v"), call.tensor("g")
    dims = [at for at in range(len(call.sizes("v"))) if at != call.argument("dim", 0) % len(call.sizes("v"))]
    return [call.add("Mul", v, call.add("Div", g, call.add("ReduceL2", v, axes=dims, keepdims=1)))]


def _forms(text: str, form: Form) -> dict[str, Form]:
    return {name if "." in name else f"{name}.default": form for name in text.split()}


def _named(text: str, make: Callable[[str], Form]) -> dict[str, Form]:
    """Pairs of torch's and ONNX's name, as `relu=Relu`."""
    pairs = (pair.partition("=") for pair in text.split())
    return {name if "." in name else f"{name}.default": make(operator) for name, _, operator in pairs}


FORMS: dict[str, Form] = {
    **_named(
        """abs=Abs atan=Atan cos=Cos cosh=Cosh erf=Erf exp=Exp log=Log neg=Neg reciprocal=Reciprocal relu=Relu
        sigmoid=Sigmoid sign=Sign sin=Sin sinh=Sinh sqrt=Sqrt tan=Tan tanh=Tanh""",
        _one,
    ),
    **_named("ceil=Ceil floor=Floor round=Round", _rounded),
    **_named("div.Tensor=Div div.Scalar=Div mul.Tensor=Mul mul.Scalar=Mul maximum=Max minimum=Min", _two),
    **_named("add.Tensor=Add add.Scalar=Add sub.Tensor=Sub sub.Scalar=Sub", _sum),
    **_forms("rsub.Tensor rsub.Scalar", _sum("Sub", turned=True)),
    **_named("eq.Scalar=Equal eq.Tensor=Equal ge.Scalar=GreaterOrEqual ge.Tensor=GreaterOrEqual", _compared),
    **_named("gt.Scalar=Greater gt.Tensor=Greater le.Scalar=LessOrEqual le.Tensor=LessOrEqual", _compared),
    **_named("lt.Scalar=Less lt.Tensor=Less", _compared),
    **_forms("ne.Scalar ne.Tensor", _compared("Equal", negated=True)),
    **_named("logical_and=And logical_not=Not logical_or=Or logical_xor=Xor", _logical),
    **_named(
        "bitwise_and.Tensor=And bitwise_not=Not bitwise_or.Tensor=Or bitwise_xor.Tensor=Xor",
        lambda operator: _logical(operator, bits=True),
    ),
    **_named(
        "isinf=IsInf isnan=IsNaN", lambda operator: lambda call: call.add(operator, call.tensor("self", np.float32))
    ),
    **_forms("expm1", _of(lambda call, x: call.add("Sub", call.add("Exp", x), call.number(1.0)))),
    **_forms("log1p", _of(lambda call, x: call.add("Log", call.add("Add", x, call.number(1.0))))),
    **_forms("log2", _of(lambda call, x: _times(call, call.add("Log", x), 1 / math.log(2)))),
    **_forms("rsqrt", _of(lambda call, x: call.add("Reciprocal", call.add("Sqrt", x)))),
    **_forms("square", _of(lambda call, x: call.add("Mul", x, x))),
    **_forms("trunc", _of(_trunc)),
    **_forms("silu", _of(lambda call, x: call.add("Mul", x, call.add("Sigmoid", x)))),
    **_forms("mish", _of(lambda call, x: call.add("Mul", x, call.add("Tanh", call.add("Softplus", x))))),
    **_forms("log_sigmoid", _of(lambda call, x: call.add("Neg", call.add("Softplus", call.add("Neg", x))))),
    **_forms("gelu", _of(_gelu)),
    **_forms("softplus", _of(_softplus)),
    **_forms("elu", _of(_elu)),
    **_forms("celu", _of(lambda call, x: call.add("Celu", x, alpha=float(call.argument("alpha", 1.0))))),
    **_forms("selu", _one("Selu")),
    **_forms(
        "leaky_relu",
        _of(lambda call, x: call.add("LeakyRelu", x, alpha=float(call.argument("negative_slope", 0.01)))),
    ),
    **_forms("hardsigmoid", _one("HardSigmoid", alpha=1 / 6, beta=0.5)),
    **_forms("hardswish", _one("HardSwish")),
    **_forms("relu6", _clip(0, 6)),
    **_forms("hardtanh", _clip(-1, 1, ("min_val", "max_val"))),
    **_forms("nan_to_num", _of(_no_nan)),
    **_forms("clamp clamp.Tensor clamp_max clamp_min", _clipped("min", "max")),
    **_forms("where.self where.ScalarSelf where.ScalarOther where.Scalar", _where),
    **_forms("masked_fill.Scalar masked_fill.Tensor", _filled),
    **_forms("lerp.Scalar lerp.Tensor", _lerp),
    **_forms("addcmul", _added("Mul")),
    **_forms("addcdiv", _added("Div")),
    **_forms("prelu", _prelu),
    **_forms("pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar", _two("Pow", "exponent")),
    **_forms("floor_divide", _divided("floor")),
    **_forms("div.Scalar_mode", _divided("asked")),
    **_forms("remainder.Scalar", _divided("rest")),
    **_forms("fmod.Scalar", _divided("rest of trunc")),
    **_forms("alias clone contiguous detach lift_fresh_copy _to_copy to.dtype", lambda call: call.same("self")[0]),
    **_forms("native_dropout", lambda call: call.tensor("input")),
    **_forms("zeros_like new_zeros zeros", _made(0)),
    **_forms("ones_like new_ones ones", _made(1)),
    **_forms("full_like new_full full", _made(None)),
    **_named("softmax.int=Softmax _softmax=Softmax log_softmax.int=LogSoftmax _log_softmax=LogSoftmax", _along),
    **_forms("cumsum", _running_sum),
    **_forms("glu", _gated),
    **_forms("flip", _flipped),
    **_forms("roll", _rolled),
    **_named("sum.dim_IntList=ReduceSum mean.dim=ReduceMean amax=ReduceMax amin=ReduceMin", _reduced),
    **_named("sum=ReduceSum mean=ReduceMean max=ReduceMax min=ReduceMin prod=ReduceProd", _reduced),
    **_named("prod.dim_int=ReduceProd logsumexp=ReduceLogSumExp", _reduced),
    **_named(
        "any.dim=ReduceMax all.dim=ReduceMin any=ReduceMax all=ReduceMin",
        lambda operator: (
            lambda call: call.add(
                "Cast",
                _reduce(call, operator, call.cast(call.tensor("self", np.bool_), np.bool_, np.int32)),
                to=TYPES[np.bool_],
            )
        ),
    ),
    **_forms("max.dim", _extreme("ReduceMax", "ArgMax")),
    **_forms("min.dim", _extreme("ReduceMin", "ArgMin")),
    **_named("argmax=ArgMax argmin=ArgMin", _place),
    **_forms("var.correction", _spread(rooted=False)),
    **_forms("std.correction", _spread(rooted=True)),
    **_forms("linalg_vector_norm", _norm("ord")),
    **_forms("norm.ScalarOpt_dim norm.Scalar", _norm("p")),
    **_forms("view reshape _unsafe_view flatten.using_ints unflatten.int squeeze squeeze.dim", _reshaped),
    **_forms("squeeze.dims unsqueeze", _reshaped),
    **_forms("select.int", _selected),
    **_forms("slice.Tensor", _cut),
    **_forms("permute", _permuted),
    **_forms("transpose.int t", _turned),
    **_forms("expand", _expanded),
    **_forms("repeat", _repeated),
    **_forms("cat", _joined(stacked=False)),
    **_forms("stack", _joined(stacked=True)),
    **_forms("split.Tensor split_with_sizes chunk", _apart),
    **_forms("unbind.int", _unbound),
    **_forms("arange arange.start arange.start_step", _counting),
    **_forms("scalar_tensor", lambda call: call.number(call.argument("s"))),
    **_forms("linear", _linear),
    **_forms("conv1d conv2d conv3d", _convolved("Conv")),
    **_forms("conv_transpose1d conv_transpose2d.input conv_transpose3d.input", _convolved("ConvTranspose")),
    **{f"max_pool{places}d.default": _pooled("MaxPool", places) for places in (1, 2, 3)},
    **{f"avg_pool{places}d.default": _pooled("AveragePool", places) for places in (1, 2, 3)},
    **_forms("adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d", _pooled_to("AveragePool")),
    **_forms("adaptive_max_pool1d adaptive_max_pool2d", _pooled_to("MaxPool")),
    **_forms("upsample_nearest1d.vec upsample_nearest2d.vec", _scaled("nearest")),
    **_forms("upsample_linear1d.vec upsample_bilinear2d.vec", _scaled("linear")),
    **_forms("pixel_shuffle", _shuffled),
    **_forms("pixel_unshuffle", _unshuffled),
    **_forms("layer_norm", _layer_norm),
    **_forms("rms_norm", _rms_norm),
    **_forms("group_norm", _group_norm),
    **_forms("_native_batch_norm_legit_no_training", _frozen_norm),
    **_forms("embedding", _embedded),
    **_forms("mm bmm", _product("self", "mat2")),
    **_forms("matmul", _product("self", "other")),
    **_forms("mv", _product("self", "vec")),
    **_forms("addmm baddbmm", _added_product),
    **_forms("scaled_dot_product_attention", _attention),
    **_forms("gather", _gathered),
    **_forms("index_select", _chosen),
    **_forms("index.Tensor", _indexed),
    **_forms("constant_pad_nd pad", _padded),
    **_forms("_weight_norm_interface", _weight_norm),
}
