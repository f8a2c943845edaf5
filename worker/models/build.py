"""From a job's specification to its model."""

from __future__ import annotations

import torch

from app.contracts.job_spec import JobSpec
from app.errors import PrivacyError
from worker.attempt.messages import Shape
from worker.models.base import Model
from worker.models.linear import Linear
from worker.models.networks import Network


def build_model(spec: JobSpec, shape: Shape) -> Model:
    """The model that a job trains on data of a public shape.

    Raises:
        PrivacyError: admission let through what does not fit.
    """
    if spec.model.kind == "linear":
        return Linear(shape.features, shape.outputs, bias=spec.model.bias)
    if shape.sparse:
        raise PrivacyError("this kind of model takes dense features")
    dtype = torch.float64 if spec.runtime.dtype == "float64" else torch.float32
    return Network(shape.features, shape.outputs, spec.model, dtype)
