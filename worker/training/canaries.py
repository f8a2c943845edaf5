"""A job's canaries: synthetic units beside its records, whose gradient is one coordinate of a tensor of their own.

A canary is what a worst-case unit would be: a gradient so long that clipping leaves C, along a coordinate where no
record has anything. It is drawn by the same sampler as the records, is clipped to the same C, gets the same noise and
the same update. No record has a part in the tensor, and no canary in the model. So a record changes the sum over all
tensors by at most C, as before, and the model is the same to the bit with and without canaries.

What is divided by (L), the rate q, the shapes of passes and every score are those of the records alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

from app.contracts.audit import CANARIES_FILE, TENSOR
from app.errors import PrivacyError
from app.privacy.canaries import coins, decoys
from worker.messages import ArtifactFile, Start
from worker.models.files import write_file


@dataclass(frozen=True)
class Canaries:
    """The canaries of a job.

    Attributes:
        included: int64, the coordinates of those that the coins put in. Canary k of the units after the records is the
            one at included[k].
        coordinates: how many there are: one for each canary, and decoys.
    """

    included: NDArray[np.int64]
    coordinates: int

    @classmethod
    def of(cls, start: Start) -> Canaries | None:
        """The canaries that a job asks for; every attempt and rank has the same ones.

        Raises:
            PrivacyError: the job claims no privacy, so there is nothing to audit.
        """
        asked = start.spec.audit
        if asked is None:
            return None
        if start.mechanism is None:
            raise PrivacyError("canaries audit a mechanism, and this job has none")
        inside = coins(start.job_id, asked.canaries)
        return cls(np.flatnonzero(inside), asked.canaries + decoys(asked.canaries))

    @property
    def units(self) -> int:
        """How many the coins put in; public."""
        return len(self.included)

    def initial(self, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensor before the first step: zeros, where the model's parameters are."""
        first = next(iter(like.values()))
        return {TENSOR: first.new_zeros(self.coordinates)}

    def clipped_sum(self, drawn: NDArray[np.int64] | None, max_grad_norm: float, device: torch.device) -> Tensor:
        """Σ of the drawn canaries' clipped gradients, −C at each one's coordinate: float64, (coordinates,). A descent
        moves the coordinate up.

        Args:
            drawn: numbers of included canaries; None: all of them.
        """
        places = self.included if drawn is None else self.included[drawn]
        total = torch.zeros(self.coordinates, dtype=torch.float64)
        total[torch.from_numpy(places)] = -max_grad_norm
        return total.to(device)


def model_of(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors without the canaries': what engines and scores read."""
    return {name: value for name, value in parameters.items() if name != TENSOR}


def write_canaries(folder: Path, released: Tensor) -> ArtifactFile:
    """Writes what the canaries left. Raises OSError if it cannot be written."""
    return write_file(folder / CANARIES_FILE, safetensors.torch.save({TENSOR: released.contiguous()}))
