"""Data sets: declared, checked, stored once. Their content never changes.

`register` is the admission: declaration (public numbers, cap, order) → parsing in a limited process (`read`) → one
transaction that writes the data set, the keyed hashes of its content and its account, and puts its files in place
(`store`). Large files take the same steps in the background (app.datasets.reader). A crash leaves at worst a folder
without references, which `sweep` removes; in a bucket, objects without references (docs/production.md).
"""

from __future__ import annotations

import hmac
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.audit import record as audit
from app.datasets import duplicates, hashes, quota, repository, resumable, storage, unit_files
from app.datasets.declaring import Declared, Findings
from app.datasets.for_owner import ForOwner
from app.datasets.parsing import Parsers
from app.datasets.sizes import ON_TOP, REGISTRATION, check_fits, declared_slots, split_sizes, suggested_slots
from app.datasets.sources import Arrived
from app.db.engine import Database
from app.db.models import Account, Dataset, DatasetContent
from app.formats.asked import ContentKeys, OpeningKeys, ParsedFiles, ParseRequest, SealedPart, SealKey
from app.keys.service import Caller
from app.ledger import accounts
from app.ledger.transparency.heads import Heads
from app.sandbox.limited import Watch
from app.secrets import load_secrets, secret_id
from app.settings import Settings
from app.storage import parts
from app.storage.parts import Published
from app.storage.seals import Seals
from core.contracts import filters
from core.contracts.blocks import UNITS
from core.contracts.dataset_spec import DatasetPrivacy, DatasetSpec, PublicHoldout, SplitHoldout
from core.contracts.slots import Slots
from core.contracts.stored import Counts, Shape
from core.errors import Conflict, InvalidRequest, ServiceError, Unavailable
from core.ids import new_id, now
from core.parts.damage import DataDamagedError
from core.privacy import filter_reading
from core.privacy.derive import default_delta
from core.privacy.plans import OrderRequest


class OrderChooser(Protocol):
    """Finds, in a limited process, the order under which most typical jobs fit."""

    def choose_order(self, request: OrderRequest) -> float: ...


def register(
    db: Database,
    settings: Settings,
    pricing: OrderChooser,
    parsers: Parsers,
    caller: Caller,
    arrived: Arrived,
    folder: Path,
) -> Declared:
    """Checks and stores a data set, and opens its account.

    Args:
        arrived: with the declaration; everything in it is public.
        folder: a staging folder that holds `file` and, for a public hold-out, `holdout_file`.

    Raises:
        InvalidRequest: the declaration or a file cannot be used; pointers, columns and counts.
        Conflict: `duplicate-name`, or `duplicate-content`: this owner registered it before, and one of the two is
            private. A second registration of private content would be a second budget for it. Other owners' content
            is not compared: decision 15. `ledger-behind`: this owner registered it, and the database has lost it.
            `quota-exceeded`.
        LimitError: parsing took more memory or time than is allowed, or other files are being parsed (503).
    """
    spec = arrived.spec
    with db.read() as session:
        check_name(session, spec.name)
    check_files(spec, storage.names(folder))
    spec = resolved(spec, pricing)
    earlier = duplicates.compares_earlier_hashes(db, settings, caller.id)
    content = read(settings, parsers, spec, folder, earlier_hashes=earlier)
    new = New(new_id("ds"), caller.id, spec)
    duplicates.check_forgotten(db, settings, caller.id, content.known_as)
    try:
        with published(settings, new.dataset_id, content) as kept, db.write() as session:
            repository.take_turns(session)
            quota.reserve(session, settings, caller.id, arrived.new_bytes, arrived.new_bytes)
            return store(session, settings, new, content, kept)
    except IntegrityError:
        with db.read() as session:
            check_name(session, spec.name)
        raise


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
def published(settings: Settings, dataset_id: str, content: Content) -> Iterator[Published]:
    """Publishes the parts and the units of a data set to be; within the block a transaction names them.

    Where the block ends in an error that is known to come before the commit, they are removed. After any other, such as
    a connection lost at the commit, a data set may have them.

    Raises:
        Unavailable: the bucket does not answer, or a part changed on this disk.
    """
    kept, units = parts.of(settings), content.parsed.units_sha256
    try:
        made = kept.publish(dataset_id, content.folder, content.parsed.parts)
    except DataDamagedError:
        raise Unavailable("what was read changed on the service's disk before it was stored: try again") from None
    try:
        if units is not None:
            unit_files.publish(settings, dataset_id, content.folder / UNITS, units)
        yield made
    except (ServiceError, IntegrityError, OSError):
        kept.withdraw(made)
        unit_files.remove(settings, dataset_id)
        raise


