"""Keys that stay in a PKCS #11 token: of the service, and of its offline root. The token is SoftHSM's."""

from __future__ import annotations

import base64
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from app.ledger.signer import Signer
from app.ledger.signing_keys import signing_key
from app.settings import Settings
from core.errors import Unavailable
from scrimp.key_history import text_of
from scrimp.token_key import Address, TokenError, TokenKey
from tests.ledger.test_attestations import OTHER, TRUSTED
from tests.ledger.test_checkpoints import db, heads
from tests.ledger.test_key_history import issued_at
from tests.ledger.test_required import Evidence, Verify, evidence, verify
from tests.tokens import PIN, Token

__all__ = ["db", "evidence", "heads", "verify"]  # fixtures


@pytest.fixture
def token(tmp_path: Path) -> Token:
    return Token.new(tmp_path / "token")


def signer(settings: Settings, token: Token, public: str, label: str = "signing") -> Signer:
    return signing_key(settings.model_copy(update={"sign_command": token.command(label), "sign_public_key": public}))


# What the module itself says of a key, asked by its user with the right PIN.
ASK = """
import sys, pkcs11
from pkcs11 import Attribute, ObjectClass
token = pkcs11.lib(sys.argv[1]).get_token(token_label=sys.argv[2])
with token.open(user_pin=sys.argv[3]) as session:
    key = session.get_key(object_class=ObjectClass.PRIVATE_KEY, label="signing")
    flags = (Attribute.SENSITIVE, Attribute.ALWAYS_SENSITIVE, Attribute.NEVER_EXTRACTABLE)
    print([key[each] for each in flags], key[Attribute.EXTRACTABLE])
    try:
        print(key[Attribute.VALUE])
    except pkcs11.exceptions.AttributeSensitive:
        print("not told")
"""


def test_a_key_signs_for_the_service_and_never_leaves_its_token(settings: Settings, token: Token) -> None:
    public = token.said("token", "new", token.address("signing"))
    assert token.said("token", "show", token.address("signing")) == public
    raw = Ed25519PublicKey.from_public_bytes(base64.b64decode(public))
    for data in (b"", b"bytes", bytes(300_000)):
        raw.verify(signer(settings, token, public).sign(data), data)
    words = [sys.executable, "-c", ASK, token.module, token.name, PIN]
    asked = subprocess.run(words, env=token.environment, capture_output=True, text=True, timeout=300, check=True)
    assert asked.stdout.splitlines() == ["[True, True, True] False", "not told"]
    again = token.keys("token", "new", token.address("signing"))
    assert again.returncode == 1 and b"has an object 'signing' already" in again.stderr
    assert token.said("token", "show", token.address("signing")) == public


def test_another_key_of_the_token_signs_nothing_for_the_service(settings: Settings, token: Token) -> None:
    public = token.said("token", "new", token.address("signing"))
    token.said("token", "new", token.address("other"))
    with pytest.raises(Unavailable, match="did not sign with SCRIMP_SIGN_PUBLIC_KEY"):
        signer(settings, token, public, "other").sign(b"bytes")


def test_a_wrong_pin_is_given_once(settings: Settings, token: Token) -> None:
    """The relay asks again and again; the token would lock itself."""
    public = token.said("token", "new", token.address("signing"))
    token.write_pin("wrong-pin")
    first = token.keys("token", "sign", token.address("signing"), given=b"bytes")
    assert first.returncode == 1 and b"PIN of the token 'scrimp test' is wrong" in first.stderr
    for _ in range(3):
        with pytest.raises(Unavailable, match="SCRIMP_SIGN_COMMAND failed"):
            signer(settings, token, public).sign(b"bytes")
    token.write_pin(PIN)
    refused = token.keys("token", "sign", token.address("signing"), given=b"bytes")
    assert refused.returncode == 1 and b"a wrong PIN was given" in refused.stderr, "it cannot know which one is right"
    for done in (first, refused):
        assert done.stdout == b"" and b"wrong-pin" not in done.stderr and PIN.encode() not in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert token.said("token", "show", token.address("signing")) == public
    signer(settings, token, public).sign(b"bytes")


def test_a_pin_is_in_no_text_of_a_key() -> None:
    assert PIN not in repr(TokenKey(Address.parse(ADDRESS), PIN))


# A token with two halves of one label that are no pair: the public half of another key.
PLANT = """
import sys, pkcs11
from pkcs11 import Attribute, KeyType, ObjectClass
with pkcs11.lib(sys.argv[1]).get_token(token_label=sys.argv[2]).open(user_pin=sys.argv[3], rw=True) as session:
    own, other = (
        session.get_key(object_class=ObjectClass.PUBLIC_KEY, label=label) for label in ("signing", "other")
    )
    names = (Attribute.EC_PARAMS, Attribute.EC_POINT)
    planted = {name: other[name] for name in names} | {
        Attribute.CLASS: ObjectClass.PUBLIC_KEY, Attribute.KEY_TYPE: KeyType.EC_EDWARDS,
        Attribute.LABEL: "signing", Attribute.TOKEN: True,
    }
    own.destroy()
    session.create_object(planted)
"""


