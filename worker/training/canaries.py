"""A job's canaries: synthetic units beside its records, each in or out by a public coin.

They are units after all of the records', drawn by the same sampler. A record changes a step's sum by at most C whatever
canaries are drawn, as no canary depends on a record. What is divided by (L), the rate q, the shapes of passes and every
score are those of the records alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.contracts.audit import CANARIES_FILE, TENSOR
from core.contracts.stored_documents import ArtifactFile
from worker.clipping.engine import Clip
from worker.models.base import Parameters
from worker.models.model_files import write_file
from worker.statistics.base import Prepare


class Canaries(Protocol):
    """The canaries of one kind. Every attempt and rank has the same ones; all of this is public.

    Attributes:
        units: how many the coins put in. Canary k of the units after the records is the k-th of them.
        records: how many records they may add to a sum, at most.
    """

    @property
    def units(self) -> int: ...

    @property
    def records(self) -> int: ...

    def initial(self, like: Mapping[str, Tensor]) -> Parameters:
        """The tensors that they train beside the model's, before the first step."""
        ...

    def add_to(self, total: Parameters, model: Parameters, drawn: NDArray[np.int64] | None, clip: Clip) -> None:
        """Adds Σ of the drawn canaries' clipped gradients to that of the records.

        Args:
            model: the model's parameters. Call after the records' sum, in every rank.
            drawn: numbers of units; None: all of them.
        """
        ...

    def prepare(self, transform: Prepare) -> None:
        """Transforms them as the records were, after a release."""
        ...

    def left(self, first: Parameters, last: Parameters) -> Tensor:
        """What is published of them, float32, on the processor.

        Args:
            first: the initial parameters.
            last: the parameters to publish, with the canaries' own.
        """
        ...


@dataclass(frozen=True)
class Coordinates:
    """Canaries that are gradients: each is one coordinate of a tensor of their own.

    Such a canary is what a worst-case unit would be: a gradient so long that clipping leaves C, along a coordinate
    where no record has anything. No record has a part in the tensor, and no canary in the model. So the model is the
    same to the bit with and without canaries.

    Attributes:
        included: int64, the coordinates of those that the coins put in.
        coordinates: how many there are: one for each canary, and decoys.
    """

    included: NDArray[np.int64]
    coordinates: int
    records = 0

    @property
    def units(self) -> int:
        """See Canaries."""
        return len(self.included)

    def initial(self, like: Mapping[str, Tensor]) -> Parameters:
        """See Canaries.initial: zeros, where the model's parameters are."""
        first = next(iter(like.values()))
        return {TENSOR: first.new_zeros(self.coordinates)}

    def add_to(self, total: Parameters, model: Parameters, drawn: NDArray[np.int64] | None, clip: Clip) -> None:
        """See Canaries.add_to. Their sum is longer than C, so that no count of shorter ones has them."""
        total[TENSOR] = self.clipped_sum(drawn, clip.max_grad_norm, next(iter(total.values())).device)

    def clipped_sum(self, drawn: NDArray[np.int64] | None, max_grad_norm: float, device: torch.device) -> Tensor:
        """Σ of the drawn canaries' clipped gradients, −C at each one's coordinate: float64, (coordinates,). A descent
        moves the coordinate up."""
        places = self.included if drawn is None else self.included[drawn]
        total = torch.zeros(self.coordinates, dtype=torch.float64)
        total[torch.from_numpy(places)] = -max_grad_norm
        return total.to(device)

    def prepare(self, transform: Prepare) -> None:
        """See Canaries.prepare: they have no features."""

    def left(self, first: Parameters, last: Parameters) -> Tensor:
        """See Canaries.left: their tensor."""
        return last[TENSOR].float().cpu()


def model_of(parameters: Mapping[str, Tensor]) -> Parameters:
    """The tensors without the canaries': what engines and scores read."""
    return {name: value for name, value in parameters.items() if name != TENSOR}


def write_canaries(folder: Path, left: Tensor) -> ArtifactFile:
    """Writes what the canaries left. Raises OSError if it cannot be written."""
    return write_file(folder / CANARIES_FILE, safetensors.torch.save({TENSOR: left.contiguous()}))
