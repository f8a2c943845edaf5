"""TF32 without a GPU that has it: torch's own switches do what they do there.

While a switch allows it, the factors of products in float32 are rounded to 11 binary digits. Products and sums then are
float32's, as on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

DROPPED = 13  # of float32's 24 digits
# The places of the factors among an operation's arguments; what is added to their product keeps its digits.
MATRICES = {
    **{"mm": (0, 1), "bmm": (0, 1), "mv": (0, 1), "dot": (0, 1), "linear": (0, 1)},
    **{"addmm": (1, 2), "baddbmm": (1, 2), "addmv": (1, 2)},
    "_scaled_dot_product_flash_attention_for_cpu": (0, 1, 2),
    "_scaled_dot_product_flash_attention_for_cpu_backward": (0, 1, 2, 3),
}
CONVOLUTIONS = {"convolution": (0, 1), "convolution_backward": (0, 1, 2)}


def rounded(numbers: Tensor) -> Tensor:
    """The nearest numbers of 11 digits, the even one of two; in float32.

    >>> [(float(each) - 1) * 2**11 for each in rounded(1 + torch.tensor([1.0, 1.5, 3.0]) / 2**11)]
    [0.0, 2.0, 4.0]
    """
    bits = numbers.contiguous().view(torch.int32)
    odd = (bits >> DROPPED) & 1
    near = (bits + odd + (2 ** (DROPPED - 1) - 1)) & ~(2**DROPPED - 1)
    return torch.where(torch.isfinite(numbers), near.view(torch.float32), numbers)


def is_allowed(name: str) -> bool:
    """True if torch's switches let a GPU compute this operation in TF32."""
    if name in CONVOLUTIONS:
        return torch.backends.cudnn.allow_tf32
    return torch.get_float32_matmul_precision() != "highest"


def factors_of(name: str, arguments: Sequence[Any]) -> tuple[Tensor, ...]:
    """The factors in float32 of an operation, if it is a product."""
    places = (MATRICES | CONVOLUTIONS).get(name.removesuffix("_"), ())
    return tuple(arguments[at] for at in places if arguments[at].dtype == torch.float32)


def multiplied(name: str, arguments: Sequence[Any]) -> list[Any]:
    """The arguments of an operation as a GPU multiplies them."""
    factors = factors_of(name, arguments) if is_allowed(name.removesuffix("_")) else ()
    return [rounded(each) if any(each is factor for factor in factors) else each for each in arguments]


class EmulatedTf32(TorchDispatchMode):
    """A processor whose products follow the switches of a GPU.

    Attributes:
        rounded, exact: how many products in float32 had rounded factors, and how many had not.
        mixed: convolutions in TF32 while products of matrices were by IEEE.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rounded = self.exact = self.mixed = 0

    def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function._schema.name.removeprefix("aten::").removesuffix("_")
        if factors_of(name, args):
            allowed = is_allowed(name)
            self.rounded, self.exact = self.rounded + allowed, self.exact + (not allowed)
            self.mixed += name in CONVOLUTIONS and allowed and not is_allowed("mm")
        return function(*multiplied(name, args), **(kwargs or {}))
