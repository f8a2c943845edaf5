"""Clients of S3. Credentials, region and endpoint come from the process's environment (AWS_…) or the machine's role."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.errors import ServiceError, Unavailable

if TYPE_CHECKING:
    from obstore.store import S3Store

RETRIES = 3
FACTS = {"client_options": {"allow_http": True}, "retry_config": {"max_retries": RETRIES}}


def client(url: str, encryption: str = "", kms_key: str = "") -> S3Store:
    """A client for what lies below s3://bucket/prefix.

    Args:
        encryption: what the store is asked to encrypt new objects with: "AES256" or "aws:kms"; empty: its own default.
        kms_key: the key's id, for "aws:kms"; empty: the account's own key.

    Raises:
        ServiceError: the package is not installed.
    """
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    return client_of(bucket, prefix.strip("/"), encryption, kms_key)


def client_of(bucket: str, prefix: str = "", encryption: str = "", kms_key: str = "") -> S3Store:
    """A client for one bucket, whose name and prefix are no address: nothing in them chooses another server."""
    try:
        from obstore.store import S3Store  # noqa: PLC0415
    except ImportError:
        raise ServiceError("buckets need the extra: pip install 'scrimp[s3]'") from None
    options: dict[str, Any] = {}
    if encryption:
        options["server_side_encryption"] = encryption
    if kms_key:
        options["sse_kms_key_id"] = kms_key
    return S3Store(bucket, prefix=prefix or None, **FACTS, **options)  # type: ignore[arg-type]


class answers:  # noqa: N801 - reads as a block's condition
    """Turns the store's own errors into Unavailable: a retry may succeed. Others pass."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None or isinstance(error, ServiceError | OSError):
            return
        from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError  # noqa: PLC0415

        if isinstance(error, BaseError) and not isinstance(error, AlreadyExistsError | PreconditionError):
            raise Unavailable("the object store does not answer: try again in a moment") from error
