"""The bookkeeping engine: exact clipped sums from one forward and one backward pass over each physical batch.

Hooks keep each layer's input and the gradient at its output. From these terms come the norms of all per-record
gradients and, once the clip factors are known, the clipped sum. It needs no second backward pass and no batch gradient
by autograd. It forms no single record's gradient if the norm has a rule.

Source: Bu et al. 2023, "Differentially private optimization on large model at small cost" (book-keeping); Li et al.
2022, "Large language models can be strong differentially private learners" (ghost norms); DPFormer (Phantom Clipping).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from core.errors import PrivacyError
from worker.clipping.accumulators import ParameterAccumulator
from worker.clipping.engine import LARGEST_NORM, SMALLEST_NORM, Clip, ClippingKind, Sample, traced
from worker.clipping.examined import ROWS as EXAMPLES
from worker.clipping.examined import Examples, UnfitLayerError, autograd_of, examine
from worker.clipping.factors import pass_factors
from worker.clipping.methods import ROOM_BYTES
from worker.clipping.own import OwnParameters
from worker.clipping.precision import in_ieee, in_tf32, require_no_autocast
from worker.clipping.rules import Found, Rule, has_rule, rule_of, shift
from worker.clipping.scratch import Scratch
from worker.clipping.terms import Term
from worker.clipping.totals import Formed, Grid, Totals, begin_pass, totals_for
from worker.data.passes import Batch
from worker.data.placed import device_of, passes_on
from worker.models.base import Parameters
from worker.models.dropout import masks_of, without_dropout
from worker.models.item_loss import ItemLoss
from worker.models.views import Views, averaged, rows_of, stilled

B = TypeVar("B")

MIXING = {
    nn.modules.batchnorm._BatchNorm: "it mixes records: use GroupNorm or LayerNorm",
    nn.modules.instancenorm._InstanceNorm: "its running statistics mix records: use GroupNorm with one channel a group",
    nn.modules.dropout._DropoutNd: "its masks are not keyed, so a step would not replay: leave it out",
    nn.MultiheadAttention: "it uses its layers' weights without calling the layers: write attention with Linear layers",
    nn.RNNBase: "it has no per-record rule: write the cell with Linear layers",
    nn.EmbeddingBag: "its bags have no per-record rule: use Embedding, and add its rows",
}


@dataclass
class _Pass:
    """The terms that one forward and backward pass over one physical batch leaves."""

    records: int
    each: int  # rows of a record: its views
    clip: Clip | None  # measures what it can in the backward pass, where it is in the cache; None: keeps all terms
    uses: Counter[int] = field(default_factory=Counter)  # of each parameter in the forward pass, by id
    measured: dict[int, ParameterAccumulator] = field(default_factory=dict)
    terms: dict[int, list[Term]] = field(default_factory=dict)
    room: int = field(default_factory=lambda: ROOM_BYTES)  # bytes for formed gradients that are kept
    lengths: set[int] = field(default_factory=set)  # dimension 1 of what layers got

    @property
    def rows(self) -> int:
        """Dimension 0 of what layers get."""
        return self.records * self.each


Note = Callable[[tuple[Tensor, ...], Tensor], None]  # the held tensors, and the gradient at the output


class _Tap(torch.autograd.Function):
    """The identity; its backward pass hands the gradient at a layer's output to the engine.

    The output is a view made inside a custom function. Changing it in place would change the gradient's meaning, so
    autograd raises an error. Autograd holds the forward tensors that the engine needs: it knows if they were changed,
    and recomputes them under checkpointing.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, note: Note, first: bool, *saved: Tensor) -> Tensor:
        ctx.note, ctx.first = note, first
        ctx.save_for_backward(*saved)
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        try:
            saved = ctx.saved_tensors
        except RuntimeError as error:
            if "modified by an inplace operation" not in str(error):
                raise
            raise PrivacyError("a layer's input was changed in place after the layer used it") from None
        ctx.note(saved, gradient)
        return (None if ctx.first else gradient, None, None) + (None,) * len(saved)


