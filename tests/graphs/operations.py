"""One small program for each operation that has a rule: what it takes beside the records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from core.parts.graph_program import Kind, Node, Program, Records, Stored, Value
from core.parts.graph_rules import RULES
from worker.models.graph_module import KINDS, GraphModule

ROW = (2, 4, 4)  # of one record, unless a case has another
B = Records(records=1)


@dataclass(frozen=True)
class Case:
    """Arguments by name: "x" are the records, other texts name constants."""

    arguments: dict[str, Any] = field(default_factory=dict)
    row: tuple[int, ...] = ROW
    kind: Kind = "float32"
    constants: dict[str, Tensor] = field(default_factory=dict)


X = {"self": "x"}
DIM, DIMS = X | {"dim": 2}, X | {"dim": (1, 2)}
EYE = torch.arange(16.0).reshape(4, 4) / 8 - 1
ROWS = torch.tensor([2, 0, 1])


def conv(places: int, *, across: bool = False) -> Case:
    weight = torch.linspace(-1, 1, 4 * 3**places).reshape(2, 2, *(3,) * places)
    return Case(
        {"input": "x", "weight": "w", "bias": "b"}, (2, *(5,) * places), constants={"w": weight, "b": torch.ones(2)}
    )


def pool(places: int, **more: Any) -> Case:
    return Case(X | ({"kernel_size": (2,) * places} | more), (2, *(4,) * places))


SPECIAL: dict[str, Case] = {
    **{name: Case(X | {"other": 0.5}) for name in ("add.Scalar", "div.Scalar", "mul.Scalar", "sub.Scalar")},
    **{name: Case(X | {"other": 0.5}) for name in ("rsub.Scalar", "remainder.Scalar", "fmod.Scalar")},
    **{name: Case(X | {"other": 0.5}) for name in ("eq.Scalar", "ge.Scalar", "gt.Scalar", "le.Scalar", "lt.Scalar")},
    "ne.Scalar": Case(X | {"other": 0.5}),
    "floor_divide.default": Case(X | {"other": 2}, kind="int64"),
    "div.Scalar_mode": Case(X | {"other": 2, "rounding_mode": "floor"}, kind="int64"),
    **{name: Case(X | {"tensor1": "x", "tensor2": "x"}) for name in ("addcmul.default", "addcdiv.default")},
    **{f"bitwise_{name}.Tensor": Case(X | {"other": "x"}, kind="int64") for name in ("and", "or", "xor")},
    "bitwise_not.default": Case(X, kind="int64"),
    "clamp.default": Case(X | {"min": -1.0, "max": 1.0}),
    "clamp.Tensor": Case(X | {"min": "low"}, constants={"low": torch.zeros(4)}),
    "clamp_max.default": Case(X | {"max": 1.0}),
    "clamp_min.default": Case(X | {"min": 1.0}),
    "lerp.Scalar": Case(X | {"end": "x", "weight": 0.5}),
    "lerp.Tensor": Case(X | {"end": "x", "weight": "x"}),
    "masked_fill.Scalar": Case(X | {"mask": "m", "value": 1.0}, constants={"m": EYE > 0}),
    "masked_fill.Tensor": Case(X | {"mask": "m", "value": "v"}, constants={"m": EYE > 0, "v": torch.tensor(1.0)}),
    "where.self": Case({"condition": "m", "self": "x", "other": "x"}, constants={"m": EYE > 0}),
    "where.ScalarSelf": Case({"condition": "m", "self": 0.0, "other": "x"}, constants={"m": EYE > 0}),
    "where.ScalarOther": Case({"condition": "m", "self": "x", "other": 0.0}, constants={"m": EYE > 0}),
    "where.Scalar": Case({"condition": "x", "self": 1.0, "other": 0.0}, kind="bool"),
    "prelu.default": Case(X | {"weight": "w"}, constants={"w": torch.tensor([0.1, 0.2])}),
    "pow.Tensor_Scalar": Case(X | {"exponent": 3.0}),
    "pow.Tensor_Tensor": Case(X | {"exponent": "x"}),
    "pow.Scalar": Case({"self": 2.0, "exponent": "x"}),
    "_to_copy.default": Case(X | {"dtype": "int64"}),
    "to.dtype": Case(X | {"dtype": "int64"}),
    "full_like.default": Case(X | {"fill_value": 2.0}),
    **{name: Case(DIM) for name in ("softmax.int", "log_softmax.int", "cumsum.default", "cumprod.default")},
    **{f"{name}.default": Case(DIM | {"half_to_float": False}) for name in ("_softmax", "_log_softmax")},
    "glu.default": Case(X | {"dim": 1}),
    "flip.default": Case(X | {"dims": (2,)}),
    "roll.default": Case(X | {"shifts": (1,), "dims": (2,)}),
    **{name: Case(DIMS) for name in ("sum.dim_IntList", "mean.dim", "amax.default", "amin.default")},
    **{name: Case(DIMS) for name in ("logsumexp.default", "var.correction", "std.correction")},
    **{name: Case(DIM) for name in ("prod.dim_int", "max.dim", "min.dim", "argmax.default", "argmin.default")},
    **{name: Case(DIM) for name in ("any.dim", "all.dim")},
    "linalg_vector_norm.default": Case(X | {"ord": 2.0, "dim": (1, 2)}),
    "norm.ScalarOpt_dim": Case(X | {"p": 2.0, "dim": (1, 2)}),
    **{name: Case(X | {"size": (B, 8, 4)}) for name in ("view.default", "_unsafe_view.default")},
    "reshape.default": Case(X | {"shape": (B, 8, 4)}),
    "flatten.using_ints": Case(X | {"start_dim": 1}),
    "unflatten.int": Case(X | {"dim": 2, "sizes": (2, 2)}),
    "squeeze.dim": Case(X | {"dim": 1}, (1, 4)),
    "squeeze.dims": Case(X | {"dim": (1,)}, (1, 4)),
    "unsqueeze.default": Case(X | {"dim": 0}),
    "select.int": Case(X | {"dim": 2, "index": -1}),
    "slice.Tensor": Case(X | {"dim": 2, "start": 1, "end": 3}),
    "permute.default": Case(X | {"dims": (2, 0, 3, 1)}),
    "transpose.int": Case(X | {"dim0": 0, "dim1": 2}),
    "t.default": Case(X, (5,)),
    "native_dropout.default": Case({"input": "x", "p": 0.5, "train": False}),
    "expand.default": Case(X | {"size": (3, B, 2, 4, 4)}),
    "repeat.default": Case(X | {"repeats": (3, 1, 2, 1, 1)}),
    "cat.default": Case({"tensors": ("x", "x"), "dim": 1}),
    "stack.default": Case({"tensors": ("x", "x"), "dim": 0}),
    "split.Tensor": Case(X | {"split_size": 3, "dim": 2}),
    "split_with_sizes.default": Case(X | {"split_sizes": (1, 3), "dim": 2}),
    "chunk.default": Case(X | {"chunks": 2, "dim": 2}),
    "unbind.int": Case(X | {"dim": 1}),
    **{f"new_{name}.default": Case(X | {"size": (B, 3)}) for name in ("zeros", "ones")},
    "new_full.default": Case(X | {"size": (B, 3), "fill_value": 2.0}),
    "linear.default": Case({"input": "x", "weight": "w"}, constants={"w": EYE}),
    **{f"conv{places}d.default": conv(places) for places in (1, 2, 3)},
    "conv_transpose1d.default": conv(1),
    **{f"conv_transpose{places}d.input": conv(places) for places in (2, 3)},
    **{f"{kind}_pool{places}d.default": pool(places) for kind in ("max", "avg") for places in (1, 2, 3)},
    **{
        f"adaptive_avg_pool{places}d.default": Case(X | {"output_size": (1,) * places}, (2, *(4,) * places))
        for places in (1, 2, 3)
    },
    **{
        f"adaptive_max_pool{places}d.default": Case(X | {"output_size": (2,) * places}, (2, *(4,) * places))
        for places in (1, 2)
    },
    "upsample_nearest1d.vec": Case({"input": "x", "output_size": None, "scale_factors": (2.0,)}, (2, 4)),
    "upsample_linear1d.vec": Case(
        {"input": "x", "output_size": None, "align_corners": False, "scale_factors": (2.0,)}, (2, 4)
    ),
    "upsample_nearest2d.vec": Case({"input": "x", "output_size": None, "scale_factors": (2.0, 2.0)}),
    "upsample_bilinear2d.vec": Case(
        {"input": "x", "output_size": None, "align_corners": False, "scale_factors": (2.0, 2.0)}
    ),
    "pixel_shuffle.default": Case(X | {"upscale_factor": 2}, (4, 2, 2)),
    "pixel_unshuffle.default": Case(X | {"downscale_factor": 2}, (1, 4, 4)),
    "layer_norm.default": Case({"input": "x", "normalized_shape": (4,)}),
    "rms_norm.default": Case({"input": "x", "normalized_shape": (4,)}),
    "group_norm.default": Case({"input": "x", "num_groups": 2}),
    "_native_batch_norm_legit_no_training.default": Case(
        {
            "input": "x",
            "weight": None,
            "bias": None,
            "running_mean": "m",
            "running_var": "v",
            "momentum": 0.1,
            "eps": 1e-5,
        },
        constants={"m": torch.ones(2), "v": torch.ones(2)},
    ),
    "embedding.default": Case({"weight": "w", "indices": "x"}, (3,), "int64", {"w": EYE}),
    "mm.default": Case(X | {"mat2": "w"}, (4,), constants={"w": EYE}),
    "bmm.default": Case(X | {"mat2": "x"}, (4, 4)),
    "matmul.default": Case(X | {"other": "x"}),
    "mv.default": Case(X | {"vec": "w"}, (4,), constants={"w": EYE[0]}),
    "addmm.default": Case({"self": "b", "mat1": "x", "mat2": "w"}, (4,), constants={"w": EYE, "b": EYE[0]}),
    "baddbmm.default": Case({"self": "x", "batch1": "x", "batch2": "x"}, (4, 4)),
    "scaled_dot_product_attention.default": Case({"query": "x", "key": "x", "value": "x", "is_causal": True}),
    "gather.default": Case(X | {"dim": 1, "index": "x"}, (3,), "int64"),
    "index_select.default": Case(X | {"dim": 2, "index": "i"}, constants={"i": ROWS}),
    "index.Tensor": Case({"self": "w", "indices": ("x",)}, (3,), "int64", {"w": EYE}),
    "constant_pad_nd.default": Case(X | {"pad": (1, 0)}),
    "pad.default": Case(X | {"pad": (1, 0)}),
}
# Without a value of records they make constants, or they are refused of records: the rules' tests have them.
WITHOUT_RECORDS = {
    *("zeros.default", "ones.default", "full.default", "arange.default", "arange.start", "arange.start_step"),
    *("scalar_tensor.default", "_weight_norm_interface.default", "squeeze.default"),
    *("sum.default", "mean.default", "prod.default", "max.default", "min.default", "any.default", "all.default"),
    *("norm.Scalar", "var.default", "std.default"),
}


def case_of(operation: str) -> Case:
    """The operation's case: number by number with one input or two, where none is written down."""
    if operation in SPECIAL:
        return SPECIAL[operation]
    packet, overload = operation.split(".")
    named = [each.name for each in getattr(getattr(torch.ops.aten, packet), overload)._schema.arguments]
    return Case(X | ({"other": "x"} if "other" in named else {}))


