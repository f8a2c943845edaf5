"""The errors that end an attempt, and the closed set of codes by which they leave."""

from __future__ import annotations

import torch

from app.errors import PrivacyError
from app.formats.stored import DataDamagedError
from worker.extractors.files import ExtractorMissingError
from worker.messages import FailureCode, ProtocolError
from worker.models.hf.loading import ModelMissingError
from worker.training import self_test


class StopRequested(Exception):
    """The supervisor sent stop."""


class DeviceFailed(Exception):
    """The GPU that this attempt must run on cannot be used. Nothing else is used in its place."""


class StorageFailed(Exception):
    """The model's files could not be written."""


CODES: dict[type[BaseException], FailureCode] = {
    PrivacyError: "privacy-invariant",
    DataDamagedError: "data-damaged",
    ExtractorMissingError: "extractor-missing",
    ModelMissingError: "model-missing",
    ProtocolError: "protocol",
    StorageFailed: "storage",
    DeviceFailed: "device",
    self_test.NumericsError: "numerics",
}


def failure_code(error: BaseException) -> FailureCode:
    """The code of the error that ended an attempt. Nothing else about the error leaves."""
    for kind, code in CODES.items():
        if isinstance(error, kind):
            return code
    # torch's CPU allocator raises a plain RuntimeError.
    allocation = isinstance(error, RuntimeError) and "allocat" in str(error)
    return "out-of-memory" if allocation or isinstance(error, MemoryError | torch.OutOfMemoryError) else "internal"
