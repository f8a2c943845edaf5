"""Secrets: as few processes as possible hold each; it comes from the environment or from a file of mode 0600.

    api_key_pepper   the API     keys are stored as HMACs under it
    session_key      the API     signs dashboard sign-ins
    data_hmac_key    the API     keyed hashes of contents, and the hold-out split
    webhook_key      the API and the relay: webhooks' signing secrets are stored encrypted under it
    parts_key        the API and the worker: wraps the data keys of sealed files (app.storage.seals)
    noise_secret     the worker  every job's noise and sampling keys are derived from it
    signing_key      the relay   Ed25519, signs certificates

A file holds the secret on its first line and, after a rotation (app.renewal.rotation), older ones below, the newest
first. `SCRIMP_SECRET_<NAME>` (hex) overrides the file. A missing secret is an error and never gets a default: `scrimp
serve` makes the files of an embedded home once, and none where the operator provides them (`SCRIMP_SECRETS_DIR`).
"""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from app.settings import Settings
from core.errors import ServiceError

NAMES = ("api_key_pepper", "session_key", "data_hmac_key", "webhook_key", "parts_key", "noise_secret", "signing_key")
SECRET_BYTES = 32


class SecretError(ServiceError):
    """A secret is missing, malformed, or readable by others."""

    code = "secret-unusable"


def load_secret(settings: Settings, name: str) -> bytes:
    """The 32 bytes of secret `name` that are in use.

    Raises:
        SecretError: as `load_secrets`.
    """
    return load_secrets(settings, name)[0]


def load_secrets(settings: Settings, name: str) -> tuple[bytes, ...]:
    """Secret `name`: the one in use first, then replaced ones that are still needed.

    Raises:
        SecretError: it is missing, not 32 bytes of hex, or its file is readable by others.
    """
    text = os.environ.get(f"SCRIMP_SECRET_{name.upper()}")
    if text is None:
        path = settings.effective_secrets_dir / name
        try:
            mode = path.stat().st_mode
            text = path.read_text()
        except OSError as error:
            raise SecretError(f"the secret {name} is missing: {path} ({error.strerror})") from None
        if mode & 0o077:
            raise SecretError(f"{path} is readable by others: run chmod 600 on it, and assume that the secret is known")
    try:
        secrets_read = tuple(bytes.fromhex(line) for line in text.split())
    except ValueError:
        raise SecretError(f"the secret {name} is not hexadecimal") from None
    if not secrets_read or any(len(each) != SECRET_BYTES for each in secrets_read):
        raise SecretError(f"the secret {name} is not {SECRET_BYTES} bytes long")
    return secrets_read


def at_epoch(secret: bytes, epoch: str | None) -> bytes:
    """The noise secret since the last restore of a backup: a new one for each epoch; the stored one
    before the first."""
    if epoch is None:
        return secret
    return HKDF(SHA256(), SECRET_BYTES, salt=None, info=b"scrimp/v1/noise-epoch/" + epoch.encode()).derive(secret)


def secret_id(secret: bytes) -> str:
    """A public name of a secret: it identifies the secret and reveals nothing about it."""
    return hashlib.sha256(b"scrimp/secret-id/v1" + secret).hexdigest()[:16]


def ensure_secrets(settings: Settings) -> None:
    """Makes the secret files that an embedded home lacks. Existing ones are never touched.

    If `secrets_dir` is set, an operator provides each process with its own secrets: nothing is made.
    """
    if settings.secrets_dir is not None:
        return
    folder = settings.effective_secrets_dir
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in NAMES:
        write_private(folder / name, secrets.token_hex(SECRET_BYTES) + "\n", overwrite=False)


def write_private(path: Path, text: str, *, overwrite: bool) -> bool:
    """Writes a file of mode 0600, completely or not at all. Returns True if it was written."""
    if path.exists() and not overwrite:
        return False
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    if path.exists() and os.geteuid() == 0:  # keep the owner, for example where root renews a container's secret
        os.fchown(descriptor, path.stat().st_uid, path.stat().st_gid)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    return True