@dataclass(frozen=True)
class Built:
    """The operation on a pass, by the interpreter and by torch itself with all records at once."""

    case: Case
    module: GraphModule
    whole: Callable[[Tensor], Tensor]


def built(operation: str) -> Built:
    """records → × a trained number → to the case's type → the operation, and its records brought to the front.

    What the file says of the results is what torch gives for passes of 2 and of 3 records.
    """
    case = case_of(operation)

    def native(x: Tensor) -> tuple[Tensor, ...]:
        given = {name: _given(each, x, case) for name, each in case.arguments.items()}
        packet, overload = operation.split(".")
        found = getattr(getattr(torch.ops.aten, packet), overload)(**given)
        return tuple(found) if isinstance(found, tuple | list) else (found,)

    two, three = (native(_typed(torch.ones(n, *case.row), case)) for n in (2, 3))
    results = [
        Value(dtype=_kind(one), sizes=tuple(map(_size, one.shape, other.shape)))
        for one, other in zip(two, three, strict=True)
    ]
    (front,) = [at for at, each in enumerate(results[0].sizes) if isinstance(each, Records)]
    order = [front, *(at for at in range(len(results[0].sizes)) if at != front)]
    constants = {"scale": torch.tensor(1.0), **case.constants}
    tensors = {
        name: Stored(name=name, dtype=_kind(each), sizes=tuple(each.shape), trained=name == "scale")
        for name, each in constants.items()
    }
    shape = (B, *case.row)
    values = {"records": Value(dtype="float32", sizes=shape), "scaled": Value(dtype="float32", sizes=shape)}
    values |= {"x": Value(dtype=case.kind, sizes=shape)} | {f"r{at}": each for at, each in enumerate(results)}
    values["front"] = Value(dtype=results[0].dtype, sizes=tuple(results[0].sizes[at] for at in order))
    nodes = [
        ("mul.Tensor", {"self": {"value": "records"}, "other": {"value": "scale"}}, ["scaled"]),
        ("_to_copy.default", {"self": {"value": "scaled"}, "dtype": {"dtype": case.kind}}, ["x"]),
        (operation, {n: _argument(each, constants) for n, each in case.arguments.items()}, list(values)[3:-1]),
        ("permute.default", {"self": {"value": "r0"}, "dims": order}, ["front"]),
    ]
    made = [Node.model_validate({"operation": o, "arguments": a, "results": r}) for o, a, r in nodes]
    program = Program(input="records", output="front", tensors=tensors, values=values, nodes=tuple(made))
    program.require_ordered()
    module = GraphModule(program, constants, torch.float32, "cpu")
    with torch.no_grad():
        next(module.parameters()).fill_(1.0)
    return Built(case, module, lambda x: native(_typed(x, case))[0].permute(order))


def _typed(x: Tensor, case: Case) -> Tensor:
    return x.to(KINDS[case.kind])


def _size(one: int, other: int) -> int | Records:
    return one if one == other else Records(records=other - one)


def _given(given: Any, x: Tensor, case: Case) -> Any:
    if isinstance(given, tuple):
        return [_given(each, x, case) for each in given]
    if isinstance(given, str):
        return x if given == "x" else case.constants.get(given, KINDS.get(given, given))
    return len(x) * given.records if isinstance(given, Records) else given


def _argument(given: Any, constants: dict[str, Tensor]) -> Any:
    if isinstance(given, tuple):
        return tuple(_argument(each, constants) for each in given)
    if given == "x" or (isinstance(given, str) and given in constants):
        return {"value": given}
    if isinstance(given, str) and given in KINDS:
        return {"dtype": given}
    return given


def _kind(tensor: Tensor) -> Kind:
    return next(name for name, each in KINDS.items() if each == tensor.dtype)  # type: ignore[return-value]


OPERATIONS = sorted(RULES.keys() - WITHOUT_RECORDS)