class Bookkeeping(Generic[B]):
    """Σ clip_C(g_i) over a module's trainable parameters; see GradientEngine for the guarantee.

    Args:
        module: the model. Dimension 0 of each layer's input and output counts records, and each parameter is used
            through the forward of a module that holds it. The engine owns the module: it fills in the parameters and
            switches their own gradients off. The module's floating type is the type of the passes.
        losses: each record's loss (P,) in a pass, a function of that record alone.
        rows: P, of every pass; public.
        dtype: of the passes, the module's floating type.
        examples: three random public records, to try the engine on the module as it is filled now
            (worker.clipping.examined). Give them for any module whose layers were not written for this engine.
        kind: "flat", "automatic" or "per_layer" (each layer's block to C/√layers).
        max_grad_norm: C.
        records_per_unit: k: each record is clipped to C/k.
        positions: the most rows of one product over records that may belong to one record. The sensitivity slack pays
            for the rounding of this many (core.privacy.numerics). None: no limit.
        grid: adds passes as integers, over all ranks. None: in float64, in one process.
        group: how many rows float32 may add at a time, where gradients are formed or a record has one position. None:
            sums are in float64.
        views: of each record, over which its gradient is averaged before the clip. They are further positions of the
            record. None: the record itself.
        tf32: passes may compute products of float32 in TF32 (worker.clipping.precision).

    Attributes:
        fallbacks: the layers without a rule, by name and kind: their forward runs again for each record.

    Raises:
        PrivacyError: a layer mixes records or has no per-record gradients, or an example's gradient is not autograd's.
            The error names the layer or the parameter.
    """

    def __init__(
        self,
        module: nn.Module,
        losses: Callable[[nn.Module, B], Tensor],
        *,
        rows: int,
        kind: ClippingKind,
        max_grad_norm: float,
        records_per_unit: int = 1,
        positions: int | None = None,
        dtype: torch.dtype = torch.float32,
        examples: Examples[B] | None = None,
        grid: Grid | None = None,
        group: int | None = None,
        views: Views | None = None,
        tf32: bool = False,
    ) -> None:
        refuse_mixing(module)
        self._grid, self._masks, self._views, self._tf32 = grid, masks_of(module), views, tf32
        self._group = group
        self._module, self._losses, self._rows, self._dtype = module, averaged(losses, views), rows, dtype
        self._kind: ClippingKind = kind
        self._clip, self._records_per_unit, self._positions = Clip(max_grad_norm), records_per_unit, positions
        self._trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._open: _Pass | None = None
        self._scratch = Scratch()
        self.fallbacks: tuple[str, ...] = ()
        self._attach()
        if examples is not None:
            self.examine(examples)

    def examine(self, examples: Examples[B], parameters: Parameters | None = None) -> None:
        """Tries the engine on three public records, at these parameters or at those that the module has.

        Raises:
            PrivacyError: a gradient is not autograd's, or a record's result depends on others.
        """
        if parameters is not None:
            fill_in(self._trainable, parameters)
        with without_dropout(self._module), stilled(self._views):
            examine(self, examples, self._dtype)

    def one_pass(self, records: Batch[B], rows: int) -> tuple[Tensor, Parameters]:
        """See Examined.one_pass."""
        total = self._zeros({name: p.detach() for name, p in self._trainable.items()})
        (single,) = passes_on(self._device, records, rows, self._dtype)
        losses, opened = self._run(single.records, rows)
        with torch.no_grad(), in_ieee():
            for name, accumulator in self._accumulators(opened, self._clip).items():
                accumulator.add_to(total[name], single.weights)
        return losses.detach().double(), total

    def by_autograd(self, records: Batch[B], rows: int) -> Parameters:
        """See Examined.by_autograd."""
        (single,) = passes_on(self._device, records, rows, self._dtype)
        return autograd_of(self._trainable, lambda: self._losses(self._module, single.records))

    def lengths(self, records: Batch[B]) -> Sequence[int]:
        """See Examined.lengths."""
        (single,) = passes_on(self._device, records, EXAMPLES, self._dtype)
        return sorted(self._run(single.records, EXAMPLES)[1].lengths)

    def positions_of(self, examples: Examples[B]) -> int:
        """The most rows of one product over records that belong to one of these public records."""
        (single,) = passes_on(self._device, examples.select(np.arange(EXAMPLES)), EXAMPLES, self._dtype)
        with without_dropout(self._module), stilled(self._views):
            opened = self._run(single.records, EXAMPLES)[1]
        return max((each.positions for each in self._accumulators(opened, self._clip).values()), default=1)

    @property
    def _device(self) -> torch.device:
        return device_of({name: p.data for name, p in self._trainable.items()})

    def private_sum(self, parameters: Parameters, records: Batch[B], clip: Clip | None = None) -> Parameters:
        """See GradientEngine.private_sum."""
        return self.private_sum_and_count(parameters, records, clip)[0]

    def private_sum_and_count(
        self, parameters: Parameters, records: Batch[B], clip: Clip | None = None
    ) -> tuple[Parameters, Tensor]:
        """See CountingEngine.private_sum_and_count."""
        clip = clip or self._clip
        totals = totals_for(self._grid, parameters, clip)
        fill_in(self._trainable, parameters)
        device = device_of(parameters)
        count = torch.zeros(1, dtype=torch.float64, device=device)
        norm = clip.max_grad_norm / self._records_per_unit
        for number, part in enumerate(passes_on(device, records, self._rows, self._dtype)):
            begin_pass(self._masks, number, self._rows, self._grid, self._views)
            accumulators = self._accumulators(self._run(part.records, clip=clip, tf32=self._tf32)[1], clip)
            add_clipped(totals, count, accumulators, self._trainable, self._kind, norm, part.weights, self._scratch)
        with in_ieee():
            return totals.finish(count), count

    def trace(
        self, parameters: Parameters, records: Batch[B], clip: Clip | None = None, sample: Sample = None
    ) -> list[Tensor]:
        """Losses, the layers' inputs, the gradients at their outputs, and norms; dropout is off, and
        all records have the same views."""
        fill_in(self._trainable, parameters)
        with without_dropout(self._module), stilled(self._views):
            passes = passes_on(device_of(parameters), records, self._rows, self._dtype)
            return traced(passes, partial(self._numbers, clip or self._clip), sample)

    def _numbers(self, clip: Clip, piece: B) -> Iterator[Tensor]:
        losses, opened = self._run(piece, tf32=self._tf32)
        yield losses.detach()
        for terms in opened.terms.values():  # copied before accumulators use scratch memory
            yield from (each for term in terms for each in term.tensors)
        with in_ieee():
            squares = [accumulator.squares() for accumulator in self._accumulators(opened, clip).values()]
        for of_parameter in squares:
            yield from of_parameter

    def _zeros(self, parameters: Parameters) -> Parameters:
        return {name: torch.zeros_like(value, dtype=torch.float64) for name, value in parameters.items()}

    def _accumulators(self, opened: _Pass, clip: Clip) -> dict[str, ParameterAccumulator]:
        """The accumulators of the parameters that have a gradient; consumes the terms.

        Raises:
            PrivacyError: a record has more positions than the slack pays for. Depends on public shapes only.
        """
        accumulators = {}
        for at, name in self._names.items():
            if at in opened.measured:
                accumulators[name] = opened.measured.pop(at)
            elif at in opened.terms:
                accumulators[name] = self._accumulator(opened, at, opened.terms.pop(at), clip)
        longest = max((accumulator.positions for accumulator in accumulators.values()), default=0)
        if self._positions is not None and longest > self._positions:
            raise PrivacyError(
                f"a record uses a parameter at {longest} positions, but only {self._positions} are paid for"
            )
        return accumulators

    def _accumulator(self, opened: _Pass, at: int, terms: list[Term], clip: Clip) -> ParameterAccumulator:
        """Of the parameter with this id."""
        name, divisors = self._names[at], clip.divisors or {}
        group = self._group if SMALLEST_NORM <= clip.max_grad_norm <= LARGEST_NORM else None
        shape, divisor = self._trainable[name].shape, divisors.get(name)
        accumulator = ParameterAccumulator(terms, shape, divisor, self._scratch, group, opened.room)
        opened.room -= accumulator.kept_bytes
        return accumulator

    def _write_down(self, opened: _Pass, factors: Found) -> None:
        """Keeps a layer's terms. A parameter's only term is measured at once: its formed gradients replace it.

        Raises:
            PrivacyError: a parameter has more terms than it was used in the forward pass.
        """
        for parameter, term in factors:
            at = id(parameter)
            if at not in self._names:  # frozen parameters have no terms
                continue
            of_records = term if opened.each == 1 else term.of_views(opened.each)
            if at in opened.measured:
                raise PrivacyError("a parameter was used more often than the forward pass showed")
            if opened.clip is None or opened.uses[at] != 1:
                opened.terms.setdefault(at, []).append(of_records)
                continue
            opened.measured[at] = self._accumulator(opened, at, [of_records], opened.clip)
            opened.measured[at].begin()

    def _run(
        self, piece: B, rows: int | None = None, clip: Clip | None = None, *, tf32: bool = False
    ) -> tuple[Tensor, _Pass]:
        """One forward and one backward pass over P rows, or `rows`: returns each row's loss, and the layers' terms.

        Everything that may be in TF32 runs here, rules of layers among it: a term is measured and added as it is.
        """
        require_no_autocast()
        self._open = opened = _Pass(rows or self._rows, rows_of(self._views), clip)
        try:
            with torch.enable_grad(), in_tf32(tf32):
                losses = self._losses(self._module, piece)
                if losses.shape != (opened.records,):
                    raise PrivacyError("a model must give exactly one loss per record")
                losses.sum().backward()
            return losses, opened
        except RuntimeError as error:
            if "modified inplace" not in str(error):
                raise
            raise PrivacyError(
                "a layer's output is changed in place: use an operation that makes a new tensor, such as ReLU without "
                "inplace=True, or h = h + x"
            ) from None
        finally:
            self._open = None

    def _attach(self) -> None:
        self._names = {id(p): name for name, p in self._trainable.items()}
        fallbacks = []
        for name, module in self._module.named_modules():
            own_parameters = [p for p in module.parameters(recurse=False) if id(p) in self._names]
            if not own_parameters:
                continue
            _refuse_unruled(name, module)
            rule = rule_of(module, own_parameters)
            has_no_rule = rule is None
            if rule is None:
                direct = module.named_parameters(recurse=False)
                rule = OwnParameters([each for each, p in direct if id(p) in self._names])
                if masks_of(module):
                    raise UnfitLayerError(
                        _shown(name, module),
                        "it holds parameters of its own and dropout, whose masks would differ when its forward runs "
                        "again for each record: move the parameters into a layer of their own",
                    )
                if not any(True for _ in module.children()):
                    fallbacks.append(_shown(name, module))
            module.register_forward_hook(
                partial(self._tap, rule, has_no_rule, [id(p) for p in own_parameters]), with_kwargs=True
            )
        self.fallbacks = tuple(fallbacks)
        for parameter in self._trainable.values():
            parameter.requires_grad_(False)

    def _tap(
        self,
        rule: Rule,
        has_no_rule: bool,
        own_parameters: Sequence[int],
        module: nn.Module,
        inputs: tuple[Any, ...],
        keywords: dict[str, Any],
        output: Any,
    ) -> Any:
        """Args: alone: the rule knows the first input only. own: the module's parameters, by id."""
        opened = self._open
        if opened is None:
            return output  # a forward pass outside the engine
        opened.uses.update(own_parameters)
        tensors = [each for each in (*inputs, *keywords.values()) if isinstance(each, Tensor)]
        if not tensors or (len(tensors) > 1 and (has_no_rule or any(each.requires_grad for each in tensors[1:]))):
            raise PrivacyError(
                f"{type(module).__name__} needs exactly one tensor as its input: combine tensors outside of the layer"
            )
        x = tensors[0].detach()
        shape, rows = x.shape, opened.rows
        if not isinstance(output, Tensor) or not shape or shape[0] != rows or output.shape[:1] != (rows,):
            raise PrivacyError(f"dimension 0 of {type(module).__name__} does not count records")
        if len(shape) > 2 or (len(shape) == 2 and not x.is_floating_point()):
            opened.lengths.add(shape[1])
        noted = module.noted() if isinstance(module, ItemLoss) else (x,)
        factors_of = rule.called(inputs, keywords) if isinstance(rule, OwnParameters) else rule
        first = not output.requires_grad
        if first:
            output.requires_grad_()

        def note(saved: tuple[Tensor, ...], gradient: Tensor) -> None:
            self._open = None  # what a rule computes again is not part of the pass
            try:  # without gradients, as every backward pass that makes no graph
                factors = factors_of(module, *saved, gradient)
                with in_ieee():
                    self._write_down(opened, factors)
            finally:
                self._open = opened

        return _Tap.apply(output, note, first, *(() if rule is shift else noted))  # type: ignore[no-untyped-call]


