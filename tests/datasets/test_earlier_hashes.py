"""Content that was registered before decision 39 is named by other hashes, and is still refused a second time."""

from __future__ import annotations

import hashlib
import struct

import pytest
from sqlalchemy import select, update

from app.datasets import duplicates, parsed
from app.db.models import DatasetContent, DatasetReading
from app.ledger import behind
from app.ledger.transparency.heads import Heads
from app.secrets import load_secrets
from tests.datasets.conftest import CSV, PUBLIC, Api, spec
from tests.datasets.test_refusals import DIFFERENT, ONE_COLUMN, REORDERED


def as_before(api: Api, dataset_id: str) -> None:
    """Names a registration of CSV as the release before did, by an implementation of its own."""
    key = bytes.fromhex(parsed.content_keys(load_secrets(api.settings, "data_hmac_key")).content)
    records = [
        b"n" + struct.pack("<Qdd", 2, a, b) + b"c" + y.encode()
        for a, b, y in ((float(a), float(b), y) for a, b, y in (line.split(",") for line in CSV.split()[1:]))
    ]
    digests = sorted(
        hashlib.blake2b(each, digest_size=16, key=key, person=b"scrimp/record").digest() for each in records
    )
    hashed = {
        "records": hashlib.blake2b(b"".join(digests), digest_size=32, key=key, person=b"scrimp/records"),
        "file": hashlib.blake2b(CSV.encode(), digest_size=32, key=key, person=b"scrimp/file"),
    }
    with api.db.write() as session:
        for new, earlier in (("multiset", "records"), ("sha256", "file")):
            row = (DatasetContent.dataset_id == dataset_id, DatasetContent.kind == new)
            session.execute(update(DatasetContent).where(*row).values(kind=earlier, hmac=hashed[earlier].hexdigest()))


def test_earlier_content_is_refused_again(api: Api) -> None:
    first = api.upload(spec("one")).json()["id"]
    as_before(api, first)
    for changes, text in (({}, REORDERED), (ONE_COLUMN, CSV), (PUBLIC, CSV)):
        refused = api.upload(spec("two", **changes), text)
        assert (refused.status_code, refused.json()["type"]) == (409, "/problems/duplicate-content"), changes
        assert refused.json()["dataset"] == first
    assert api.upload(spec("three"), DIFFERENT).status_code == 201


def test_new_content_is_named_by_the_new_hashes_alone(api: Api) -> None:
    """So an owner's earlier content does not grow."""
    as_before(api, api.upload(spec("one")).json()["id"])
    second = api.upload(spec("two"), DIFFERENT).json()["id"]
    with api.db.read() as session:
        kinds = set(session.scalars(select(DatasetContent.kind).where(DatasetContent.dataset_id == second)))
    assert kinds == {"sha256", "multiset"}
    assert api.upload(spec("three"), DIFFERENT).json()["type"] == "/problems/duplicate-content"


def test_only_the_owners_earlier_content_counts(api: Api) -> None:
    as_before(api, api.upload(spec("one")).json()["id"])

    def compares(who: str) -> bool:
        return duplicates.compares_earlier_hashes(api.db, api.settings, api.key_ids[who])

    assert (compares("owner"), compares("other-owner")) == (True, False)


def test_a_lost_registration_counts_as_an_earlier_one(api: Api) -> None:
    """The database was set back: what is recorded outside it does not say by which hashes it is named."""
    first, heads = api.upload(spec("one")).json()["id"], Heads.of(api.settings)
    behind.record(api.db, heads, first)
    assert not duplicates.compares_earlier_hashes(api.db, api.settings, api.key_ids["owner"])
    head = heads.read(first)
    assert head is not None
    heads.write(head.model_copy(update={"dataset": "ds_lost"}), heads.known("ds_lost"))
    assert duplicates.compares_earlier_hashes(api.db, api.settings, api.key_ids["owner"])


def test_an_earlier_registration_meanwhile_makes_the_new_one_wait(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of the release before registers while this one reads."""
    as_before(api, api.upload(spec("one")).json()["id"])
    monkeypatch.setattr(duplicates, "compares_earlier_hashes", lambda *_: False)
    late = api.upload(spec("two"), REORDERED)
    assert (late.status_code, late.json()["type"]) == (503, "/problems/unavailable")
    assert api.count() == 1
    with api.db.read() as session:
        assert not session.scalars(select(DatasetReading)).all()
