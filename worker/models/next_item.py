"""Recommenders of next items as models: a record is one user's sequence, an output its loss."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from app.contracts.job_spec import TransformerRecModel
from worker.data.sequences import SequenceRecords
from worker.models.base import Parameters
from worker.models.dropout import Masks
from worker.models.memory import record_bytes
from worker.models.modules import ModuleModel
from worker.models.recommenders import TransformerRec


@dataclass(frozen=True)
class NextItem(ModuleModel):
    """A module that scores all items as the next one, trained on cross-entropy.

    Attributes:
        items: how many are declared. In the module they count from 1.
        spec: what the job asked for.
    """

    items: int
    spec: TransformerRecModel
    dtype: torch.dtype = torch.float32

    @property
    def features(self) -> int:  # type: ignore[override]
        return self.items

    @property
    def outputs(self) -> int:  # type: ignore[override]
        return 1

    @cached_property
    def masks(self) -> Masks | None:  # type: ignore[override]
        return Masks(self.spec.dropout) if self.spec.dropout else None

    def module(self) -> TransformerRec:
        made = self._on_meta().to_empty(device="cpu")
        if self.spec.tied:
            made.tie()
        return made

    def record_losses(self, module: nn.Module, records: SequenceRecords) -> Tensor:
        """The mean cross-entropy over a user's positions; 0 for a user without a second item. (n,)"""
        return TransformerRec.record_losses(module, records.windows(self.spec.max_length))

    def forward(self, parameters: Parameters, records: SequenceRecords) -> Tensor:
        """Each record's loss, float64 (1, n): the scores of all items at all positions are too many to be kept."""
        module = self.filled(parameters)
        with torch.no_grad():
            pieces = [self.record_losses(module, each) for each in records.split(self.physical_batch_size)]
        return torch.cat([torch.zeros(0), *pieces]).double()[None]

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return outputs[0]

    def errors(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The score `loss` is the mean of the losses."""
        return outputs[0]

    @cached_property
    def physical_batch_size(self) -> int:  # type: ignore[override]
        asked = self.spec
        ids = torch.empty(1, asked.max_length, dtype=torch.int64, device="meta")
        layers = record_bytes(self._on_meta().eval(), ids) * self.dtype.itemsize // ids.element_size()
        scores = (self.items + 1) * (asked.max_length if asked.loss_positions == "all" else 1)
        attention = asked.blocks * asked.heads * asked.max_length**2
        return self.rows_of(layers + 2 * (scores + attention) * self.dtype.itemsize)

    def _on_meta(self) -> TransformerRec:
        asked = self.spec
        with torch.device("meta"):
            made = TransformerRec(
                self.items + 1,
                asked.dim,
                asked.heads,
                asked.blocks,
                asked.max_length,
                tied=asked.tied,
                positions=asked.loss_positions,
                masks=self.masks,
            )
        return made.to(self.dtype)
