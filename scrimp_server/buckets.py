"""Tries a bucket as the service uses it: put if absent, replace if unchanged, read, delete. Leaves nothing there."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from app.storage.s3 import client
from core.errors import ServiceError
from core.ids import new_id

if TYPE_CHECKING:
    from obstore.store import S3Store

FIRST, SECOND = b"scrimp doctor", b"scrimp doctor, again"
WHOLE_SECOND = 1.0  # a bucket says when an object was written without fractions of a second


class UnfitError(Exception):
    """The bucket does not do what the service needs."""


def skew_of(url: str, encryption: str, kms_key: str) -> float:
    """Tries everything, with an object of its own. Returns how far this machine's clock is ahead of the bucket's, in
    seconds, 0 if it is within the bucket's whole second.

    Raises:
        UnfitError: what does not work.
    """
    try:
        store, key = client(url, encryption, kms_key), f"doctor/{new_id('try')}"
    except ServiceError as error:
        raise UnfitError(error.message) from None
    try:
        return _tried(store, key)
    finally:
        with suppress(Exception):  # it may be the deletion that failed
            _delete(store, key)


def _tried(store: S3Store, key: str) -> float:
    from obstore import get, put
    from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

    step = "written"
    try:
        time_before = time.time()
        result = put(store, key, FIRST, mode="create", use_multipart=False)
        time_after = time.time()
        step = "read"
        answer = get(store, key)
        if bytes(answer.bytes()) != FIRST:
            raise UnfitError("an object is not read as it was written")
        written_at = answer.meta["last_modified"].timestamp()
        step = "written on conditions"
        with suppress(AlreadyExistsError):
            put(store, key, SECOND, mode="create", use_multipart=False)
            raise UnfitError("it writes over an object that must not exist (If-None-Match)")
        put(store, key, SECOND, mode={"e_tag": result["e_tag"] or ""}, use_multipart=False)
        with suppress(PreconditionError):
            put(store, key, FIRST, mode={"e_tag": result["e_tag"] or ""}, use_multipart=False)
            raise UnfitError("it writes over an object that was replaced meanwhile (If-Match)")
        step = "deleted"
        _delete(store, key)
        with suppress(FileNotFoundError):
            get(store, key)
            raise UnfitError("a deleted object is still there")
    except (BaseError, FileNotFoundError, PermissionError) as error:
        raise UnfitError(f"objects cannot be {step} there ({type(error).__name__})") from None
    if time_before - WHOLE_SECOND <= written_at <= time_after:
        return 0.0
    return time_after - written_at if written_at < time_before else time_before - written_at


def _delete(store: S3Store, key: str) -> None:
    from obstore import delete

    delete(store, [key])