def fill_in(trainable: Mapping[str, nn.Parameter], parameters: Parameters) -> None:
    """Sets a module's trainable parameters to these values.

    Raises:
        PrivacyError: the names differ from the module's.
    """
    if set(parameters) != set(trainable):
        raise PrivacyError("the parameters' names differ from the model's")
    with torch.no_grad():
        torch._foreach_copy_([trainable[name] for name in parameters], list(parameters.values()))


def add_clipped(
    totals: Totals,
    count: Tensor,
    accumulators: dict[str, ParameterAccumulator],
    trainable: Mapping[str, nn.Parameter],
    kind: ClippingKind,
    max_grad_norm: float,
    weights: Tensor,
    scratch: Scratch,
) -> None:
    """Adds a pass's clipped gradients to the totals, and its records within the norm to the count.

    Args:
        weights: float64 (P,), 0 for an empty row.
        scratch: the engine's scratch memory.
    """
    with torch.no_grad(), in_ieee():
        ParameterAccumulator.measure(accumulators.values())
        measured = {name: accumulator.measured() for name, accumulator in accumulators.items()}
        factors, within = pass_factors(measured, trainable, kind, max_grad_norm, weights)
        formed: list[list[Formed]] = []  # one part of each parameter at a time
        for name, of_group in factors.items():
            if accumulators[name].keeps_formed:
                formed_parts = accumulators.pop(name).formed_parts(of_group.narrow)
                for number, part in enumerate(formed_parts):
                    formed += [[]] if number == len(formed) else []
                    formed[number].append(Formed(name, *part))
        for parts in formed:
            totals.add_formed(parts)
        formed.clear()
        for name in [each for each in factors if each in accumulators]:
            accumulator, of_group = accumulators.pop(name), factors[name]
            if accumulator.in_groups and accumulator.formed:
                for part in accumulator.formed_parts(of_group.narrow):
                    totals.add_formed([Formed(name, *part)])
                continue
            if accumulator.in_groups:
                accumulator.add_products(partial(totals.add_products, name), of_group.wide)
                continue
            # The pass is summed by itself and added once: rounding into a large total then grows only with the passes.
            own_sum = scratch.empty("pass", trainable[name].shape, torch.float64, weights.device)
            accumulator.add_to(own_sum, of_group.wide, first=True)
            totals.add(name, own_sum)
        count.add_(within)