def store(session: Session, settings: Settings, new: New, content: Content, made: Published) -> Declared:
    """Writes the data set, the keyed hashes of its content and its account, and puts its parts in place.

    Raises:
        Conflict, Unavailable: as `register`, and as `hashes.check_renewed`.
    """
    dataset, account = _insert(session, Heads.of(settings), new, content, made)
    audit.record(session, "dataset.registered" if new.block is None else "block.appended", dataset.id)
    # Before the commit: every data set in the database then has its files. The other order could lose them.
    parts.of(settings).place(dataset.id, content.folder)
    if dataset.units_sha256 is not None:
        unit_files.place(settings, dataset.id, dataset.units_sha256)
    findings = Findings(content.parsed.counts, (*content.parsed.warnings, *_warnings(new.spec)))
    return Declared(dataset, account, ForOwner(new.owner_key, findings))


@dataclass(frozen=True)
class Checked:
    """What a registration would say, for the owner alone; nothing is stored.

    Attributes:
        spec: the declaration with its defaults filled in.
        shape: the public sizes that jobs would be planned with.
        suggested_slots: by the file; None for public data.
    """

    spec: DatasetSpec
    shape: Shape
    counts: Counts
    suggested_slots: Slots | None
    warnings: list[str]


def check(
    db: Database,
    settings: Settings,
    pricing: OrderChooser,
    parsers: Parsers,
    caller: Caller,
    spec: DatasetSpec,
    folder: Path,
) -> Checked:
    """Parses and checks a data set like `register`, and stores nothing. A name or a content that is taken is a warning.

    Raises:
        InvalidRequest, LimitError: as in `register`.
    """
    check_files(spec, storage.names(folder))
    declared, spec = spec, resolved(spec, pricing)
    earlier = duplicates.compares_earlier_hashes(db, settings, caller.id)
    parsed = read(settings, parsers, spec, folder, earlier_hashes=earlier).parsed
    warnings = [*parsed.warnings, *_warnings(spec), *_order_by_default(declared, spec)]
    with db.read() as session:
        try:
            check_name(session, spec.name)
        except Conflict as error:
            warnings.append(f"a registration would be refused: {error.message}")
        try:
            duplicates.check(session, Heads.of(settings), caller.id, spec, parsed.contents)
        except Conflict as error:
            warnings.append(f"a registration would be refused: {error.message}")
    suggested = suggested_slots(spec, parsed.stored, parsed.squares)
    return Checked(spec, _shape(spec, parsed), parsed.counts, suggested, warnings)


@dataclass(frozen=True)
class After:
    """The blocks of a data set before one that is read.

    Attributes:
        family: their ids; empty for the first, and where people are not counted.
        people: their files of people, whose records count; empty: no unit of them may come again.
    """

    family: tuple[str, ...] = ()
    people: tuple[SealedPart, ...] = ()


@dataclass(frozen=True)
class Content:
    """A parsed file.

    Attributes:
        folder: its parts, staged.
        parsed: as app.formats.parse answers it; its `contents` are under the keys in use.
        known_as: every name that its contents ever had.
        chain: the keys under which they are named.
        after: the earlier blocks that it was read after.
    """

    folder: Path
    parsed: ParsedFiles
    known_as: set[str]
    chain: Sequence[bytes]
    after: After


