"""What a model is to the engine: named tensors and pure functions of them."""

from __future__ import annotations

from torch import Tensor

# Named tensors in an order that never changes for a model: it numbers the noise streams.
Parameters = dict[str, Tensor]
