"""Where the records are in every value of a graph, by a rule for each operation; what mixes them is refused by name.

Only operations with a rule are known: the list is closed. A value has its records along one dimension, of which a part
may be other sizes that were folded into it: `outer` · records · `inner`, in the order of memory. Values without records
come from parameters and constants alone.

These rules say whether a graph means the same for one record as for many. That no record sees another does not rest on
them: the worker runs the graph for each record alone (worker.models.graph_network).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from core.parts.graph_program import FLOATING, Node, Program, Records, Ref, Sizes, UnfitGraphError, largest, names_in


@dataclass(frozen=True)
class Place:
    """Where a value's records are: along `dim`, whose size is outer · records · inner."""

    dim: int
    outer: int = 1
    inner: int = 1


Places = dict[str, Place | None]
Rule = Callable[["Call"], "Place | None"]


@dataclass(frozen=True)
class Call:
    """One node and what is known of the values that it takes."""

    node: Node
    program: Program
    places: Places

    def argument(self, name: str, default: Any = None) -> Any:
        """An argument, or what torch takes where it is left out."""
        return self.node.arguments.get(name, default)

    def place(self, name: str) -> Place | None:
        """Of a tensor argument; None where there is none."""
        value = self.argument(name)
        return self.places[value.value] if isinstance(value, Ref) else None

    def sizes(self, name: str) -> Sizes:
        """Of a tensor argument."""
        return self.program.value(self.node.arguments[name].value).sizes  # type: ignore[union-attr]

    def floats(self, name: str) -> bool:
        """Whether a tensor argument has floating numbers."""
        return self.program.value(self.node.arguments[name].value).dtype in FLOATING  # type: ignore[union-attr]

    @property
    def tensors(self) -> list[tuple[str, Place | None, Sizes]]:
        """The values that it takes, by name, also those in lists."""
        tensors = []
        for argument in self.node.arguments.values():
            for one in argument if isinstance(argument, tuple) else (argument,):
                if isinstance(one, Ref):
                    tensors.append((one.value, self.places[one.value], self.program.value(one.value).sizes))
        return tensors

    @property
    def result(self) -> Sizes:
        """What the file says of the first result."""
        return self.program.values[self.node.results[0]].sizes

    def at(self, dim: Any, sizes: Sizes) -> int:
        """A dimension counted from the front."""
        if type(dim) is not int or not -len(sizes) <= dim < max(1, len(sizes)):
            raise self.unfit("it names a dimension that is not there")
        return dim % max(1, len(sizes))

    def dims(self, dims: Any, sizes: Sizes) -> set[int]:
        """Several dimensions; all of them where none is named."""
        if dims is None or dims == ():
            return set(range(len(sizes)))
        return {self.at(each, sizes) for each in (dims if isinstance(dims, tuple) else (dims,))}

    def unfit(self, reason: str) -> UnfitGraphError:
        """A refusal that names the operation and its result."""
        return UnfitGraphError(f"{self.node.results[0]} = {self.node.operation}: {reason}")

    def mixes(self, reason: str) -> UnfitGraphError:
        """A refusal of what lets one record see another."""
        return self.unfit(f"it mixes records: {reason}")


def places_of(program: Program) -> Places:
    """Where each value's records are.

    Raises:
        UnfitGraphError: names the node that mixes records, or has no rule.
    """
    sizes = program.values[program.input].sizes
    if not sizes or sizes[0] != Records(records=1) or any(isinstance(each, Records) for each in sizes[1:]):
        raise UnfitGraphError("the input does not have the records along dimension 0, and there alone")
    places: Places = dict.fromkeys(program.tensors) | {program.input: Place(0)}
    used = {name for node in program.nodes for name in names_in(node)} | {program.output}
    for node in program.nodes:
        call = Call(node, program, places)
        rule = RULES.get(node.operation)
        if rule is None:
            raise call.unfit(WHY.get(node.operation, "this operation has no rule here: write it with others"))
        _require_numbers(call)
        has_records = any(place is not None for _, place, _ in call.tensors)
        result = rule(call) if has_records or _takes_records(node) or masked(node) else None
        for name in node.results:
            if name in used:
                _require_said(call, name, result)
            places[name] = result
    if places[program.output] != Place(0):
        raise UnfitGraphError(
            "the output does not have the records along dimension 0" if places[program.output] else _NO_RECORD
        )
    return places