def refuse_mixing(module: nn.Module) -> None:
    """Refuses layers that mix records, or whose per-record gradients the engine cannot compute.

    Raises:
        PrivacyError: names the layer and a replacement.
    """
    for name, layer in module.named_modules():
        for kind, reason in MIXING.items():
            harmless = (isinstance(layer, nn.modules.instancenorm._InstanceNorm) and not layer.track_running_stats) or (
                isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p == 0.0
            )
            frozen = isinstance(layer, nn.modules.batchnorm._BatchNorm) and not layer.training
            if isinstance(layer, kind) and not harmless and not frozen:
                raise UnfitLayerError(_shown(name, layer), reason)
        if isinstance(layer, nn.Embedding) and (layer.max_norm is not None or layer.scale_grad_by_freq):
            raise UnfitLayerError(_shown(name, layer), "max_norm and scale_grad_by_freq mix records: leave them out")
        if nn.utils.parametrize.is_parametrized(layer):
            raise UnfitLayerError(_shown(name, layer), "it is parametrized, and has no rule: use the plain layer")


def _refuse_unruled(name: str, module: nn.Module) -> None:
    """Refuses parameters that no call of a layer uses, or that a layer's rule does not know."""
    if isinstance(module, nn.ParameterList | nn.ParameterDict):
        raise UnfitLayerError(_shown(name, module), "it is never called: use a layer with its own forward")
    ruled = {"weight", "bias"}
    unknown = {each for each, _ in module.named_parameters(recurse=False)} - ruled
    if has_rule(module) and unknown:
        raise UnfitLayerError(_shown(name, module), f"it has {', '.join(sorted(unknown))}: use the plain layer")


def _shown(name: str, module: object) -> str:
    return f"{name or 'the model'} ({type(module).__name__})"
