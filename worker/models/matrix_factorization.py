"""Matrix factorization: predicts a rating from a vector of the user and one of the item."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from worker.data.ratings import RatingRecords
from worker.models.base import Model, Parameters
from worker.noise.fills import KeyedInit


@dataclass(frozen=True)
class MatrixFactorization(Model):
    """f = m + ⟨p_u, q_i⟩ (+ b_u + c_i), loss ½ (f − y)²; m is the middle of the public scale.

    Attributes:
        users, items: the declared numbers of both.
        dim: of the vectors.
        scale: the lowest and the highest rating, public. Scores use predictions clamped to it.
        bias: adds b_u and c_i. (A global bias would need a far smaller learning rate than these.)
        init_std: p and q start as Gaussians with this standard deviation. At zero they would have no gradient.

    Source: Koren, Bell & Volinsky 2009, "Matrix factorization techniques for recommender systems".
    """

    users: int
    items: int
    dim: int
    scale: tuple[float, float]
    bias: bool = True
    init_std: float = 0.1

    @property
    def features(self) -> int:  # type: ignore[override]
        return self.users + self.items

    @property
    def outputs(self) -> int:  # type: ignore[override]
        return 1

    @property
    def kind(self) -> str:
        return "matrix_factorization"

    def requested(self) -> dict[str, Any]:
        """See Model.requested."""
        return {"dim": self.dim, "bias": self.bias}

    def init(self, key: bytes | None = None) -> Parameters:
        """float64: users (U, dim), items (M, dim), and with biases user_bias (U,), item_bias (M,)."""
        init = KeyedInit(key)
        sizes = {"users": self.users, "items": self.items}
        parameters = {
            name: init.normal(number, (size, self.dim), self.init_std)
            for number, (name, size) in enumerate(sizes.items())
        }
        if self.bias:
            zeros = {"user_bias": self.users, "item_bias": self.items}
            parameters |= {name: torch.zeros(size, dtype=torch.float64) for name, size in zeros.items()}
        return parameters

    @property
    def numbers(self) -> int:
        """See Model.numbers."""
        return (self.users + self.items) * (self.dim + self.bias)

    def evaluator(self, parameters: Parameters) -> Callable[[RatingRecords], Tensor]:
        return partial(self.pass_outputs, parameters)

    def pass_outputs(self, parameters: Parameters, records: RatingRecords) -> Tensor:
        """Predictions f for one pass's records, float64 (1, P), not yet clamped to the scale."""
        users, items = records.users, records.items
        outputs = (parameters["users"][users] * parameters["items"][items]).sum(dim=1) + sum(self.scale) / 2
        if self.bias:
            outputs += parameters["user_bias"][users] + parameters["item_bias"][items]
        return outputs[None]

    def residuals(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """∂loss/∂f = f − y, float64 (n,)."""
        return outputs[0] - labels

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Each record's loss, float64 (n,)."""
        return 0.5 * self.residuals(outputs, labels).square()

    def errors(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(f − y)² for predictions clamped to the scale, float64 (n,): at most the scale's length squared."""
        return (outputs[0].clamp(*self.scale) - labels).square()
