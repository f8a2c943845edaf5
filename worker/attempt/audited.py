"""What an audited job's canaries show, computed from the file that its attempt published."""

from __future__ import annotations

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from app.db.models import Job
from core.contracts.audit import TENSOR
from core.contracts.job_spec import JobSpec
from core.errors import PrivacyError
from core.privacy.canary_bound import Finding, decoys, found
from core.privacy.mechanism import MechanismConfig
from core.privacy.quoted import Quoted


def finding_of(job: Job, canaries: bytes | None) -> Finding | None:
    """What the canaries show; None for a job that asks for none.

    Args:
        canaries: the file of them that the attempt published, if it did.

    Raises:
        PrivacyError: the attempt published no canaries, or others.
    """
    audit, charged = JobSpec.model_validate(job.spec).audit, Quoted.of(job.quote).epsilon
    if audit is None:
        return None
    if charged is None:
        raise PrivacyError("a job without an ε has nothing to audit")
    mechanism = MechanismConfig.model_validate(job.mechanism)
    released = _released(canaries, audit.canaries + decoys(audit.canaries, audit.kind))
    return found(released, job.id, audit.canaries, mechanism.training.event, charged, audit.kind)


def _released(canaries: bytes | None, numbers: int) -> NDArray[np.float64]:
    """The numbers that the attempt published of its canaries and decoys."""
    try:
        released = safetensors.numpy.load(canaries or b"")[TENSOR].astype(np.float64)
    except (SafetensorError, KeyError, ValueError):
        raise PrivacyError("an audited attempt did not publish its canaries") from None
    if released.shape != (numbers,):
        raise PrivacyError("an audited attempt published other canaries than its job asks for")
    return released