_NO_RECORD = "the output does not depend on the records"
_AS_NUMBER = "the number of records is used as a number, so that a record's output depends on how many there are"
_SIZED = frozenset({"size", "shape", "repeats"})


def _takes_records(node: Node) -> bool:
    return any(isinstance(one, Records) for each in node.arguments.values() for one in _listed(each))


def _listed(argument: Any) -> Iterable[Any]:
    return argument if isinstance(argument, tuple) else (argument,)


def _require_numbers(call: Call) -> None:
    """The number of records is a size, and nothing else."""
    for name, argument in call.node.arguments.items():
        if name not in _SIZED and any(isinstance(one, Records) for one in _listed(argument)):
            if call.node.operation == "slice.Tensor" and name == "end":  # all of them
                continue
            raise call.mixes(_AS_NUMBER)


def _require_said(call: Call, name: str, place: Place | None) -> None:
    """What the file says of a result has the records where the rule puts them."""
    sizes = call.program.values[name].sizes
    records_dims = {at: each.records for at, each in enumerate(sizes) if isinstance(each, Records)}
    if records_dims != ({} if place is None else {place.dim: place.outer * place.inner}):
        raise call.unfit("the file says other sizes of its result than follow from what it takes")


# --- Each kind of rule ---


def _broadcast(call: Call) -> Place | None:
    """Number by number: records are at one place from the right in all that has any."""
    tensors = call.tensors
    ndim = max(len(sizes) for _, _, sizes in tensors)
    places = {(len(sizes) - place.dim, place.outer, place.inner) for _, place, sizes in tensors if place is not None}
    if len(places) != 1:
        raise call.mixes("its inputs have the records along different dimensions, so each meets every other")
    ((right, outer, inner),) = places
    for _, place, sizes in tensors:
        if place is None and len(sizes) >= right and sizes[len(sizes) - right] != 1:
            raise call.mixes("one of its inputs has a number for each place among the records")
    return Place(ndim - right, outer, inner)


def _floats_alone(name: str) -> Rule:
    """Number by number, where whole numbers could be divided by 0, which is an error and no number."""

    def rule(call: Call) -> Place | None:
        if not call.floats(name):
            raise call.unfit("of whole numbers it may fail for some records: use floating numbers")
        return _broadcast(call)

    return rule


def _by_a_number(call: Call) -> Place | None:
    other, kind = call.argument("other"), call.program.value(call.node.arguments["self"].value).dtype  # type: ignore[union-attr]
    fits = type(other) is float or kind in FLOATING or (type(other) is int and other <= largest(kind))  # else it wraps
    if type(other) not in (int, float) or other <= 0 or not fits:  # the least whole number by −1 ends the process
        raise call.unfit("it may fail for some records: divide by a positive number")
    return _broadcast(call)


def _same(call: Call) -> Place | None:
    """One input, whose numbers stay at their places."""
    return call.place("self") if "self" in call.node.arguments else call.place("input")


def _within(*names: str) -> Rule:
    """It works along some dimensions, and the result has its input's. `names`: of the argument, and of a default."""

    def rule(call: Call) -> Place | None:
        sizes, place = call.sizes("self"), call.place("self")
        dims = call.argument(names[0], int(names[1]) if len(names) > 1 else None)
        if place is not None and place.dim in call.dims(dims, sizes):
            raise call.mixes("it works along the dimension of the records")
        return place

    return rule


