"""Who may open what is sealed: data keys, wrapped by the service's `parts_key` (see core.parts.sealed).

The API and the supervisors of attempts hold `parts_key`. The process that parses a file, and that of an attempt, get
the data keys of their own files alone. With SCRIMP_ENCRYPT_PARTS new files are sealed. Sealed files are read with or
without it.
"""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from app.secrets import SecretError, load_secrets, secret_id
from app.settings import Settings
from core.errors import Unavailable
from core.parts.damage import DataDamagedError
from core.parts.sealed import DataKey, Header, Named, header_of, readable

NAME = "parts_key"
ID_BYTES, NONCE_BYTES, KEY_BYTES = 16, 12, 32


class KeyMissing(Unavailable):
    """A file is sealed under a parts key that this process does not have. Nothing was read."""


class Seals:
    """Makes data keys, and opens those of files. The secret is read each time, so a rotation is seen at once."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @property
    def wanted(self) -> bool:
        """Returns True if new files are to be sealed."""
        return self._settings.encrypt_parts

    def new(self) -> DataKey | None:
        """A new data key, for files that are written together; None if they are not to be sealed.

        Raises:
            KeyMissing: there is no `parts_key`.
        """
        return self.made() if self.wanted else None

    def made(self) -> DataKey:
        """A new data key, whatever the setting. Raises like `new`."""
        return self._wrapped(os.urandom(KEY_BYTES))

    def key_of(self, path: Path) -> DataKey | None:
        """The data key of a file, wrapped under the parts key in use; None if the file is not sealed, or not there.

        Raises:
            DataDamagedError: its header was changed.
            KeyMissing: it is sealed under a parts key that is not here.
        """
        try:
            header = header_of(path)
        except OSError:  # whoever reads it finds out
            return None
        if header is None:
            return None
        return self._wrapped(opened(header, self._known(header)))

    def readable(self, path: Path) -> Named:
        """A file as its reader takes it, sealed or not. Raises like `key_of`."""
        seal = self.key_of(path)
        return readable(path, None if seal is None else seal.key)

    def fits(self, path: Path) -> bool:
        """Returns True if a file is there, and as new ones are: sealed and ours, or in plaintext."""
        try:
            return path.is_file() and (self.key_of(path) is not None) == self.wanted
        except (KeyMissing, DataDamagedError):
            return False

    def _known(self, header: Header) -> tuple[bytes, ...]:
        try:
            return load_secrets(self._settings, NAME)
        except SecretError as error:
            raise missing(header, str(error)) from None

    def _wrapped(self, key: bytes) -> DataKey:
        try:
            return DataKey(key, wrap(key, load_secrets(self._settings, NAME)[0]))
        except SecretError as error:
            raise KeyMissing(f"what is stored is to be sealed (SCRIMP_ENCRYPT_PARTS), but {error}") from None


def wrap(key: bytes, secret: bytes) -> bytes:
    """A data key as it lies in a file's header, wrapped by AES-256-GCM under a parts key."""
    name, nonce = secret_id(secret).encode(), os.urandom(NONCE_BYTES)
    return name + nonce + AESGCM(_wrapping(secret)).encrypt(nonce, key, name)


def opened(header: Header, keys: tuple[bytes, ...]) -> bytes:
    """The data key of a sealed file.

    Args:
        keys: the parts keys.

    Raises:
        DataDamagedError: the header was changed.
        KeyMissing: none of them is the file's.
    """
    for wrapped in header.wraps:
        if (data_key := opens(wrapped, keys)) is not None:
            return data_key
    ids = list(map(secret_id, keys))
    if not set(ids).isdisjoint(names_of(header)):
        raise DataDamagedError("the header of a sealed file was changed")
    raise missing(header, f"{NAME} holds {', '.join(ids)}")


def opens(wrap: bytes, keys: tuple[bytes, ...]) -> bytes | None:
    """The data key in a wrap; None if none of these parts keys opens it."""
    name, nonce, sealed = wrap[:ID_BYTES], wrap[ID_BYTES : ID_BYTES + NONCE_BYTES], wrap[ID_BYTES + NONCE_BYTES :]
    for key in keys:
        if secret_id(key).encode() == name:
            try:
                return AESGCM(_wrapping(key)).decrypt(nonce, sealed, name)
            except InvalidTag:
                return None
    return None


def names_of(header: Header) -> list[str]:
    """The public names of the parts keys under which a file's data key is wrapped."""
    return [each[:ID_BYTES].decode("ascii", "replace") for each in header.wraps if any(each)]


def missing(header: Header, ids: str) -> KeyMissing:
    """The error for a file whose parts key is not here."""
    names = " or ".join(names_of(header)) or "nothing"
    return KeyMissing(
        f"a stored file is sealed under the parts key {names}, and {ids}: put that key back as a line of {NAME} "
        "(docs/secrets.md), from a backup of the secrets"
    )


def _wrapping(secret: bytes) -> bytes:
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=b"scrimp/v1/parts/wrap").derive(secret)
