"""A study's private mean as a file. Its first trial releases it and hands it on; later trials read it.

The mean is a release that was paid for, so what a trial does with it is post-processing. float64, as it centres: a
rounded one would be another mean.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from core.contracts.hpo import MEAN_FILE
from core.contracts.stored_documents import ArtifactFile
from core.parts.damage import DataDamagedError
from worker.messages import Part
from worker.models.model_files import write_file
from worker.statistics.center import TENSOR


def write_mean(folder: Path, mean: Tensor) -> ArtifactFile:
    """Writes the mean for the study's other trials.

    Raises:
        OSError: it cannot be written.
    """
    return write_file(folder / MEAN_FILE, safetensors.torch.save({TENSOR: mean.contiguous()}))


def read_mean(part: Part, width: int) -> Tensor:
    """Reads the mean that the study's first trial released: float64 (d,).

    Args:
        width: d, the number of the model's inputs.

    Raises:
        DataDamagedError: the file is missing, differs from the recorded one, or does not fit.
    """
    try:
        content = Path(part.path).read_bytes()
        if hashlib.sha256(content).hexdigest() != part.sha256:
            raise DataDamagedError("the study's mean differs from the released one")
        mean = safetensors.torch.load(content)[TENSOR]
    except (OSError, SafetensorError, KeyError):
        raise DataDamagedError("the study's mean cannot be read") from None
    if mean.dtype != torch.float64 or mean.shape != (width,):
        raise DataDamagedError("the study's mean does not fit the features")
    return mean
