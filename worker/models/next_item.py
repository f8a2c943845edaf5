"""Next-item recommenders as models: a record is one user's sequence, an output is its loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

import torch
from torch import Tensor, nn

from core.contracts.job_spec import GruRecModel, LstmRecModel, TransformerRecModel
from worker.data.passes import Batch, Pass
from worker.data.placed import passes_on
from worker.data.sequence_records import SequenceRecords
from worker.models.base import Parameters
from worker.models.dropout import Masks
from worker.models.modules import ModuleModel, allocated
from worker.models.re_attention import Errors
from worker.models.recommenders import Recommender, TransformerRec, at_place, last_place
from worker.models.recurrent import GruLayer, LstmLayer, RecurrentRec


@dataclass(frozen=True)
class NextItem(ModuleModel):
    """A module that scores all items as the next one, trained by cross-entropy.

    Attributes:
        items: the number of declared items. The module counts them from 1.
        spec: what the job requested.
    """

    items: int
    spec: TransformerRecModel | GruRecModel | LstmRecModel
    dtype: torch.dtype = field(default=torch.float32, kw_only=True)

    @property
    def features(self) -> int:  # type: ignore[override]
        return self.items

    @property
    def outputs(self) -> int:  # type: ignore[override]
        return 1

    @cached_property
    def masks(self) -> Masks | None:  # type: ignore[override]
        return Masks(self.spec.dropout) if self.spec.dropout else None

    @cached_property
    def effective_errors(self) -> Errors | None:
        """The errors from noise in the parameters, if attention is corrected; they must be set before any pass."""
        settings = self.spec.re_attention if isinstance(self.spec, TransformerRecModel) else None
        return Errors(settings) if settings is not None and settings.mode != "off" else None

    @property
    def constants(self) -> Parameters:
        """The errors that attention corrects for."""
        errors = self.effective_errors
        return {"errors.items": errors.items, "errors.blocks": torch.tensor([errors.blocks])} if errors else {}

    def module(self) -> Recommender:
        module = allocated(self._on_meta(), self.device)
        module.tie()
        return module

    def record_losses(self, module: nn.Module, records: SequenceRecords) -> Tensor:
        """The mean cross-entropy over a user's positions, (n,); 0 for a user without a second item."""
        return Recommender.record_losses(module, records.windows(self.spec.max_length))

    def evaluator(self, parameters: Parameters) -> Callable[[SequenceRecords], Tensor]:
        """Returns each record's loss, float64 (1, P). All items' scores at all positions would need too much memory."""
        module = self.filled(parameters)

        def evaluate(records: SequenceRecords) -> Tensor:
            with torch.no_grad():
                return self.record_losses(module, records).double()[None]

        return evaluate

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The outputs themselves."""
        return outputs[0]

    def errors(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The losses: the score `loss` is their mean."""
        return outputs[0]

    def ranked(
        self, parameters: Parameters, records: Batch[SequenceRecords], *, leave_out_seen: bool
    ) -> Iterator[tuple[Tensor, Pass[SequenceRecords]]]:
        """The rank ρ ≥ 1 of each user's last item among all items, given the earlier ones: float64 (P,) for each pass.

        Ties count as better. ∞ for a user with fewer than two items, and where scores are NaN. Ranks are computed from
        float64 forward passes.

        Args:
            leave_out_seen: does not rank items that the user had before, except the last one itself.
        """
        module = cast(Recommender, self.filled(parameters).double())
        for batch in passes_on(self.device, records, self.rows_per_pass, torch.float64):
            yield self._ranks_of(module, batch.records, leave_out_seen=leave_out_seen), batch

    def _ranks_of(self, module: Recommender, records: SequenceRecords, *, leave_out_seen: bool) -> Tensor:
        """Ranks of one pass's records: (P,)."""
        ids, targets = records.windows(self.spec.max_length)
        scores = _last_scores(module, ids)
        target = targets.gather(1, last_place(ids)[:, None])
        target_scores = scores.gather(1, target)
        if leave_out_seen:
            scores = records.without_seen(scores).scatter(1, target, target_scores)
        better = (~(scores[:, 1:] < target_scores)).sum(dim=1).double()  # a NaN counts as better
        is_ranked = (target[:, 0] != 0) & torch.isfinite(scores[:, 1:]).any(dim=1) & torch.isfinite(target_scores[:, 0])
        return torch.where(is_ranked, better, torch.inf)

    def next_scores(self, parameters: Parameters, records: SequenceRecords) -> Tensor:
        """The scores of all declared items as the successor of each sequence: (n, items)."""
        module = cast(Recommender, self.filled(parameters))
        length = self.spec.max_length
        pieces = records.passes(self.rows_per_pass, self.dtype)
        return torch.cat([each.only(_last_scores(module, each.records.padded(length)))[:, 1:] for each in pieces])

    def _on_meta(self) -> Recommender:
        with torch.device("meta"):
            return self._module(self.spec).to(self.dtype)

    def _module(self, settings: TransformerRecModel | GruRecModel | LstmRecModel) -> Recommender:
        items, masks, errors = self.items + 1, self.masks, self.effective_errors
        tied, positions = settings.tied, settings.loss_positions
        if isinstance(settings, TransformerRecModel):
            sizes = (items, settings.dim, settings.heads, settings.blocks, settings.max_length)
            return TransformerRec(*sizes, tied=tied, positions=positions, masks=masks, errors=errors)
        cell = GruLayer if isinstance(settings, GruRecModel) else LstmLayer
        return RecurrentRec(items, settings.dim, cell, settings.layers, tied=tied, positions=positions, masks=masks)


def _last_scores(module: Recommender, ids: Tensor) -> Tensor:
    """The scores of all items after each sequence's last one: (n, M)."""
    with torch.no_grad():
        hidden = module(ids)
        return module.output.scores(hidden if module.last else at_place(hidden, last_place(ids)))[:, 0]
