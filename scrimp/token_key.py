"""An Ed25519 key in a PKCS #11 token: it signs there, and its private half never leaves it (the extra `pkcs11`).

    pkcs11:token=scrimp;object=signing?module-path=/usr/lib/softhsm/libsofthsm2.so&pin-source=file:/run/secrets/pin

A token locks itself after a few wrong PINs. So a program that nobody watches gives a PIN that was wrong once to nobody
again: it refuses until a person has given the right one.

Sources: RFC 7512 (addresses); OASIS PKCS #11 3.1 (CKM_EDDSA, CKM_EC_EDWARDS_KEY_PAIR_GEN).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from scrimp.errors import MissingPackage, ScrimpError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

SCHEME = "pkcs11:"
ED25519_OID = "1.3.101.112"
BYTES = 32  # of a public key
DER = bytes((4, BYTES))  # before it, in a token of PKCS #11 3.0
EXAMPLE = "pkcs11:token=NAME;object=NAME?module-path=/path/of/module.so&pin-source=file:/path/of/pin"


class TokenError(ScrimpError):
    """A token, or a key in it, cannot be used; nothing was signed. The message names no PIN."""


@dataclass(frozen=True)
class Address:
    """Where a key is. `pin_file`: None where a person gives the PIN."""

    token: str
    label: str
    module: str
    pin_file: Path | None

    @classmethod
    def parse(cls, text: str) -> Address:
        """Reads a PKCS #11 URI. Raises TokenError; the text may hold a PIN and is not repeated."""
        path, _, query = text.removeprefix(SCHEME).partition("?")
        parts = [each.partition("=") for each in (*path.split(";"), *query.split("&")) if each]
        members = {name: unquote(value) for name, _, value in parts}
        token, label, module = (members.pop(name, "") for name in ("token", "object", "module-path"))
        pin = members.pop("pin-source", "")
        if not (text.startswith(SCHEME) and token and label and module and len(members) + 3 + bool(pin) == len(parts)):
            raise TokenError(f"this is not the address of a key in a token: {EXAMPLE}")
        if members:
            raise TokenError(f"a key's address has no {', '.join(sorted(members))} here: {EXAMPLE}")
        if pin.startswith("|"):
            raise TokenError("a PIN comes from a file, not from a program: pin-source=file:/path/of/pin")
        return cls(token, label, module, Path(pin.removeprefix("file:")) if pin else None)

    def pin(self, person: Callable[[], str] | None = None) -> str:
        """The PIN, of its file or of a person. Raises TokenError."""
        if self.pin_file is None:
            if person is None:
                raise TokenError("the address needs a pin-source, as nobody is here to give the PIN")
            return person()
        try:
            return self.pin_file.read_text().strip()
        except (OSError, ValueError) as error:
            raise TokenError(f"the PIN's file cannot be read: {type(error).__name__}") from None


@dataclass(frozen=True)
class TokenKey:
    """A key in a token; signs as the private keys of `cryptography` do."""

    address: Address
    pin: str = field(repr=False)
    watched: bool = True

    def sign(self, data: bytes) -> bytes:
        """The raw signature of these bytes. Raises TokenError."""
        from pkcs11 import Mechanism, ObjectClass

        with self._session() as session:
            key = session.get_key(object_class=ObjectClass.PRIVATE_KEY, label=self.address.label)
            return bytes(key.sign(data, mechanism=Mechanism.EDDSA))

    def public_raw(self) -> bytes:
        """The 32 bytes of the public key. Raises TokenError."""
        from pkcs11 import Attribute, KeyType, ObjectClass

        with self._session() as session:
            key = session.get_key(object_class=ObjectClass.PUBLIC_KEY, label=self.address.label)
            raw = bytes(key[Attribute.EC_POINT])
            if key.key_type != KeyType.EC_EDWARDS or len(raw.removeprefix(DER)) != BYTES:
                raise TokenError(f"the key {self.address.label!r} of the token is not one of Ed25519")
            return raw.removeprefix(DER)

    def public_key(self) -> Ed25519PublicKey:
        """The public key. Raises TokenError."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        return Ed25519PublicKey.from_public_bytes(self.public_raw())

    def generate(self) -> None:
        """Makes the key in the token, from which its private half cannot be read. Raises TokenError."""
        from pkcs11 import Attribute, KeyType, Mechanism
        from pkcs11.util.ec import encode_named_curve_parameters

        with self._session(writes=True) as session:
            if any(session.get_objects({Attribute.LABEL: self.address.label})):
                raise TokenError(f"the token has an object {self.address.label!r} already")
            curve = {Attribute.EC_PARAMS: encode_named_curve_parameters(ED25519_OID)}
            session.create_domain_parameters(KeyType.EC_EDWARDS, curve, local=True).generate_keypair(
                mechanism=Mechanism.EC_EDWARDS_KEY_PAIR_GEN,
                store=True,
                label=self.address.label,
                private_template={Attribute.SENSITIVE: True, Attribute.EXTRACTABLE: False},
            )

    @contextmanager
    def _session(self, *, writes: bool = False) -> Iterator[Any]:
        """A session of the token in which its user is logged in."""
        try:
            import pkcs11
            from pkcs11 import TokenFlag
            from pkcs11 import exceptions as wrong
        except ImportError:
            raise MissingPackage("a key in a token", "python-pkcs11", "scrimp-client[pkcs11]") from None
        label, name = self.address.label, self.address.token
        messages: dict[type[Exception], str] = {
            wrong.NoSuchToken: f"no token {name!r} is here",
            wrong.MultipleTokensReturned: f"several tokens are called {name!r}",
            wrong.PinIncorrect: f"the PIN of the token {name!r} is wrong; after a few wrong ones it locks itself",
            wrong.PinLocked: f"the token {name!r} is locked: too many wrong PINs",
            wrong.NoSuchKey: f"the token {name!r} has no key {label!r}",
            wrong.MultipleObjectsReturned: f"the token {name!r} has several keys {label!r}",
            wrong.MechanismInvalid: f"the token {name!r} does not know Ed25519",
        }
        try:
            token = pkcs11.lib(self.address.module).get_token(token_label=name)
            if not self.watched and token.flags & (TokenFlag.USER_PIN_COUNT_LOW | TokenFlag.USER_PIN_FINAL_TRY):
                raise TokenError(
                    f"a wrong PIN was given to the token {name!r}: correct its file, then `scrimp keys token show`"
                )
            with token.open(rw=writes, user_pin=self.pin) as session:
                yield session
        except wrong.PKCS11Error as error:
            other = f"the token {name!r} cannot be used: {type(error).__name__} {error}".strip()
            raise TokenError(messages.get(type(error), other)) from None