def _reduces(name: str = "dim") -> Rule:
    """It takes some dimensions away."""

    def rule(call: Call) -> Place | None:
        sizes, place = call.sizes("self"), call.place("self")
        gone = call.dims(call.argument(name), sizes)
        if place is None:
            return None
        if place.dim in gone:
            raise call.mixes("it reduces the dimension of the records")
        return place if call.argument("keepdim", False) else _without(place, gone)

    return rule


def _without(place: Place, gone: set[int]) -> Place:
    return Place(place.dim - sum(each < place.dim for each in gone), place.outer, place.inner)


def _view(call: Call) -> Place | None:
    """Other sizes over the same order: as many numbers lie before and after a record's as did."""
    place, sizes, result = call.place("self"), call.sizes("self"), call.result
    if place is None:
        return None
    left, right = _numbers(sizes[: place.dim]) * place.outer, place.inner * _numbers(sizes[place.dim + 1 :])
    dims = [at for at, each in enumerate(result) if isinstance(each, Records)]
    if len(dims) != 1:
        raise call.mixes("it folds the records away")
    (dim,) = dims
    ahead, behind = _numbers(result[:dim]), _numbers(result[dim + 1 :])
    if not ahead or not behind or left % ahead or right % behind:
        raise call.mixes("its sizes cut across the records")
    return Place(dim, left // ahead, right // behind)


def _numbers(sizes: Sequence[Any]) -> int:
    return math.prod(each.records if isinstance(each, Records) else each for each in sizes)


def _squeeze(call: Call) -> Place | None:
    place, sizes = call.place("self"), call.sizes("self")
    gone = call.dims(call.argument("dim"), sizes)
    if place is None:
        return None
    if place.dim in gone:
        raise call.unfit("it drops the dimension of the records where there is one: name another dimension")
    return _without(place, {each for each in gone if sizes[each] == 1})


def _unsqueeze(call: Call) -> Place | None:
    place, sizes = call.place("self"), call.sizes("self")
    at = call.at(call.argument("dim"), (*sizes, 1))
    return place and Place(place.dim + (at <= place.dim), place.outer, place.inner)


def _select(call: Call) -> Place | None:
    place, sizes = call.place("self"), call.sizes("self")
    at = call.at(call.argument("dim", 0), sizes)
    if place is not None and at == place.dim:
        raise call.mixes("it takes one record out of the others")
    return place and _without(place, {at})


def _slice(call: Call) -> Place | None:
    place, sizes = call.place("self"), call.sizes("self")
    at = call.at(call.argument("dim", 0), sizes)
    if place is None or at != place.dim:
        return place
    end, step = call.argument("end"), call.argument("step", 1)
    is_whole = end is None or end == sizes[at] or (isinstance(end, int) and end >= 2**31 - 1)
    if call.argument("start", 0) not in (0, None) or step != 1 or not is_whole:
        raise call.mixes("it takes some records out of the others")
    return place


def _permute(call: Call) -> Place | None:
    place, sizes = call.place("self"), call.sizes("self")
    order = [call.at(each, sizes) for each in call.argument("dims")]
    if sorted(order) != list(range(len(sizes))):
        raise call.unfit("it does not name each dimension once")
    return place and Place(order.index(place.dim), place.outer, place.inner)


def _transpose(call: Call) -> Place | None:
    place, sizes = call.place("self"), call.sizes("self")
    one, two = (0, 1) if call.node.operation == "t.default" else (call.argument("dim0"), call.argument("dim1"))
    one, two = call.at(one, sizes), call.at(two, sizes)
    if place is None:
        return None
    return Place({one: two, two: one}.get(place.dim, place.dim), place.outer, place.inner)


def _expand(call: Call) -> Place | None:
    """A dimension of 1 is repeated; for each record where the size is theirs."""
    place, sizes, result = call.place("self"), call.sizes("self"), call.result
    added = len(result) - len(sizes)
    if place is not None:
        return Place(place.dim + added, place.outer, place.inner)
    dims = [at for at, each in enumerate(result) if isinstance(each, Records)]
    if not dims:
        return None
    if len(dims) > 1 or result[dims[0]] != Records(records=1):
        raise call.unfit("it repeats more than once for each record")
    return Place(dims[0])


def _repeat(call: Call) -> Place | None:
    place, sizes, repeats = call.place("self"), call.sizes("self"), call.argument("repeats")
    added = len(repeats) - len(sizes)
    if place is not None:
        if repeats[place.dim + added] != 1:
            raise call.mixes("it repeats the dimension of the records")
        return Place(place.dim + added, place.outer, place.inner)
    return _expand(call)


def _joined(call: Call) -> Place | None:
    """Tensors one after the other along a dimension that is not the records'."""
    tensors, stacked = call.tensors, call.node.operation == "stack.default"
    sizes = tensors[0][2]
    at = call.at(call.argument("dim", 0), (*sizes, 1) if stacked else sizes)
    places = {place for _, place, _ in tensors}
    if len(places) != 1:
        raise call.mixes("some of its inputs have records along this dimension, and others have not")
    (place,) = places
    if place is None:
        return None
    if not stacked and at == place.dim:
        raise call.mixes("it joins tensors along the dimension of the records")
    return Place(place.dim + (stacked and at <= place.dim), place.outer, place.inner)


def _apart(call: Call) -> Place | None:
    place, at = call.place("self"), call.at(call.argument("dim", 0), call.sizes("self"))
    if place is not None and at == place.dim:
        raise call.mixes("it cuts along the dimension of the records")
    return place and (_without(place, {at}) if call.node.operation == "unbind.int" else place)


def _new(call: Call) -> Place | None:
    """A tensor of one number, by sizes alone."""
    dims = [(at, each.records) for at, each in enumerate(call.result) if isinstance(each, Records)]
    if len(dims) > 1 or any(times != 1 for _, times in dims):
        raise call.unfit("its size is not one of each record's")
    return Place(dims[0][0]) if dims else None


def _no_records(call: Call) -> Place | None:
    raise call.mixes(_AS_NUMBER)


def _linear(call: Call) -> Place | None:
    """Over the last dimension, by weights."""
    _require_weights(call, "weight", "bias")
    place, sizes = call.place("input"), call.sizes("input")
    if place is not None and place.dim == len(sizes) - 1:
        raise call.mixes("its weights add up the records")
    return place


def _convolution(call: Call) -> Place | None:
    _require_weights(call, "weight", "bias")
    return _require_images(call, "input", len(call.sizes("weight")))


def _pool(places: int, name: str = "self") -> Rule:
    """Windows over the last dimensions of (records, channels, …)."""
    return lambda call: _require_images(call, name, places + 2)


def _require_images(call: Call, name: str, ndim: int) -> Place | None:
    place, sizes = call.place(name), call.sizes(name)
    if place is not None and (place.dim != 0 or len(sizes) != ndim):
        raise call.mixes("the records are not along the first dimension of what it reads, before the channels")
    return place


def _require_weights(call: Call, *names: str) -> None:
    for name in names:
        if call.place(name) is not None:
            raise call.unfit(f"its {name} is computed from records")


def _layer_norm(call: Call) -> Place | None:
    _require_weights(call, "weight", "bias")
    place, sizes = call.place("input"), call.sizes("input")
    if place is not None and place.dim >= len(sizes) - len(call.argument("normalized_shape")):
        raise call.mixes("it normalizes over the records")
    return place


def _group_norm(call: Call) -> Place | None:
    _require_weights(call, "weight", "bias")
    return _require_images(call, "input", len(call.sizes("input")))


def _frozen_norm(call: Call) -> Place | None:
    _require_weights(call, "weight", "bias", "running_mean", "running_var")
    return _require_images(call, "input", len(call.sizes("input")))


def _embedding(call: Call) -> Place | None:
    _require_weights(call, "weight")
    return call.place("indices")


def _product(first: str, second: str) -> Rule:
    """A matrix product: dimensions before the last two are matched, as number by number."""

    def rule(call: Call) -> Place | None:
        one, two = call.place(first), call.place(second)
        left, right = len(call.sizes(first)), len(call.sizes(second))
        if one is not None and one.dim == left - 1:
            raise call.mixes("it adds up the records")
        if two is not None and two.dim == max(0, right - 2):
            raise call.mixes("it adds up the records")
        if left == 1 or right == 1:
            return _of_vector(call, (one, left), (two, right))
        ndim = max(left, right)
        places = {
            Place(each.dim + ndim - own_sizes, each.outer, each.inner)
            for each, own_sizes in ((one, left), (two, right))
            if each
        }
        if len(places) != 1:
            raise call.mixes("its inputs have the records along different dimensions, so each meets every other")
        (place,) = places
        if one is not None and two is not None and place.dim >= ndim - 2:
            raise call.mixes("each record meets every other")
        for other, own_sizes, name in ((one, left, first), (two, right, second)):
            at = place.dim - (ndim - own_sizes)
            if other is None and place.dim < ndim - 2 and at >= 0 and call.sizes(name)[at] != 1:
                raise call.mixes("one of its inputs has a matrix for each place among the records")
        return place

    return rule


def _of_vector(call: Call, one: tuple[Place | None, int], two: tuple[Place | None, int]) -> Place | None:
    """A vector on one side: its dimension is gone."""
    (left, _), (right, ndim) = one, two
    if ndim == 1:
        if right is not None:
            raise call.mixes("it adds up the records")
        return left
    if left is not None:
        raise call.mixes("it adds up the records")
    return right and (right if right.dim < ndim - 2 else Place(right.dim - 1, right.outer, right.inner))


def _added_product(call: Call) -> Place | None:
    names = ("mat1", "mat2") if "mat1" in call.node.arguments else ("batch1", "batch2")
    product, self_place, sizes = _product(*names)(call), call.place("self"), call.sizes("self")
    ndim = len(call.result)
    if self_place is not None and (product is None or self_place.dim + ndim - len(sizes) != product.dim):
        raise call.mixes("what it adds has the records along another dimension")
    if self_place is None and product is not None:
        at = product.dim - (ndim - len(sizes))
        if at >= 0 and sizes[at] != 1:
            raise call.mixes("what it adds has a number for each place among the records")
    return product


def _attention(call: Call) -> Place | None:
    if call.argument("dropout_p", 0.0):
        raise call.unfit(_MASKS)
    if call.argument("enable_gqa", False):
        raise call.unfit("its heads are shared among queries: repeat them before")
    parts = [(call.place(name), call.sizes(name)) for name in ("query", "key", "value")]
    if isinstance(call.argument("attn_mask"), Ref):
        mask, sizes = call.place("attn_mask"), call.sizes("attn_mask")
        if mask is not None and mask.dim >= len(sizes) - 2:
            raise call.mixes("its mask has the records among the places that attend")
    for place, sizes in parts:
        if place is not None and place.dim >= len(sizes) - 2:
            raise call.mixes("records attend to each other")
    return _broadcast(call)


def _dropout(call: Call) -> Place | None:
    """Masks for each record, by the keys of the service (`masked`). All layers of a graph have one rate."""
    place, unseen = call.place("input"), call.node.results[1:]
    if call.program.output in unseen or any(name in unseen for each in call.program.nodes for name in names_in(each)):
        raise call.unfit("its masks themselves are not known here, only what they leave")
    if not masked(call.node):
        return place
    if place is None:
        raise call.unfit("it drops numbers of what no record has: masks are each record's own")
    rates = {each.arguments["p"] for each in call.program.nodes if masked(each)}
    if len(rates) > 1 or not all(isinstance(rate, float) and 0.0 < rate < 1.0 for rate in rates):
        raise call.unfit("dropout has one rate here, between 0 and 1, for all layers of a graph")
    return place


def masked(node: Node) -> bool:
    """Whether a node draws masks: dropout that was exported in training mode."""
    arguments = node.arguments
    return (
        node.operation == "native_dropout.default" and arguments.get("train") is not False and arguments.get("p") != 0.0
    )


def _gather(call: Call) -> Place | None:
    """Places that an index names, along a dimension that is not the records'."""
    at = call.at(call.argument("dim"), call.sizes("self"))
    places = {place for _, place, _ in call.tensors}
    if len(places) != 1 or any(place is not None and place.dim == at for place in places):
        raise call.mixes("its index names places among the records")
    return call.place("self")


def _index_select(call: Call) -> Place | None:
    _require_weights(call, "index")
    return _within("dim")(call)


def _index(call: Call) -> Place | None:
    """Places that indices name: a table's by records, or a record's own by constants."""
    indices = call.argument("indices")
    indexed = [at for at, each in enumerate(indices) if each is not None]
    if len(indexed) != 1 or call.program.value(indices[indexed[0]].value).dtype in ("bool", "uint8", *FLOATING):
        raise call.unfit("only one index is known here, of whole numbers")
    (at,) = indexed
    index, place = call.places[indices[at].value], call.place("self")
    width = len(call.program.value(indices[at].value).sizes)
    if place is None:
        return index and Place(at + index.dim, index.outer, index.inner)
    if index is not None or place.dim == at:
        raise call.mixes("its index names places among the records")
    return Place(place.dim + (width - 1 if at < place.dim else 0), place.outer, place.inner)


def _pad(call: Call) -> Place | None:
    place, sizes, pads = call.place("self"), call.sizes("self"), call.argument("pad")
    at = None if place is None else 2 * (len(sizes) - 1 - place.dim)
    if at is not None and any(pads[at : at + 2]):
        raise call.mixes("it pads the dimension of the records")
    return place


def _rules(text: str, rule: Rule) -> dict[str, Rule]:
    return {name if "." in name else f"{name}.default": rule for name in text.split()}


RULES: dict[str, Rule] = {
    **_rules(
        """
        abs add.Tensor add.Scalar addcmul atan atan2 bitwise_and.Tensor bitwise_not bitwise_or.Tensor bitwise_xor.Tensor
        ceil celu clamp clamp.Tensor clamp_max clamp_min cos cosh div.Tensor div.Scalar elu eq.Scalar eq.Tensor erf exp
        expm1 floor ge.Scalar ge.Tensor gelu gt.Scalar gt.Tensor hardsigmoid hardswish hardtanh isinf isnan le.Scalar
        le.Tensor leaky_relu lerp.Scalar lerp.Tensor log log1p log2 log_sigmoid logical_and logical_not logical_or
        logical_xor lt.Scalar lt.Tensor masked_fill.Scalar maximum minimum mish mul.Scalar mul.Tensor nan_to_num
        ne.Scalar ne.Tensor neg reciprocal relu relu6 round rsqrt rsub.Scalar rsub.Tensor selu sigmoid sign silu sin
        sinh softplus sqrt square sub.Scalar sub.Tensor tan tanh trunc where.self where.ScalarSelf where.ScalarOther
        where.Scalar prelu addcdiv masked_fill.Tensor
        """,
        _broadcast,
    ),
    **_rules("pow.Tensor_Scalar pow.Tensor_Tensor", _floats_alone("self")),
    **_rules("pow.Scalar", _floats_alone("exponent")),
    **_rules("floor_divide remainder.Scalar fmod.Scalar div.Scalar_mode", _by_a_number),
    **_rules("alias clone contiguous detach lift_fresh_copy _to_copy to.dtype", _same),
    **_rules("zeros_like ones_like full_like", _same),
    **_rules("softmax.int log_softmax.int _softmax _log_softmax cumsum cumprod", _within("dim")),
    **_rules("glu", _within("dim", "-1")),
    **_rules("flip roll", _within("dims")),
    **_rules("sum.dim_IntList mean.dim amax amin logsumexp var.correction std.correction prod.dim_int", _reduces()),
    **_rules("max.dim min.dim argmax argmin any.dim all.dim linalg_vector_norm norm.ScalarOpt_dim", _reduces()),
    **_rules("sum mean prod max min any all norm.Scalar var std", _reduces("no such argument")),
    **_rules("view reshape _unsafe_view flatten.using_ints unflatten.int", _view),
    **_rules("squeeze squeeze.dim squeeze.dims", _squeeze),
    **_rules("unsqueeze", _unsqueeze),
    **_rules("select.int", _select),
    **_rules("slice.Tensor", _slice),
    **_rules("permute", _permute),
    **_rules("transpose.int t", _transpose),
    **_rules("expand", _expand),
    **_rules("repeat", _repeat),
    **_rules("cat stack", _joined),
    **_rules("split.Tensor split_with_sizes chunk unbind.int", _apart),
    **_rules("zeros ones full new_zeros new_ones new_full", _new),
    **_rules("arange arange.start arange.start_step scalar_tensor", _no_records),
    **_rules("linear", _linear),
    **_rules("conv1d conv2d conv3d conv_transpose1d conv_transpose2d.input conv_transpose3d.input", _convolution),
    **_rules("max_pool1d avg_pool1d adaptive_avg_pool1d adaptive_max_pool1d", _pool(1)),
    **_rules("upsample_nearest1d.vec upsample_linear1d.vec", _pool(1, "input")),
    **_rules("upsample_nearest2d.vec upsample_bilinear2d.vec", _pool(2, "input")),
    **_rules("max_pool2d avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d pixel_shuffle pixel_unshuffle", _pool(2)),
    **_rules("max_pool3d avg_pool3d adaptive_avg_pool3d", _pool(3)),
    **_rules("layer_norm rms_norm", _layer_norm),
    **_rules("group_norm", _group_norm),
    **_rules("_native_batch_norm_legit_no_training", _frozen_norm),
    **_rules("embedding", _embedding),
    **_rules("mm bmm", _product("self", "mat2")),
    **_rules("matmul", _product("self", "other")),
    **_rules("mv", _product("self", "vec")),
    **_rules("addmm baddbmm", _added_product),
    **_rules("scaled_dot_product_attention", _attention),
    **_rules("native_dropout", _dropout),
    **_rules("gather", _gather),
    **_rules("index_select", _index_select),
    **_rules("index.Tensor", _index),
    **_rules("constant_pad_nd pad", _pad),
    **_rules("_weight_norm_interface", _no_records),
}
_EMPTY = "its numbers are none of the graph's; of dropout only nn.Dropout has a rule: other masks would not replay"
_MASKS = "these masks would not replay: set dropout to 0 there, and use nn.Dropout before or after"
_STATISTICS = "it mixes records: use GroupNorm or LayerNorm, or freeze the statistics with .eval()"
_CELLS = "it has no rule for each record: write its cell with Linear layers"
_VALUES = "how many numbers it gives, or where, depends on the records"
# Why operations that users bring have no rule.
WHY: dict[str, str] = {
    **dict.fromkeys(("batch_norm.default", "_native_batch_norm_legit_functional.default"), _STATISTICS),
    **dict.fromkeys(("_native_batch_norm_legit.default", "native_batch_norm.default"), _STATISTICS),
    **dict.fromkeys(("_native_batch_norm_legit.no_stats", "instance_norm.default"), _STATISTICS),
    **dict.fromkeys(("empty_like.default", "new_empty.default"), _EMPTY),
    **dict.fromkeys(("lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input", "lstm_cell.default"), _CELLS),
    **dict.fromkeys(("gru_cell.default", "lstm.data", "gru.data"), _CELLS),
    **dict.fromkeys(("nonzero.default", "masked_select.default", "topk.default", "sort.default"), _VALUES),
    **dict.fromkeys(("unique_dim.default", "_unique2.default", "index_put.default", "scatter.src"), _VALUES),
    **dict.fromkeys(("rand.default", "randn.default", "rand_like.default", "randn_like.default"), "it draws by itself"),
    **dict.fromkeys(("bernoulli.p", "bernoulli.default", "randperm.default", "randint.default"), "it draws by itself"),
}
