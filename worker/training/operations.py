"""The closed list of operations that may run where private records share a pass.

The bound on a record's influence needs one property of foreign kernels. At one public shape, the bits of a record's row
are a function of that row's values, its place, the shapes, the threads and the machine: never of the values in other
rows. No sample of runs proves it, and an analyst could look for a shape that a sample misses. So each operation is on a
list with a reason, and `tests/worker/test_operations.py` replaces the neighbours of each by extreme ones. An operation
that nobody judged means passes of one record, which need no such property.

`Recorder` sees what torch dispatches, backward passes included. It cannot see compiled and NumPy code of this project:
OWN names each function that hands numbers to such code. It cannot see what an operation means either: a maximum over
rows is the same operation as one within a row. A model that mixes records by such an operation is found by its values
(worker.training.self_test), as that is no matter of a last bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Reason(Enum):
    """Why the values in other rows cannot reach a row's bits."""

    LAYOUT = "it makes, fills, copies, converts or names memory; no number depends on a number at another place"
    ELEMENTWISE = "each number is computed from the numbers at its own place"
    WITHIN = "it reduces, normalizes or sorts one record's numbers; how they are split follows from shapes"
    # TF32 rounds each factor by itself.
    PRODUCT = "each number sums its own row's products; tiles and splits follow from shapes"
    GATHER = "it copies, or adds in the order of records, to and from places that ids or shapes name"
    SUM = "a sum over rows by design: the slack pays for its rounding in any order"


def _names(text: str, reason: Reason) -> dict[str, Reason]:
    return {name if "." in name else f"{name}.default": reason for name in text.split()}


# What a GPU's passes use and a processor's do not. `benchmarks/gpu_hour.py` compares the bits of all models there.
LISTED_ON_GPU: Mapping[str, Reason] = {
    **_names("_pin_memory is_pinned record_stream", Reason.LAYOUT),
    # The last one is of attention without a kernel of its own.
    **_names("_fused_rms_norm _fused_rms_norm_backward _safe_softmax", Reason.WITHIN),
    **_names(
        """
        _scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward
        _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward
        """,
        Reason.PRODUCT,
    ),
}

# By torch's overload names. An operation in place is the same one (a trailing underscore is dropped); `.default` is
# left out. Marks follow an @: see `name_of`.
LISTED: Mapping[str, Reason] = {
    **_names(
        """
        _to_copy _unsafe_view alias arange arange.start as_strided cat clone constant_pad_nd
        copy detach diagonal empty.memory_format empty_like expand fill.Scalar fill.Tensor flip
        full full_like lift_fresh new_empty new_full new_ones new_zeros normal ones ones_like permute
        repeat roll scalar_tensor select.int select_backward set.source_Storage set.source_Storage_storage_offset
        slice.Tensor slice_backward split.Tensor split_with_sizes squeeze squeeze.dim squeeze.dims stack t transpose.int
        tril triu unbind.int unfold uniform unsqueeze view view.dtype zero zeros zeros_like _foreach_copy
        """,
        Reason.LAYOUT,
    ),
    **_names(
        """
        __lshift__.Scalar __rshift__.Scalar abs add.Scalar add.Tensor add.out addcdiv addcmul bitwise_and.Scalar
        bitwise_and.Tensor bitwise_not bitwise_or.Tensor bitwise_xor.Tensor ceil clamp clamp.Tensor clamp_max
        clamp_min copysign.Tensor cos div.Scalar div.Tensor div.out elu elu_backward eq.Scalar eq.Tensor erf erfc exp
        exp2 expm1 floor fmod.Scalar ge.Scalar ge.Tensor gelu gelu_backward gt.Scalar gt.Tensor hardsigmoid
        hardsigmoid_backward hardswish hardswish_backward hardtanh hardtanh_backward isinf isnan le.Scalar le.Tensor
        leaky_relu leaky_relu_backward lerp.Scalar log log1p log2 log_sigmoid_backward log_sigmoid_forward logical_and
        logical_not logical_or lt.Scalar lt.Tensor masked_fill.Scalar masked_fill.Tensor maximum maximum.out minimum
        mish mish_backward mul.Scalar mul.Tensor nan_to_num nan_to_num.out ne.Scalar ne.Tensor neg pow.Scalar
        pow.Tensor_Scalar pow.Tensor_Tensor reciprocal relu remainder.Scalar round rsqrt rsub.Scalar sgn sigmoid
        sigmoid_backward sign silu silu_backward sin softplus softplus_backward sqrt sub.Scalar sub.Tensor tan tanh
        tanh_backward threshold_backward trunc where.self
        """,
        Reason.ELEMENTWISE,
    ),
    **_names(
        """
        _log_softmax _log_softmax_backward_data _softmax _softmax_backward_data all.dim amax amin any.dim argmax
        avg_pool2d avg_pool2d_backward cumsum linalg_vector_norm logsumexp max.dim
        max_pool2d_with_indices max_pool2d_with_indices_backward mean.dim native_group_norm native_group_norm_backward
        native_layer_norm native_layer_norm_backward nll_loss_backward nll_loss_forward softmax.int_out sort.stable
        sum.dim_IntList upsample_bilinear2d upsample_nearest2d var.correction
        """,
        Reason.WITHIN,
    ),
    **_names(
        """
        _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward addmm baddbmm
        bmm bmm.out convolution convolution_backward mm mm.out mv
        """,
        Reason.PRODUCT,
    ),
    **_names("embedding gather index.Tensor index_add index_put index_select scatter_add", Reason.GATHER),
    # The sum of a pass's losses: backward passes begin there, with ones. Its value reaches nothing.
    **_names("sum.default@vector", Reason.SUM),
    **LISTED_ON_GPU,
}

