"""Waits for a data set whose file the service reads in the background."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from scrimp.errors import ApiError, ServiceUnreachable, error_of
from scrimp.models import ReadingProgress, RegisteredDataset
from scrimp.wire import Wire, in_path

POLLS_S = (0.1, 0.2, 0.5, 1.0)  # a file that is read in a second is known at once; others are followed
PATIENCE = 60  # polls without an answer: the service may be restarted, and goes on reading

Progress = Callable[[int, int], object]


def wait_until_read(client: Wire, dataset: RegisteredDataset, progress: Progress | None) -> RegisteredDataset:
    """Follows the data set's events until it is ready; returns it as a registration answers. Where there is no stream,
    it polls.

    Args:
        dataset: the answer to the registration.
        progress: called with the bytes that are read and those of the whole file.

    Raises:
        ApiError: the file was rejected, with the same problem as a registration that is refused at once; or its owner
            withdrew it.
        ServiceUnreachable: the service does not answer for a minute. It goes on reading once it runs again.
    """
    polls = silent = 0
    while dataset.state == "reading":
        if progress is not None and dataset.reading is not None:
            progress(dataset.reading.bytes_read, dataset.reading.bytes)
        if polls < len(POLLS_S) - 1 or not _followed(client, dataset.id, progress):
            time.sleep(POLLS_S[min(polls, len(POLLS_S) - 1)])
        polls += 1
        try:
            dataset = RegisteredDataset.model_validate(client.json("GET", f"/v1/datasets/{dataset.id}"))
            silent = 0
        except ServiceUnreachable:
            silent += 1
            if silent == PATIENCE:
                raise
    reading = dataset.reading
    if reading is None:
        return dataset
    if reading.problem is not None:
        raise error_of(reading.problem)
    if progress is not None:
        progress(reading.bytes, reading.bytes)
    return dataset.model_copy(update={"read": reading.read, "warnings": reading.warnings or []})


def _followed(client: Wire, dataset_id: str, progress: Progress | None) -> bool:
    """Follows one stream of events to its end. Returns True if it was the last one; False: ask, and try again."""
    with suppress(ApiError, ServiceUnreachable):  # such as no place for one more stream
        for kind, data in client.server_sent(f"/v1/datasets/{in_path(dataset_id)}/events"):
            if kind == "end":
                return True
            reading = ReadingProgress.model_validate_json(data).reading
            if progress is not None and reading is not None:
                progress(reading.bytes_read, reading.bytes)
    return False