def read(
    settings: Settings,
    parsers: Parsers,
    spec: DatasetSpec,
    folder: Path,
    watch: Watch | None = None,
    after: After = After(),
    *,
    earlier_hashes: bool,
) -> Content:
    """Parses the files of a folder into parts under it. Raises as `Parsers.parse`.

    Args:
        spec: the resolved declaration.
        earlier_hashes: what `duplicates.compares_earlier_hashes` says of the owner.
    """
    output = folder / storage.PARTS
    output.mkdir(mode=0o700)
    chain = load_secrets(settings, "data_hmac_key")
    seals, wanted = Seals(settings), ("file", *(("holdout_file",) if _wants_holdout_file(spec) else ()))
    files = {name: storage.arrived(folder, name) for name in wanted}
    opens, seal = {name: storage.key_of(seals, file) for name, file in files.items()}, seals.new()
    request = ParseRequest(
        spec=spec,
        file=str(files["file"].resolve()),
        holdout_file=str(files["holdout_file"].resolve()) if "holdout_file" in files else None,
        opens=OpeningKeys(**{name: None if key is None else key.hex() for name, key in opens.items()}),
        seal=None if seal is None else SealKey(key=seal.key.hex(), wrap=seal.wrap.hex()),
        output_dir=str(output.resolve()),
        keys=content_keys(chain),
        slots=declared_slots(spec),
        place=len(after.family),
        earlier=after.people,
        max_unpacked_bytes=settings.max_unpacked_bytes,
        max_unpack_ratio=settings.max_unpack_ratio,
        reserve_bytes=resumable.room_of(settings).set_aside,
        earlier_hashes=earlier_hashes,
    )
    try:
        parsed = parsers.parse(request, watch)
    except DataDamagedError as error:
        raise Unavailable(f"{error}: without them no block can be compared") from None
    known_as = {name for each in parsed.contents for name in hashes.every(each.hmac, chain)}
    contents = tuple(each.model_copy(update={"hmac": hashes.nested(each.hmac, chain)}) for each in parsed.contents)
    return Content(output, parsed.model_copy(update={"contents": contents}), known_as, chain, after)


def resolved(spec: DatasetSpec, pricing: OrderChooser) -> DatasetSpec:
    """The declaration with its defaults filled in: the cap's δ, and the filter's order in place of the typical job.
    Paths and uploads are dropped.

    Raises:
        InvalidRequest: the cap has no budget under the filter, the hold-out leaves one side without a record, or as
            `declared_slots`.
    """
    plain = spec.model_copy(update=dict.fromkeys(("path", "holdout_path", "upload", "holdout_upload")))
    privacy = spec.privacy
    declared_slots(spec)
    if privacy.records is not None:
        split_sizes(spec, privacy.records)
    if privacy.cap is None or privacy.records is None:
        return plain
    epsilon, delta = privacy.cap.epsilon, privacy.cap.delta or default_delta(privacy.records)
    order = _order(privacy, epsilon, delta, split_sizes(spec, privacy.records)[0], pricing)
    accounts.filter_for(privacy.filter, order).budget(epsilon, delta)  # refused now rather than after the parsing
    changes = {"cap": privacy.cap.model_copy(update={"delta": delta}), "order": order, "typical_job": None}
    return plain.model_copy(update={"privacy": privacy.model_copy(update=changes)})


def content_keys(chain: Sequence[bytes]) -> ContentKeys:
    """Keys for the split and for content hashes: the parsing process gets nothing else of the service's data key.

    Args:
        chain: the data keys, the one in use first. That key splits the data. Content is hashed under the oldest key,
            and then under its successors (app.datasets.hashes).
    """

    def key(purpose: str, secret: bytes) -> str:
        return HKDF(SHA256(), 32, salt=None, info=f"scrimp/v1/data/{purpose}".encode()).derive(secret).hex()

    return ContentKeys(split=key("split", chain[0]), content=key("content", chain[-1]))


def shown_hmac(secret: bytes, dataset_id: str, content_hmac: str) -> str:
    """The keyed hash by which a data set and its certificates name the content. It belongs to this registration alone:
    somebody who registers a guess cannot compare the two."""
    key = HKDF(SHA256(), 32, salt=None, info=b"scrimp/v1/data/shown").derive(secret)
    return hmac.digest(key, f"{dataset_id}:{content_hmac}".encode(), "sha256").hex()


def sweep(settings: Settings) -> int:
    """Removes the staging folders of crashed registrations, a day later. Returns how many it removed.

    Nothing under `datasets/` is ever removed for being absent from this database: it may be the wrong database.
    """
    left = list(storage.stale(settings.storage_root, "staging"))
    for folder in left:
        shutil.rmtree(folder, ignore_errors=True)
    return len(left)


def _wants_holdout_file(spec: DatasetSpec) -> bool:
    return isinstance(spec.holdout, PublicHoldout)