# Only behind the passes: what is known of each record is scaled and added, and nothing is looked up again.
LISTED_OF_SUMS: Mapping[str, Reason] = {
    **_names("sum.default sum.default@vector sum.default@whole addmv", Reason.SUM),
    # Integer totals and their scale, once a step: whether a pass was not finite, which no release accepts.
    **_names("_local_scalar_dense", Reason.LAYOUT),
}

_STATISTICS = "statistics of a batch mix its records: use LayerNorm or GroupNorm"
_SCALES = "one scale is computed from all rows, so that a larger neighbour changes the others' bits"
_SHAPES = "how many numbers it returns, and how long it takes, depends on the values"
_SPLIT = "work is split among threads by entries, and so by the neighbours'"
# What is refused, by the beginning of its name or by its mark; the reason is for the log and for whoever adds a model.
REFUSED: Mapping[str, str] = {
    "_local_scalar_dense": "a number is read in a pass: what follows, and its time, depends on all rows",
    "nonzero": _SHAPES,
    "unique": _SHAPES,
    "_unique": _SHAPES,
    "masked_select": _SHAPES,
    "@mask": f"an index of booleans: {_SHAPES}; use where",
    "topk": "who is among the first depends on the others, as with an expert's capacity",
    "_native_batch_norm": _STATISTICS,
    "native_batch_norm": _STATISTICS,
    "batch_norm": _STATISTICS,
    "cudnn_batch_norm": _STATISTICS,
    "miopen_batch_norm": _STATISTICS,
    "quantized": _SCALES,
    "quantize": _SCALES,
    "fake_quantize": _SCALES,
    "_fake_quantize": _SCALES,
    "fused_moving_avg": _SCALES,
    "_fused_moving_avg": _SCALES,
    "_dyn_quant": _SCALES,
    "_scaled_mm": _SCALES,
    "aminmax": _SCALES,
    "_amp": "loss scaling looks for numbers that are not finite in all rows",
    "_pack_padded_sequence": "rows are put together by their lengths, so that shapes depend on values",
    "_pad_packed_sequence": "rows are put together by their lengths, so that shapes depend on values",
    "embedding_dense_backward": "it adds rows of all records; the engine has rules for embeddings",
    "@sparse": _SPLIT,
    "@cuda": "CUDA sorts the places of all rows together and splits the sum where it likes",
    "@whole": "it reduces all rows together",
}
# Reductions, and the place of their dimensions among the arguments. Without any they reduce all.
_REDUCE: Mapping[str, int] = {
    **dict.fromkeys(("sum", "mean", "prod", "all", "any", "max", "min", "amax", "amin", "argmax", "argmin"), 1),
    **dict.fromkeys(("var", "std", "median", "logsumexp"), 1),
    "linalg_vector_norm": 2,
}
_WITH_DIMENSIONS = ("amax", "amin", "argmax", "argmin", "logsumexp", "linalg_vector_norm")
_ADDS_BY_INDEX = ("index_add", "embedding_dense_backward")

