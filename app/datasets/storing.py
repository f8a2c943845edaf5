"""Stores what was parsed: its parts, and in one transaction the data set, its hashes and its account."""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.audit import record as audit
from app.datasets import duplicates, hashes, repository, unit_files
from app.datasets.declaring import Declared, Findings
from app.datasets.for_owner import ForOwner
from app.datasets.parsed import Content
from app.datasets.resolving import check_name, shape_of
from app.db.models import Account, Dataset, DatasetContent
from app.ledger.second import open_first
from app.ledger.transparency.heads import Heads
from app.secrets import secret_id
from app.settings import Settings
from app.storage import parts
from app.storage.parts import Published
from core.contracts.blocks import UNITS
from core.contracts.dataset_spec import DatasetSpec
from core.errors import ServiceError, Unavailable
from core.ids import now
from core.parts.damage import DataDamagedError


@dataclass(frozen=True)
class New:
    """A data set to be."""

    dataset_id: str
    owner_key: str
    spec: DatasetSpec
    block: Block | None = None


@dataclass(frozen=True)
class Block:
    """Of which data set it will be a block, and under which name and label."""

    parent_id: str
    label: str
    name: str


@contextmanager
def published(
    settings: Settings, dataset_id: str, content: Content, *, unclaimed: tuple[type[Exception], ...] = ()
) -> Iterator[Published]:
    """Publishes the parts and the units of a data set to be; within the block a transaction names them.

    Where the block ends in an error that is known to come before the commit, they are removed. After any other, such as
    a connection lost at the commit, a data set may have them.

    Args:
        unclaimed: errors of a process that another one may have taken the id from. The units, which have no name of
            their own for each publication, may then be that one's, and stay.

    Raises:
        Unavailable: the bucket does not answer, or a part changed on this disk.
    """
    before_commit: tuple[type[Exception], ...] = (ServiceError, IntegrityError, OSError, *unclaimed)
    part_store, units = parts.of(settings), content.parsed.units_sha256
    try:
        places = part_store.publish(dataset_id, content.folder, content.parsed.parts)
    except DataDamagedError:
        raise Unavailable("what was read changed on the service's disk before it was stored: try again") from None
    try:
        if units is not None:
            unit_files.publish(settings, dataset_id, content.folder / UNITS, units)
        yield places
    except before_commit:
        part_store.withdraw(places)
        if not unclaimed:
            unit_files.remove(settings, dataset_id)
        raise


def remove(settings: Settings, dataset_id: str) -> None:
    """Removes what was published or placed of a data set that does not exist, by whatever attempt."""
    parts.of(settings).remove(dataset_id)
    unit_files.remove(settings, dataset_id)


def store(session: Session, settings: Settings, new: New, content: Content, published_parts: Published) -> Declared:
    """Writes the data set, the keyed hashes of its content and its account, and puts its parts in place.

    Raises:
        Conflict, Unavailable: as `register`, and as `hashes.check_renewed`.
    """
    dataset, account = _insert(session, Heads.of(settings), new, content, published_parts)
    audit.record(session, "dataset.registered" if new.block is None else "block.appended", dataset.id)
    # Before the commit: every data set in the database then has its files. The other order could lose them.
    parts.of(settings).place(dataset.id, content.folder)
    if dataset.units_sha256 is not None:
        unit_files.place(settings, dataset.id, dataset.units_sha256)
    findings = Findings(content.parsed.counts, (*content.parsed.warnings, *delta_warnings(new.spec)))
    return Declared(dataset, account, ForOwner(new.owner_key, findings))


def shown_hmac(secret: bytes, dataset_id: str, content_hmac: str) -> str:
    """The keyed hash by which a data set and its certificates name the content. It belongs to this registration alone:
    somebody who registers a guess cannot compare the two."""
    key = HKDF(SHA256(), 32, salt=None, info=b"scrimp/v1/data/shown").derive(secret)
    return hmac.digest(key, f"{dataset_id}:{content_hmac}".encode(), "sha256").hex()


def _insert(
    session: Session, heads: Heads, new: New, content: Content, published_parts: Published
) -> tuple[Dataset, Account | None]:
    spec, parsed, chain, dataset_id = new.spec, content.parsed, content.chain, new.dataset_id
    repository.take_turns(session)
    hashes.check_renewed(session, chain)
    name = spec.name if new.block is None else new.block.name
    check_name(session, name, dataset_id)
    duplicates.check(session, heads, new.owner_key, spec, parsed.contents)
    of_file = next(each.hmac for each in parsed.contents if (each.part, each.kind) == ("data", "sha256"))
    dataset = Dataset(
        id=dataset_id,
        name=name,
        parent_id=None if new.block is None else new.block.parent_id,
        label=None if new.block is None else new.block.label,
        units_sha256=parsed.units_sha256,
        units_key=None if parsed.units_sha256 is None else secret_id(chain[-1]),
        owner_key=new.owner_key,
        sensitivity=spec.privacy.sensitivity,
        spec=spec.model_dump(mode="json"),
        shape=shape_of(spec, parsed, is_block=new.block is not None),
        parts=published_parts.rows,
        content_sha256=parsed.content_sha256,
        content_hmac=shown_hmac(chain[0], dataset_id, of_file),
        created_at=now(),
    )
    columns: dict[str, str] = {"dataset_id": dataset_id, "owner_key": new.owner_key, "key_id": secret_id(chain[0])}
    contents = [DatasetContent(**columns, **dict(each)) for each in parsed.contents if not each.is_earlier]
    repository.add(session, dataset, contents)
    return dataset, open_first(session, dataset, new.spec)


def delta_warnings(spec: DatasetSpec) -> list[str]:
    cap, records = spec.privacy.cap, spec.privacy.records
    if cap is not None and cap.delta is not None and records is not None and cap.delta > 1 / records:
        return [
            f"δ = {cap.delta:g} is more than 1/records: a mechanism that publishes one record outright could meet it"
        ]
    return []
