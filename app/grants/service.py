"""Access to data sets, in one place: `require` for one, `visible` for lists.

    view    the data set, its ledger, and the jobs on it with events, metrics and certificates
    train   also quotes, jobs of one's own, and the weights of all jobs on it
    charge  what `view` covers, and charges for other systems
    own     also the cap, grants, cancelling any job on it

Admins own everything; a data set's owner is the key that registered it; everybody else needs a grant. A data set that a
key may not see is indistinguishable from a missing one: the same error, the same words. An action that the key may not
perform on a visible data set is refused with a reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import SimpleNamespace
from typing import Any, Literal, NoReturn, TypeVar, cast, get_args

from sqlalchemy import ColumnElement, Row, Select, and_, bindparam, func, literal, or_, select, true
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.db.models import ApiKey, Dataset, DatasetReading, Grant, Job, table_of
from app.keys.service import NO_SUCH_KEY, Caller, is_alive, locked
from app.lifecycle.states import NO_SUCH_JOB
from core.contracts.dataset_spec import DatasetSpec
from core.contracts.governance import Terms, Use
from core.errors import Conflict, Forbidden, InvalidRequest, NotFound
from core.ids import now

Level = Literal["view", "train", "charge", "own"]
Granted = Literal["view", "train", "charge"]
COVERED: dict[Level, frozenset[Level]] = {
    "view": frozenset(("view",)),
    "train": frozenset(("view", "train")),
    "charge": frozenset(("view", "charge")),
    "own": frozenset(get_args(Level)),
}
NO_SUCH_DATASET = "there is no such data set"
MOST_COMPARED = 500  # names of data sets with a mistyped one
REFUSED = {
    "train": "this key may view the data set but not train on it: ask its owner for a `train` grant",
    "charge": "this key may not charge the data set for another system: ask its owner for a `charge` grant",
    "own": "only the key that registered this data set, or an admin, may do that",
}


ANY, WITHOUT_TERMS = Use(), Terms()


@dataclass(frozen=True)
class Access:
    """A key's access to a data set, and the owner's policy for it.

    Attributes:
        max_epsilon: the largest ε of one job; None: the cap alone.
        use: the purpose and the permit of every job.
    """

    level: Level
    max_epsilon: float | None = None
    use: Use = ANY

    def covers(self, needed: Level) -> bool:
        """Returns True if this access includes `needed`."""
        return needed in COVERED[self.level]


@dataclass(frozen=True)
class Policy:
    """What a grant says: its access, the largest ε of one job, and its terms."""

    access: Granted
    max_epsilon: float | None
    terms: Terms

    @classmethod
    def of(cls, grant: Grant) -> Policy:
        """What a stored grant says."""
        terms = Terms(
            ends_at=grant.ends_at, purpose=grant.purpose, permit=grant.permit, persons=tuple(grant.persons or ())
        )
        return cls(cast(Granted, grant.access), grant.max_epsilon_per_job, terms)


@dataclass(frozen=True)
class Given:
    """A grant that was made, its key, and what the key's earlier one said, if it had one."""

    grant: Grant
    key: ApiKey
    replaced: Policy | None


OWN = Access("own")
J = TypeVar("J")
D = TypeVar("D", Dataset, Row[Any])
RowLike = Row[Any] | SimpleNamespace


DATA, GIVEN = table_of(Dataset), table_of(Grant)
# The columns that `access_in` reads: the data set's owner, and the key's grant, if any.
LOOKED_AT = [
    DATA.c.owner_key,
    *(GIVEN.c[name] for name in ("access", "max_epsilon_per_job", "ends_at", "purpose", "permit")),
]


def given_to(key_id: ColumnElement[str] | str) -> ColumnElement[bool]:
    """The condition that joins a data set to a key's grant on it; a block, to that on its data set."""
    return and_(GIVEN.c.dataset_id == func.coalesce(DATA.c.parent_id, DATA.c.id), GIVEN.c.key_id == key_id)