# Functions of ours that hand numbers to code that torch does not dispatch: compiled (core/native/*.c), NumPy, SciPy.
# tests/worker/test_operations.py compares the names with the source.
_ROW = "row by row: a row's numbers come from its own, in an order that its shape or its own entries name"
_ADDS = "a sum over rows by design, one after the other"
_COPIES = "it copies rows, or hands over memory, and computes nothing of them"
_PUBLIC = "of public numbers, weights or keys alone"
OWN: Mapping[str, str] = {
    "clipping/engine.py: traced": _PUBLIC,
    "clipping/accumulators.py: ParameterAccumulator._one_position": _ROW,
    "clipping/accumulators.py: ParameterAccumulator.measure": _ROW,
    "clipping/accumulators.py: _lengths": _ROW,
    "clipping/factors.py: _compiled": _ROW,
    "clipping/factors.py: _on_gpu": _ROW,
    "clipping/gpu_check.py: _lengths_are_same": _PUBLIC,
    "clipping/gpu_check.py: _sums_are_same": _PUBLIC,
    "clipping/residuals.py: clipped_residuals": _ROW,
    "clipping/rules.py: _patches": _ROW,
    "clipping/scratch.py: Scratch.finite": _ROW,
    "clipping/scratch.py: Scratch.narrowed": _ROW,
    "clipping/scratch.py: Scratch.of_products": _ROW,
    "clipping/scratch.py: Scratch.scaled": _ROW,
    "clipping/totals.py: GridTotals._add": _ADDS,
    "clipping/totals.py: GridTotals._add_on_gpu": _ADDS,
    "clipping/totals.py: GridTotals._scaled": _ADDS,
    "clipping/totals.py: GridTotals.add_formed": _ADDS,
    "clipping/totals.py: GridTotals.add_products": _ADDS,
    "data/sparse_entries.py: Entries._counted": f"{_ROW}; or {_ADDS}",
    "data/sparse_entries.py: Entries.product": _ROW,
    "data/sparse_entries.py: Entries.scaled": _ROW,
    "data/sparse_entries.py: Entries.scattered": _ADDS,
    "data/sparse_entries.py: by_column": _PUBLIC,
    "data/lengths.py: squared_lengths": _ROW,
    "data/lengths.py: squared_lengths_of_rows": _ROW,
    "data/mapped.py: MappedRecords.labels": _COPIES,
    "data/norms.py: exact_root_bound": _ROW,
    "data/loaded_parts.py: _in_memory": _COPIES,
    "data/passes.py: taken": _COPIES,
    "data/passes.py: Pass.only": _PUBLIC,
    "data/passes.py: gathered": _COPIES,
    "data/passes.py: passes_of": _COPIES,
    "data/ratings.py: RatingRecords.select": _COPIES,
    "data/ratings.py: add_rows": _ADDS,
    "data/records.py: DenseRecords.piece": _COPIES,
    "data/records.py: DenseRecords.select": _COPIES,
    "data/records.py: SparseRecords.__init__": _ROW,
    "data/records.py: SparseRecords.dense": _COPIES,
    "data/records.py: SparseRecords.dropped": _ROW,
    "data/records.py: SparseRecords.grams": _ROW,
    "data/records.py: SparseRecords.select": _COPIES,
    "data/records.py: SparseRecords.weighted_squares": _ROW,
    "data/records.py: _torch_csr": f"{_COPIES}; what torch does with sparse rows is marked @sparse",
    "data/records.py: added": _ADDS,
    "data/sequence_records.py: SequenceRecords.item_counts": _ADDS,
    "data/sequence_records.py: SequenceRecords.kept": _ROW,
    "data/sequence_records.py: SequenceRecords.padded": _COPIES,
    "data/sequence_records.py: SequenceRecords.select": _COPIES,
    "data/sequence_records.py: SequenceRecords.without_seen": _ROW,
    "metrics/score_cells.py: cell_of": _PUBLIC,
    "metrics/scores.py: _of_confusion": "of noisy counts, or of public records",
    "metrics/scores.py: _of_noisy_histogram": "of noisy sums, which are post-processed",
    "metrics/scores.py: _tree_sums": "of counts of records, in exact arithmetic",
    "models/activations.py: _Ratio.forward": "each number is computed from the number at its own place",
    "models/base.py: answers": _ROW,
    "models/model_files.py: _shape_functions": "of a finished model's weights",
    "models/pooling.py: _Largest.backward": _ROW,
    "models/pooling.py: _Largest.forward": _ROW,
    "models/pooling.py: _Mean.backward": _ROW,
    "models/pooling.py: _Mean.forward": _ROW,
    "models/views.py: Views._kept": _PUBLIC,
    "models/views.py: Views._words": _PUBLIC,
}


