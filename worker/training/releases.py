"""A job's releases about the training part before its first step."""

from __future__ import annotations

from torch import Tensor

from app.contracts.dataset_spec import Features
from app.contracts.job_spec import JobSpec
from app.errors import PrivacyError
from app.privacy.mechanism import MechanismConfig
from worker.messages import Shape
from worker.models.base import Model
from worker.training.before import Release
from worker.training.center import Centering
from worker.training.frequencies import ItemFrequencies


def releases_of(
    model: Model,
    spec: JobSpec,
    mechanism: MechanismConfig | None,
    features: Features,
    shape: Shape,
    mean: Tensor | None = None,
) -> tuple[Release, ...]:
    """The statistics that a job releases, in the order of their lines on the bill.

    Args:
        mean: see build_plan.

    Raises:
        PrivacyError: the model needs one that the job may not release, or nobody makes one that was charged.
    """
    found: tuple[Release | None, ...] = (
        ItemFrequencies.of(model, mechanism, features, shape.records_train),
        Centering.of(spec, mechanism, shape, mean),
    )
    releases = tuple(each for each in found if each is not None)
    if sum(each.charged for each in releases) != len(mechanism.before if mechanism else ()):
        raise PrivacyError("a release that was charged is made by nobody here")
    return releases