def test_two_halves_that_are_no_pair_are_told(token: Token) -> None:
    for label in ("signing", "other"):
        token.said("token", "new", token.address(label))
    words = [sys.executable, "-c", PLANT, token.module, token.name, PIN]
    subprocess.run(words, env=token.environment, capture_output=True, timeout=300, check=True)
    done = token.keys("token", "show", token.address("signing"))
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"did not sign with its public key" in done.stderr and len(done.stderr.splitlines()) == 1


def missing_module(token: Token) -> str:
    return token.address("signing").replace(token.module, "/nonexistent/module.so")


CANNOT = {
    "no such token": (lambda token: token.address("signing", token="another"), "no token 'another' is here"),
    "no such key": (lambda token: token.address("unknown"), "has no key 'unknown'"),
    "no PIN's file": (lambda token: token.address("signing", pin="gone"), "the PIN's file cannot be read"),
    "no module": (missing_module, "cannot be used"),
    "nobody is asked": (lambda token: token.address("signing").partition("&")[0], "needs a pin-source"),
}


@pytest.mark.parametrize("name", CANNOT)
def test_what_cannot_sign_says_why(token: Token, name: str) -> None:
    address, problem = CANNOT[name]
    done = token.keys("token", "sign", address(token), given=b"bytes")
    assert (done.returncode, done.stdout) == (1, b""), done.stderr
    assert problem in done.stderr.decode() and len(done.stderr.splitlines()) == 1


ADDRESS = "pkcs11:token=a%20b;object=c?module-path=/m.so&pin-source=file:/p"


def test_an_address_is_a_uri_of_rfc_7512() -> None:
    assert Address.parse(ADDRESS) == Address("a b", "c", "/m.so", Path("/p"))
    assert Address.parse("pkcs11:object=c;token=a?module-path=/m.so") == Address("a", "c", "/m.so", None)
    assert Address.parse(ADDRESS.replace("file:", "")).pin_file == Path("/p")


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("token=a;object=c?module-path=/m.so", "not the address"),
        ("pkcs11:token=a?module-path=/m.so", "not the address"),
        ("pkcs11:token=a;object=c", "not the address"),
        ("pkcs11:token=a;token=b;object=c?module-path=/m.so", "not the address"),
        ("pkcs11:", "not the address"),
        ("pkcs11:token=a;object=c?module-path=/m.so&pin-value=1234", "no pin-value here"),
        ("pkcs11:token=a;object=c;serial=1?module-path=/m.so", "no serial here"),
        ("pkcs11:token=a;object=c?module-path=/m.so&pin-source=|cat", "not from a program"),
    ],
)
def test_what_is_no_address_is_refused(address: str, problem: str) -> None:
    with pytest.raises(TokenError, match=problem) as refused:
        Address.parse(address)
    assert "1234" not in str(refused.value), "a PIN is not repeated"


def test_a_root_in_a_token_signs_rotations(evidence: Evidence, verify: Verify, token: Token, tmp_path: Path) -> None:
    """Both verifiers take its history; it goes on with the newest one alone."""
    at, path = issued_at(evidence), tmp_path / "history.json"
    root = token.said("token", "new", token.address("root"))
    files = ("--key-file", token.address("root"), "--history", path)
    start = text_of(at - timedelta(hours=1))
    assert TRUSTED in token.said("root", "sign-rotation", *files, "--public-key", TRUSTED, "--at", start)
    assert verify(evidence.signed, "--root", root, "--history", path)[0] == 0
    older = path.read_bytes()
    token.said("root", "revoke", *files, "--public-key", TRUSTED, "--since", start, "--reason", "a disk was stolen")
    status, said = verify(evidence.signed, "--root", root, "--history", path)
    assert status == 1 and "a disk was stolen" in said
    newest = path.read_bytes()
    path.write_bytes(older)
    words = ("root", "sign-rotation", *files, "--public-key", OTHER, "--at", text_of(at))
    refused = token.keys(*words)
    assert refused.returncode == 2 and "signed history 2" in " ".join(refused.stderr.decode().split())
    path.write_bytes(newest)
    token.write_pin("wrong-pin")
    refused = token.keys(*words)
    assert refused.returncode == 1 and b"is wrong" in refused.stderr and path.read_bytes() == newest
    token.write_pin(PIN)
    assert OTHER in token.said(*words)