ACCESS = (
    select(*LOOKED_AT)
    .select_from(DATA.outerjoin(GIVEN, given_to(bindparam("key"))))
    .where(DATA.c.id == bindparam("dataset"))
)


def access_in(caller: Caller, row: RowLike) -> Access | None:
    """The caller's access, from a row with the columns LOOKED_AT of the data set and of the caller's own grant.

    The columns are null where there is no grant, or no data set.
    """
    return access_of(caller, row, row if row.access is not None else None)


def access_of(caller: Caller, dataset: Dataset | RowLike, grant: Grant | RowLike | None) -> Access | None:
    """The rule: a key's access to a data set; None if it may not even see it."""
    if caller.is_admin or (caller.role == "owner" and dataset.owner_key == caller.id):
        return OWN
    if grant is None or (grant.ends_at is not None and grant.ends_at <= now()):
        return None
    if caller.role == "viewer":
        return Access("view")
    use = Use(purpose=grant.purpose, permit=grant.permit)
    return Access(cast(Level, grant.access), grant.max_epsilon_per_job, use)


def find(
    session: Session, caller: Caller, dataset: str, needed: Level = "view", *, blocks: bool = False
) -> tuple[Dataset, Access]:
    """A data set, by its id or else by its name, with this key's access to it.

    Args:
        blocks: a block of a data set may be named too; to look at, it always may.

    Raises:
        NotFound: there is none, or this key may not see it.
        InvalidRequest: it is a block.
        Conflict: `not-ready`: its file is being read, or was rejected; told to its owner and admins alone.
        Forbidden: it may see it, but its access is less than `needed`.
    """
    rows = with_grants(caller).where(or_(Dataset.id == dataset, Dataset.name == dataset))
    seen = [
        (row, access)
        for row, grant in session.execute(rows).all()
        if (access := access_of(caller, row, grant)) is not None
    ]
    if not seen:
        refuse(session, caller, dataset)
    row, access = chosen(seen, dataset)
    check(access, needed)
    if row.parent_id is not None and needed != "view" and not blocks:
        raise InvalidRequest.at("", f"this is a block: name its data set, {row.parent_id}")
    return row, access


def chosen(seen: Sequence[tuple[D, Access]], dataset: str) -> tuple[D, Access]:
    """The data set that an id or a name means, among those with it. One may have another's id as its name, from before
    such names were refused."""
    return max(seen, key=lambda row: row[0].id == dataset)


def refuse(session: Session, caller: Caller, dataset: str) -> NoReturn:
    """Refuses a data set that this key does not see, as `find` does. A name that is like that of one that it sees
    is asked about: what is said depends on nothing else."""
    _check_read(session, caller, dataset)
    newest = (
        select(Dataset.name).where(visible(caller), Dataset.parent_id.is_(None)).order_by(Dataset.created_at.desc())
    )
    names = {name.lower(): name for name in session.scalars(newest.limit(MOST_COMPARED))}
    near = get_close_matches(dataset.lower(), names, n=1)
    raise NotFound(f"{NO_SUCH_DATASET}: did you mean {names[near[0]]!r}?" if near else NO_SUCH_DATASET)


def access_by_id(session: Session, caller: Caller, dataset_id: str) -> Access | None:
    """This key's access to the data set with this id, never one with this name; None if it may not see it."""
    row = session.execute(ACCESS, {"dataset": dataset_id, "key": caller.id}).one_or_none()
    return access_in(caller, row) if row is not None else None


def require(session: Session, caller: Caller, dataset: str, needed: Level, *, blocks: bool = False) -> Dataset:
    """Like `find`, but returns the data set alone."""
    return find(session, caller, dataset, needed, blocks=blocks)[0]


def require_job(session: Session, caller: Caller, job_id: str, needed: Level = "view") -> Job:
    """A job on a data set to which this key has the `needed` access.

    Raises:
        NotFound: there is none, or this key may not see its data set.
        Forbidden: as `find`.
    """
    job = session.get(Job, job_id)
    return check_job(job, access_to_job(session, caller, job) if job is not None else None, needed)