def name_of(operation: Any, args: tuple[Any, ...], kwargs: Any) -> str:
    """An operation's name in LISTED: `add.Tensor` for torch's aten::add_.Tensor, and marks for uses that differ.

    @sparse: a tensor is not strided. @mask: an index is of booleans. @cuda: an addition by indices on a GPU. @vector,
    @whole: a reduction over all of a vector, or over all of a tensor with more dimensions.

    >>> name_of(torch.ops.aten.add_.Tensor, (torch.ones(2), 1), {})
    'add.Tensor'
    >>> name_of(torch.ops.aten.index.Tensor, (torch.ones(2), [torch.tensor([True, False])]), {})
    'index.Tensor@mask'
    """
    packet, overload = str(operation.overloadpacket), operation._overloadname
    space, _, packet = packet.partition(".")
    plain = packet if packet.startswith("__") else packet.rstrip("_")
    name = f"{plain}.{overload}" if space == "aten" else f"{space}.{plain}.{overload}"
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    if any(each.layout != torch.strided for each in tensors):
        return f"{name}@sparse"
    if plain.startswith("index") and any(each.dtype in (torch.bool, torch.uint8) for each in _indices(args)):
        return f"{name}@mask"
    if plain in _ADDS_BY_INDEX and tensors[0].device.type == "cuda":
        return f"{name}@cuda"
    if _reduces_all(plain, overload, args, kwargs):
        return f"{name}@{'vector' if tensors[0].dim() == 1 else 'whole'}"
    return name


def _indices(args: tuple[Any, ...]) -> list[Tensor]:
    return [each for each in tree_leaves(args[1:2]) if isinstance(each, Tensor)]


def _reduces_all(plain: str, overload: str, args: tuple[Any, ...], kwargs: Any) -> bool:
    """True of a reduction without dimensions."""
    if plain not in _REDUCE or overload == "other":  # of two tensors
        return False
    if overload == "default" and plain not in _WITH_DIMENSIONS:
        return True
    place = _REDUCE[plain]
    return (args[place] if len(args) > place else kwargs.get("dim")) in (None, [], ())


class Recorder(TorchDispatchMode):
    """Collects the operations that torch dispatches meanwhile, on this thread and in backward passes.

    Attributes:
        names: of the operations, see `name_of`.

    >>> with Recorder() as recorder:
    ...     x = torch.ones(3).exp()
    >>> sorted(recorder.names)
    ['exp.default', 'ones.default']
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: torch would load its compiler at the first operation, which takes a second. Nothing here compiles."""
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __enter__(self) -> Recorder:
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(name_of(func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))

    @property
    def unlisted(self) -> list[str]:
        """The names that are not in LISTED, sorted."""
        return sorted(self.names - LISTED.keys())


def reason_against(name: str) -> str:
    """Why an operation is not listed.

    >>> reason_against("nonzero.default")
    'how many numbers it returns, and how long it takes, depends on the values'
    """
    reasons = (
        reason
        for prefix, reason in REFUSED.items()
        if (prefix in name if prefix[0] == "@" else name.startswith(prefix))
    )
    return next(reasons, "nobody judged it: add it to worker/training/operations.py with a reason and a test")
