"""Waits for a data set whose file the service reads in the background."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from scrimp.errors import ServiceUnreachable, error_of
from scrimp.models import RegisteredDataset

POLLS_S = (0.1, 0.2, 0.5, 1.0)  # a file that is read in a second is known at once; others are asked for each second
PATIENCE = 60  # polls without an answer: the service may be restarted, and goes on reading

Progress = Callable[[int, int], object]
Call = Callable[..., Any]


def wait_until_read(call: Call, found: RegisteredDataset, progress: Progress | None) -> RegisteredDataset:
    """Polls until the data set is ready; returns it as a registration answers.

    Args:
        call: `Client.json`.
        found: the answer to the registration.
        progress: called with the bytes that are read and those of the whole file.

    Raises:
        ApiError: the file was rejected, with the same problem as a registration that is refused at once; or its owner
            withdrew it.
        ServiceUnreachable: the service does not answer for a minute. It goes on reading once it runs again.
    """
    polls = silent = 0
    while found.state == "reading":
        if progress is not None and found.reading is not None:
            progress(found.reading.bytes_read, found.reading.bytes)
        time.sleep(POLLS_S[min(polls, len(POLLS_S) - 1)])
        polls += 1
        try:
            found = RegisteredDataset.model_validate(call("GET", f"/v1/datasets/{found.id}"))
            silent = 0
        except ServiceUnreachable:
            silent += 1
            if silent == PATIENCE:
                raise
    told = found.reading
    if told is None:
        return found
    if told.problem is not None:
        raise error_of(told.problem)
    if progress is not None:
        progress(told.bytes, told.bytes)
    return found.model_copy(update={"read": told.read, "warnings": told.warnings or []})