def check_job(job: J | None, access: Access | None, needed: Level = "view") -> J:
    """Checks a found or missing job and the caller's access to it, like `require_job`."""
    if job is None or access is None:
        raise NotFound(NO_SUCH_JOB)
    _check(access, needed)
    return job


def access_to_job(session: Session, caller: Caller, job: Job) -> Access | None:
    """A key's access to a job's data set; None if it may not see it."""
    if caller.is_admin:
        return OWN
    return access_by_id(session, caller, job.dataset_id)


def visible(
    caller: Caller, dataset_id: ColumnElement[str] | InstrumentedAttribute[str | None] = Dataset.id
) -> ColumnElement[bool]:
    """The condition that a list shows a row: the caller may see its data set.

    Args:
        dataset_id: the column that names the data set, such as `Job.dataset_id`.
    """
    if caller.is_admin:
        return true()
    lasts = or_(Grant.ends_at.is_(None), Grant.ends_at > now())
    seen = dataset_id.in_(select(Grant.dataset_id).where(Grant.key_id == caller.id, lasts))
    if caller.role != "owner":
        return seen
    return or_(seen, dataset_id.in_(select(Dataset.id).where(Dataset.owner_key == caller.id)))


def sees_as(caller: Caller) -> tuple[str, ...]:
    """Equal for callers to whom `visible` shows the same rows."""
    return () if caller.is_admin else (caller.role, caller.id)


def with_grants(caller: Caller) -> Select[Dataset, Grant]:
    """Data sets, each with the caller's grant."""
    return select(Dataset, Grant).outerjoin(Grant, given_to(caller.id))


def give(
    session: Session,
    caller: Caller,
    dataset: str,
    key_id: str,
    access: Granted,
    max_epsilon: float | None,
    terms: Terms = WITHOUT_TERMS,
) -> Given:
    """Grants a key access to a data set; replaces its earlier grant, with all its terms.

    Args:
        max_epsilon: the owner's policy: the largest ε of one job of this key; None: the cap alone.

    Raises:
        NotFound, Forbidden: as `find`; no such key.
        InvalidRequest: the key has no use for it: an admin's or the owner's own, a viewer that would train or charge, a
            key that was revoked or has expired, a policy or a use of jobs that may not be submitted, a purpose that the
            data set does not list, or an end in the past.
    """
    row = require(session, caller, dataset, "own")
    # Two grants of one key at once take turns.
    key = locked(session, key_id)
    if key is None:
        raise NotFound(NO_SUCH_KEY)
    _check_use(row, key, access, max_epsilon, terms)
    grant = session.get(Grant, (row.id, key.id), populate_existing=True)
    replaced = Policy.of(grant) if grant is not None else None
    grant = grant or Grant(dataset_id=row.id, key_id=key.id)
    grant.access, grant.max_epsilon_per_job = access, max_epsilon
    grant.ends_at, grant.persons = terms.ends_at, terms.persons or None
    grant.purpose, grant.permit = terms.purpose, terms.permit
    grant.created_at, grant.created_by = now(), caller.id
    session.add(grant)
    _count(row)
    session.flush()
    return Given(grant, key, replaced)


def take_back(session: Session, caller: Caller, dataset: str, key_id: str) -> Dataset:
    """Ends a grant on a data set, and returns it. Jobs that were admitted under it continue.

    Raises:
        NotFound, Forbidden: as `find`; this key has no grant.
    """
    row = require(session, caller, dataset, "own")
    locked(session, key_id)  # as in `give`: the two take turns
    grant = session.get(Grant, (row.id, key_id), populate_existing=True)
    if grant is None:
        raise NotFound("this key has no grant on the data set")
    session.delete(grant)
    _count(row)
    return row


def _count(dataset: Dataset) -> None:
    """Counts a change of its grants: no clock says that one changed."""
    dataset.grants_version = Dataset.grants_version + 1


def list_grants(session: Session, caller: Caller, dataset: str) -> list[tuple[Grant, ApiKey]]:
    """A data set's grants, oldest first, each with its key."""
    row = require(session, caller, dataset, "own")
    rows = (
        select(Grant, ApiKey)
        .join(ApiKey, ApiKey.id == Grant.key_id)
        .where(Grant.dataset_id == row.id)
        .order_by(Grant.created_at, Grant.key_id)
    )
    return [(grant, key) for grant, key in session.execute(rows)]


