"""What a model is to the engine: named tensors and pure functions of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from worker.data.passes import Batch, Pass

# Named tensors in an order that never changes for a model: it numbers the noise streams.
Parameters = dict[str, Tensor]


class Model(ABC):
    """From d features to K outputs. Each kind works on its own kind of records (worker.data.parts).

    Classification (K ≥ 2 classes, also two): loss −log softmax(f)_y. Regression (K = 1): loss ½(f − y)².

    Attributes:
        features: d.
        outputs: K; 1 means regression.
        rows_per_pass: P of every pass over records, whoever makes it; fixed at admission.
        dtype: of the passes of training. Those of scores are in float64, but for the losses of next items and of next
            tokens, which are computed in `dtype`.
    """

    features: int
    outputs: int
    rows_per_pass: int
    dtype: torch.dtype = torch.float64

    @property
    def classification(self) -> bool:
        return self.outputs > 1

    @abstractmethod
    def init(self, key: bytes | None = None) -> Parameters:
        """The first parameters, float64: a function of the key and of public sizes."""

    @abstractmethod
    def evaluator(self, parameters: Parameters) -> Callable[[Any], Tensor]:
        """What makes outputs f of the P records of one pass, float64 (K, P): logits, or the prediction. Records are the
        fast dimension: K is small."""

    def evaluated(self, parameters: Parameters, records: Batch[Any]) -> Iterator[tuple[Tensor, Pass[Any]]]:
        """The outputs (K, P) of each pass over any number of records, those of rows that fill up included."""
        evaluator = self.evaluator(parameters)
        for each in records.passes(self.rows_per_pass, torch.float64):
            yield evaluator(each.records), each

    def forward(self, parameters: Parameters, records: Batch[Any]) -> Tensor:
        """Outputs of n records: float64 (K, n)."""
        pieces = [outputs[:, : each.count] for outputs, each in self.evaluated(parameters, records)]
        return torch.cat([torch.zeros(self.outputs, 0, dtype=torch.float64), *pieces], dim=1)

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Each record's loss, (n,), of outputs (K, n)."""
        if self.classification:
            return torch.logsumexp(outputs, dim=0) - outputs.gather(0, labels[None])[0]
        return 0.5 * self.errors(outputs, labels)

    def errors(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """What the score `loss` is the mean of, (n,), at least 0: the loss of classes, else (f − y)²."""
        return self.losses(outputs, labels) if self.classification else (outputs[0] - labels).square()

    def correct(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Whether the largest logit (the first of equals) is the label's, bool (n,). Classification only.

        An output that is not a number is never correct. Passes have one shape, so that a record's class is its own.
        """
        return (outputs.argmax(dim=0) == labels) & torch.isfinite(outputs).all(dim=0)
