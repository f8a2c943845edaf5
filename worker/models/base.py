"""What the engine needs from a model: named tensors and pure functions of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from core.contracts.metrics import ClipRatios
from core.privacy.numerics import ROW_UNIT
from core.privacy.two_class_answers import answer_logits
from worker.data.passes import Batch, Pass
from worker.data.placed import CPU, passes_on

# Named tensors. A model's order never changes, because it numbers the noise streams.
Parameters = dict[str, Tensor]


class Shaped(ABC):
    """From d features to K outputs: fields of a model, or computed from its own.

    Attributes:
        features: d.
        outputs: K; 1 means regression.
    """

    features: int
    outputs: int


@dataclass(frozen=True, kw_only=True)
class Model(Shaped):
    """From d features to K outputs. Each kind has its own kind of records (worker.data.loaded_parts).

    Classification (K ≥ 2 classes, also for two): loss −log softmax(f)_y. Regression (K = 1): loss ½(f − y)².

    Attributes:
        rows_per_pass: P of every pass over records, for every caller; fixed at admission.
        dtype: of training passes. Score passes use float64, except that losses of next items and next tokens use
            `dtype`.
        device: of passes and modules.
        tf32: training passes of a GPU may compute products of float32 in TF32 (worker.clipping.precision).
        class_weights: what a training loss is multiplied by, before its gradient is clipped; empty: 1.
        clip_ratios: of two classes, what answers undo (core.privacy.two_class_answers); None: answers are the outputs.
    """

    rows_per_pass: int = ROW_UNIT
    dtype: torch.dtype = torch.float64
    device: torch.device = CPU
    tf32: bool = False
    class_weights: tuple[float, ...] = ()
    clip_ratios: ClipRatios | None = None

    @property
    @abstractmethod
    def kind(self) -> str:
        """Its name in the catalogue."""

    @abstractmethod
    def requested(self) -> dict[str, Any]:
        """What its card says of the job's settings. Kind, settings and the data set's declaration build it again."""

    @property
    def classification(self) -> bool:
        """True if the model predicts classes."""
        return self.outputs > 1

    @abstractmethod
    def init(self, key: bytes | None = None) -> Parameters:
        """The initial parameters, float64, on the processor: a function of the key and public sizes."""

    @property
    @abstractmethod
    def numbers(self) -> int:
        """How many numbers are trained."""

    @abstractmethod
    def evaluator(self, parameters: Parameters) -> Callable[[Any], Tensor]:
        """Returns the function from one pass's P records to outputs f, float64 (K, P): logits, or the prediction.

        Records are the fast dimension because K is small.
        """

    def evaluated(self, parameters: Parameters, records: Batch[Any]) -> Iterator[tuple[Tensor, Pass[Any]]]:
        """The outputs (K, P) of each pass over any number of rows, empty ones included."""
        evaluator = self.evaluator(parameters)
        for batch in passes_on(self.device, records, self.rows_per_pass, torch.float64):
            yield evaluator(batch.records), batch

    def forward(self, parameters: Parameters, records: Batch[Any]) -> Tensor:
        """Outputs for n public records, or those of one's own: float64 (K, n), on the processor."""
        pieces = [each.only(outputs, 1).cpu() for outputs, each in self.evaluated(parameters, records)]
        return torch.cat([torch.zeros(self.outputs, 0, dtype=torch.float64), *pieces], dim=1)

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Each record's loss, (n,), from outputs (K, n)."""
        if self.classification:
            return torch.logsumexp(outputs, dim=0) - outputs.gather(0, labels[None])[0]
        return 0.5 * self.errors(outputs, labels)

    def weights_of(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        """Each record's class weight, (n,): a function of its own label."""
        return torch.tensor(self.class_weights, dtype=dtype, device=labels.device)[labels]

    def errors(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The values, (n,), at least 0, whose mean is the score `loss`: losses of answers, or (f − y)²."""
        if self.classification:
            return self.losses(answers(outputs, self.clip_ratios), labels)
        return (outputs[0] - labels).square()

    def correct(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """True where the largest logit (the first of ties) is the label's, bool (n,). Classification only.

        A NaN output is never correct. All passes have one shape, so a record's class does not depend on others.
        """
        return (outputs.argmax(dim=0) == labels) & torch.isfinite(outputs).all(dim=0)


def answers(outputs: Tensor, ratios: ClipRatios | None) -> Tensor:
    """The outputs (K, n) whose softmax a model answers: those of two classes that undo the clipping, or as they are."""
    if ratios is None:
        return outputs
    logits = answer_logits((outputs[1] - outputs[0]).double().cpu().numpy(), ratios)
    half = torch.from_numpy(logits).to(outputs.device) / 2.0
    return torch.stack([-half, half])
