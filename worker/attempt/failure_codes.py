"""The errors that end an attempt, and the closed set of codes by which they leave."""

from __future__ import annotations

import re

import torch

from core.errors import PrivacyError, TransientError
from core.parts.damage import DataDamagedError
from worker.clipping.examined import UnfitLayerError
from worker.extractors.extractor_files import ExtractorFormerError, ExtractorMissingError
from worker.messages import FailureCode, ProtocolError
from worker.models.hf.hf_loading import ModelMissingError
from worker.training import self_test
from worker.training.plan import SupersededError


class StopRequested(Exception):
    """The supervisor sent stop."""


class DeviceFailed(Exception):
    """The GPU that this attempt must run on cannot be used. Nothing else is used in its place."""


class TooLargeError(Exception):
    """The model and passes over random public records need more memory than an attempt's process has."""


class DataTooLargeError(Exception):
    """The declared records need more memory than an attempt's process has."""


class StorageFailed(Exception):
    """The job's files could not be written."""


CODES: dict[type[BaseException], FailureCode] = {
    UnfitLayerError: "model-unfit",  # before its base class
    SupersededError: "superseded",  # before its base class
    PrivacyError: "privacy-invariant",
    DataDamagedError: "data-damaged",
    ExtractorFormerError: "extractor-former",  # before its base class
    ExtractorMissingError: "extractor-missing",
    ModelMissingError: "model-missing",
    ProtocolError: "protocol",
    StorageFailed: "storage",
    DeviceFailed: "device",
    TransientError: "device",  # the GPU's own kernel cannot be made, loaded or launched there
    self_test.NumericsError: "numerics",
    TooLargeError: "model-too-large",
    DataTooLargeError: "data-too-large",
}


def failure_code(error: BaseException) -> FailureCode:
    """The code of the error that ended an attempt. Nothing else about the error leaves."""
    for kind, code in CODES.items():
        if isinstance(error, kind):
            return code
    # torch's CPU allocator raises a plain RuntimeError.
    allocation = isinstance(error, RuntimeError) and "allocat" in str(error)
    return "out-of-memory" if allocation or isinstance(error, MemoryError | torch.OutOfMemoryError) else "internal"


def failed_module(error: BaseException) -> str | None:
    """The part of the model that the check on public records refused, for the message; None for other errors."""
    if not isinstance(error, UnfitLayerError):
        return None
    return error.module if re.fullmatch(r"[A-Za-z0-9_. ()]{1,200}", error.module) else None
