"""Every key and keyed hash is of a secret. DERIVED lists all; those of an attempt are in tests/worker/test_keys.py."""

from __future__ import annotations

import ast
import hashlib
import hmac
import importlib
import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from app import secrets
from app.dashboard import single_sign_on
from app.datasets import hashes, parsed, storing
from app.formats import users
from app.keys import service as keys
from app.keys import sessions
from app.settings import Settings
from app.storage import seals
from core.native import blake2b
from core.parts import digests, sealed, unit_digests

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("app", "core", "worker", "scrimp", "scrimp_server")
CALLS = {"HKDF", "hashlib.blake2b", "hmac.new", "hmac.digest", "blake2b.keyed", "keyed_digests"}
ONE, OTHER, THIRD = (bytes([number]) * 32 for number in (1, 2, 3))
HEADER = sealed.Header.new("part", bytes(sealed.WRAP_BYTES))
MESSAGE = np.zeros(3, dtype=np.uint8), np.array([3])
KEYED_DIGESTS = digests.keyed_digests
WORDS = np.arange(4, dtype=np.uint64).reshape(2, 2)


class File(io.BytesIO):
    """Opens like a path."""

    def open(self, _mode: str) -> File:
        return File(b"content")


def form_token(secret: bytes, patch: pytest.MonkeyPatch) -> str:
    patch.setenv("SCRIMP_SECRET_SESSION_KEY", secret.hex())
    return sessions.form_token(Settings(), "cookie")


def proof(secret: bytes, patch: pytest.MonkeyPatch) -> tuple[str, str, str]:
    patch.setenv("SCRIMP_SECRET_SESSION_KEY", secret.hex())
    made = single_sign_on._proof(Settings(), "seed")
    return made.state, made.nonce, made.verifier


FROM_THE_ENVIRONMENT = {
    "app/keys/sessions.py form_token": form_token,
    "app/dashboard/single_sign_on.py _proof": proof,
}


def sum_of_elements(secret: bytes) -> int:
    found = digests.MultisetHash(secret)
    found.add(WORDS)
    return found._sum


# What each place makes of a secret; of each, if it has several.
Made = Callable[[bytes], Any]
DERIVED: dict[str, list[Made]] = {
    "app/secrets.py at_epoch": [lambda secret: secrets.at_epoch(secret, "ep_1")],
    "app/storage/seals.py _wrapping": [seals._wrapping],
    "core/parts/sealed.py Header.key": [HEADER.key],
    "app/datasets/parsed.py content_keys.key": [
        lambda secret: parsed.content_keys([secret, THIRD]).split,
        lambda secret: parsed.content_keys([THIRD, secret]).content,
    ],
    "app/datasets/storing.py shown_hmac": [lambda secret: storing.shown_hmac(secret, "ds_1", "ab" * 32)],
    "app/datasets/hashes.py nested": [lambda secret: hashes.nested("ab" * 32, [secret, THIRD])],
    "core/native/blake2b.py by_hashlib": [lambda secret: blake2b.by_hashlib(*MESSAGE, secret, b"", 16).tobytes()],
    "core/parts/digests.py keyed_digests": [
        lambda secret: digests.keyed_digests(digests.Messages.joined([b"message"]), secret, b"person").tobytes()
    ],
    "core/parts/digests.py record_digests": [
        lambda secret: digests.record_digests(digests.Messages.joined([b"record"]), secret).tobytes()
    ],
    "core/parts/digests.py MultisetHash.add": [sum_of_elements],
    "core/parts/digests.py MultisetHash.hmac": [lambda secret: digests.MultisetHash(secret).hmac()],
    "core/parts/digests.py records_hmac": [lambda secret: digests.records_hmac([WORDS], secret)],
    "core/parts/digests.py keyed_sha256": [lambda secret: digests.keyed_sha256("ab" * 32, digests.Keys(THIRD, secret))],
    "core/parts/digests.py file_hmac": [lambda secret: digests.file_hmac(File(), digests.Keys(THIRD, secret))],
    "core/parts/unit_digests.py of_users": [
        lambda secret: unit_digests.of_users(["u"], digests.Keys(THIRD, secret)).tobytes()
    ],
    "app/formats/users.py sides": [lambda secret: users.sides(["u"], digests.Keys(secret, THIRD)).tobytes()],
    "app/keys/service.py digest": [lambda secret: keys.digest(secret, "token")],
    **{place: [] for place in FROM_THE_ENVIRONMENT},  # see `made_of`
    "worker/noise/attempt_keys.py derive_key": [],  # tests/worker/test_keys.py
}


def made_of(place: str, patch: pytest.MonkeyPatch) -> list[Made]:
    made = FROM_THE_ENVIRONMENT.get(place)
    return DERIVED[place] if made is None else [lambda secret: made(secret, patch)]


def places() -> set[str]:
    """The file and function of every derivation."""
    found: set[str] = set()

    def walk(file: Path, node: ast.AST, path: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            inner = (*path, child.name) if isinstance(child, ast.FunctionDef | ast.ClassDef) else path
            if isinstance(child, ast.Call) and ast.unparse(child.func) in CALLS:
                found.add(f"{file.relative_to(ROOT)} {'.'.join(inner)}")
            walk(file, child, inner)

    for file in (each for folder in FOLDERS for each in (ROOT / folder).rglob("*.py")):
        text = file.read_text()
        if any(each in text for each in CALLS):
            walk(file, ast.parse(text), ())
    return found


def test_every_derivation_is_on_the_list() -> None:
    assert places() == set(DERIVED)


def require_secret(place: str, patch: pytest.MonkeyPatch) -> None:
    for make in made_of(place, patch):
        assert make(ONE) == make(ONE) != make(OTHER)


@pytest.mark.parametrize("place", DERIVED)
def test_it_depends_on_its_secret(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require_secret(place, monkeypatch)


def test_no_two_purposes_share_a_key() -> None:
    """Of those that are derived from one secret, as hexadecimal text or bytes."""
    derived = [each for each in DERIVED if not any(word in each for word in ("digest", "nested", "users"))]
    made = [make(ONE) for place in derived for make in DERIVED[place]]
    assert len({each if isinstance(each, str) else each.hex() for each in made}) == len(made)


class Constant:
    """HKDF of a constant."""

    def __init__(self, *settings: Any, **named: Any) -> None:
        self.settings, self.named = settings, named

    def derive(self, _secret: bytes) -> bytes:
        return HKDF(*self.settings, **self.named).derive(bytes(32))


CONSTANT = {
    "HKDF": Constant,
    "hmac": SimpleNamespace(
        new=lambda _key, *rest: hmac.new(bytes(32), *rest), digest=lambda _key, *rest: hmac.digest(bytes(32), *rest)
    ),
    "hashlib": SimpleNamespace(
        blake2b=lambda *what, key, **more: hashlib.blake2b(*what, key=bytes(32), **more), sha256=hashlib.sha256
    ),
    "blake2b": SimpleNamespace(keyed=lambda *what, key, **more: blake2b.keyed(*what, key=bytes(32), **more)),
    "keyed_digests": lambda messages, key, person: KEYED_DIGESTS(messages, bytes(len(key)), person),
}


@pytest.mark.parametrize("place", [each for each in DERIVED if not each.startswith("worker/")])
def test_a_constant_key_is_found(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant for each: the derivation takes a key that everyone knows."""
    module = importlib.import_module(place.partition(".py")[0].replace("/", "."))
    for name in CONSTANT.keys() & vars(module).keys():
        monkeypatch.setattr(module, name, CONSTANT[name])
    with pytest.raises(AssertionError):
        require_secret(place, monkeypatch)
