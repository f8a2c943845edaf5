"""What a model is to the engine: named tensors and pure functions of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

# Named tensors in an order that never changes for a model: it numbers the noise streams.
Parameters = dict[str, Tensor]


class Model(ABC):
    """From d features to K outputs. Each kind works on its own kind of records (worker.data.parts).

    Classification (K ≥ 2 classes, also two): loss −log softmax(f)_y. Regression (K = 1): loss ½(f − y)².

    Attributes:
        features: d.
        outputs: K; 1 means regression.
        physical_batch_size: how many records to work on at once, from public sizes; None: what suits the records.
    """

    features: int
    outputs: int
    physical_batch_size: int | None = None

    @property
    def classification(self) -> bool:
        return self.outputs > 1

    @abstractmethod
    def init(self, key: bytes | None = None) -> Parameters:
        """The first parameters, float64: a function of the key and of public sizes."""

    @abstractmethod
    def forward(self, parameters: Parameters, records: Any) -> Tensor:
        """Outputs f, float64 (K, n): logits, or the prediction. Records are the fast dimension: K is small."""

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

        An output that is not a number is never correct. Logits come from passes in float64 and are rounded here: the
        last digits of a product depend on how large its batch is, and with them, where two classes are as likely, one
        record's class on who else is scored.
        """
        return (outputs.float().argmax(dim=0) == labels) & torch.isfinite(outputs).all(dim=0)