def check_files(spec: DatasetSpec, there: Collection[str]) -> None:
    """Raises InvalidRequest if a file is missing among those that are there, or undeclared."""
    if "file" not in there:
        raise InvalidRequest.at("/file", "there is no data file: send the part `file`, or JSON with `path` or `upload`")
    has = "holdout_file" in there
    if _wants_holdout_file(spec) and not has:
        raise InvalidRequest.at(
            "/holdout_file", "a public hold-out needs its own file: send it as the part `holdout_file`"
        )
    if has and not _wants_holdout_file(spec):
        raise InvalidRequest.at(
            "/holdout", 'a hold-out file was sent but not declared: add "holdout": {"kind": "public"}'
        )


def check_name(session: Session, name: str, dataset_id: str | None = None) -> None:
    """Raises Conflict if another data set than this one has the name."""
    if repository.name_is_taken(session, name, dataset_id):
        raise Conflict("duplicate-name", f"a data set named {name!r} exists already: choose another name", name=name)


def _order(
    privacy: DatasetPrivacy, cap_epsilon: float, cap_delta: float, records: int, pricing: OrderChooser
) -> float | None:
    if not filters.rule_of(privacy.filter).has_order or privacy.order is not None:
        return privacy.order
    return pricing.choose_order(
        OrderRequest(cap_epsilon=cap_epsilon, cap_delta=cap_delta, records=records, typical_job=privacy.typical_job)
    )


def _insert(
    session: Session, heads: Heads, new: New, content: Content, made: Published
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
        shape=_shape(spec, parsed, REGISTRATION if new.block is None else ON_TOP),
        parts=made.rows,
        content_sha256=parsed.content_sha256,
        content_hmac=shown_hmac(chain[0], dataset_id, of_file),
        created_at=now(),
    )
    own: dict[str, str] = {"dataset_id": dataset_id, "owner_key": new.owner_key, "key_id": secret_id(chain[0])}
    contents = [DatasetContent(**own, **dict(each)) for each in parsed.contents if not each.is_earlier]
    repository.add(session, dataset, contents)
    return dataset, _open_account(session, new)


def _open_account(session: Session, new: New) -> Account | None:
    spec = new.spec
    cap = spec.privacy.cap
    if cap is None or cap.delta is None:  # public: no privacy is claimed
        return None
    return accounts.open_account(
        session,
        dataset_id=new.dataset_id,
        privacy_filter=accounts.filter_for(spec.privacy.filter, spec.privacy.order),
        cap_epsilon=cap.epsilon,
        cap_delta=cap.delta,
        has_holdout=isinstance(spec.holdout, SplitHoldout),
        actor=new.owner_key,
    )


def _shape(spec: DatasetSpec, parsed: ParsedFiles, at: str = REGISTRATION) -> Shape:
    """The public sizes. Private data: from the declaration. Public data, and a public hold-out: the actual sizes.

    Args:
        at: as `declared_slots` takes it.

    Raises:
        InvalidRequest: the file has more records than slots.
    """
    counts, slots = parsed.counts, declared_slots(spec, at)
    train, holdout = counts.train, counts.holdout
    if slots is not None and spec.privacy.records is not None:
        train, declared = split_sizes(spec, spec.privacy.records)
        holdout = holdout if _wants_holdout_file(spec) else declared
        check_fits(spec, slots, parsed.stored, at)
    return Shape(
        records_train=train,
        records_holdout=holdout,
        features=parsed.features,
        outputs=parsed.outputs,
        sparse=parsed.sparse,
        slots=slots,
    )


def _order_by_default(declared: DatasetSpec, spec: DatasetSpec) -> list[str]:
    """What jobs will read as, where the owner named neither an order nor a typical job."""
    asked, cap, order = declared.privacy, spec.privacy.cap, spec.privacy.order
    if asked.order is not None or asked.typical_job is not None or order is None or cap is None or cap.delta is None:
        return []
    return [filter_reading.of_registration(order, cap.epsilon, cap.delta)]


def _warnings(spec: DatasetSpec) -> list[str]:
    cap, records = spec.privacy.cap, spec.privacy.records
    if cap is not None and cap.delta is not None and records is not None and cap.delta > 1 / records:
        return [
            f"δ = {cap.delta:g} is more than 1/records: a mechanism that publishes one record outright could meet it"
        ]
    return []