def _owned(caller: Caller) -> ColumnElement[bool]:
    """The condition that a caller owns a data set, as in `access_of`."""
    return true() if caller.is_admin else and_(Dataset.owner_key == caller.id, literal(caller.role == "owner"))


def own_datasets(session: Session, caller: Caller) -> dict[str, str]:
    """The names of the data sets on which a caller may grant, by their ids, in the order of names."""
    no_blocks = Dataset.parent_id.is_(None)
    rows = session.execute(select(Dataset.id, Dataset.name).where(_owned(caller), no_blocks).order_by(Dataset.name))
    return {row.id: row.name for row in rows}


def list_all(session: Session, caller: Caller) -> list[tuple[Grant, ApiKey, Dataset]]:
    """Every grant on the data sets that a caller owns, by data set and age."""
    rows = (
        select(Grant, ApiKey, Dataset)
        .join(ApiKey, ApiKey.id == Grant.key_id)
        .join(Dataset, Dataset.id == Grant.dataset_id)
        .where(_owned(caller))
        .order_by(Dataset.name, Grant.created_at, Grant.key_id)
    )
    return [(grant, key, dataset) for grant, key, dataset in session.execute(rows)]


def check(access: Access | None, needed: Level) -> Access:
    """Returns the access, if it covers what is needed.

    Raises:
        NotFound: there is no access.
        Forbidden: there is less.
    """
    if access is None:
        raise NotFound(NO_SUCH_DATASET)
    _check(access, needed)
    return access


def _check_read(session: Session, caller: Caller, dataset: str) -> None:
    """Raises Conflict if this is a registration of the caller that is no data set yet, or never."""
    reading = DatasetReading
    by_name = or_(reading.id == dataset, reading.name == dataset)
    query = select(reading).where(by_name, reading.state != "ready").order_by(reading.holds_name.is_(None))
    for row in session.scalars(query):
        is_told = row.parent_id is None or row.state != "rejected"  # of a refused block: its owner alone
        if (caller.is_admin and is_told) or (caller.role in ("owner", "admin") and row.owner_key == caller.id):
            problem = "is being read" if row.state == "reading" else "was rejected: look at it"
            raise Conflict("not-ready", f"the file of {row.name!r} {problem}", dataset=row.id, state=row.state)


def _check(access: Access, needed: Level) -> None:
    if not access.covers(needed):
        raise Forbidden(REFUSED[needed])


def _check_use(dataset: Dataset, key: ApiKey, access: Granted, max_epsilon: float | None, terms: Terms) -> None:
    if terms.ends_at is not None and terms.ends_at <= now():
        raise InvalidRequest.at("/ends_at", "a grant must end in the future; leave `ends_at` out for one that stays")
    if not is_alive(key):
        raise InvalidRequest.at("/path/key_id", "this key was revoked or has expired")
    if key.role == "admin" or key.id == dataset.owner_key:
        raise InvalidRequest.at("/path/key_id", "admins and the data set's owner need no grant")
    if access != "view" and key.role == "viewer":
        raise InvalidRequest.at(
            "/access", f"a viewer cannot {access}: grant `view`, or give the key's holder an analyst's key"
        )
    if access != "train" and max_epsilon is not None:
        raise InvalidRequest.at("/max_epsilon_per_job", "`max_epsilon_per_job` limits jobs: give it with `train` only")
    for name in ("purpose", "permit"):
        if access != "train" and getattr(terms, name) is not None:
            raise InvalidRequest.at(f"/{name}", f"`{name}` is for jobs: give it with `train` only")
    if terms.purpose is None:
        return
    rules = DatasetSpec.model_validate(dataset.spec).governance
    fault = rules.purpose_fault(terms.purpose) if rules is not None else None
    if fault is not None:
        raise InvalidRequest.at("/purpose", fault)
