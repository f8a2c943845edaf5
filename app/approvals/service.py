"""Two persons for a larger cap, for an egress, and for a change of who these persons are: where the owner asks for it.

The owner names persons, each with all of his or her keys. An act is then stored (`ask`) and takes effect once two
persons have agreed; who asks has agreed. The database holds the rule: a key belongs to one person (`dataset_persons`),
and a person agrees once (`agreements`). All decisions on a data set take turns at its row.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from sqlalchemy import delete, or_, select, update
from sqlalchemy.orm import Session

from app.approvals.schemas import AgreementView, ApprovalView, Status
from app.audit import record as audit
from app.db import decided
from app.db.decided import decide, require_open
from app.db.models import Agreement, ApiKey, Approval, Dataset, DatasetPerson, Egress, Job
from app.db.newest import newest
from app.grants import service as grants
from app.keys.service import Caller, is_alive
from core.contracts.approvals import FEWEST, Act, Persons, PersonsChange
from core.errors import Conflict, Forbidden, InvalidRequest, NotFound
from core.ids import new_id, now

NO_SUCH_APPROVAL = "there is no such approval"
NOT_A_PERSON = "this key is of none of the persons that the data set's owner named"
LASTS = timedelta(days=14)


def persons_of(session: Session, dataset_id: str) -> dict[str, str]:
    """The person of each key that decides on a data set; empty: one person is enough."""
    rows = select(DatasetPerson.key_id, DatasetPerson.person).where(DatasetPerson.dataset_id == dataset_id)
    ordered = rows.order_by(DatasetPerson.person, DatasetPerson.key_id)
    return {row.key_id: row.person for row in session.execute(ordered)}


def named(by_key: Mapping[str, str]) -> Persons:
    """The same as the owner declares it."""
    names_by_id: dict[str, tuple[str, ...]] = {}
    for key, person in by_key.items():
        names_by_id[person] = (*names_by_id.get(person, ()), key)
    return Persons(persons=names_by_id)


def set_persons(session: Session, caller: Caller, dataset: str, persons: Persons) -> Approval | None:
    """Names the persons who decide on a data set. Once some are named, two of them must agree to a change.

    Returns:
        The approval that the change waits for; None if it took effect.

    Raises:
        NotFound, Forbidden: as `app.grants.service.find`.
        InvalidRequest: a key does not exist, was revoked or has expired, or is no owner's and no admin's.
    """
    dataset_id = grants.require(session, caller, dataset, "own").id
    _take_turn(session, dataset_id)
    for key_id in persons.by_key():
        key = session.get(ApiKey, key_id)
        if key is None or not is_alive(key):
            raise InvalidRequest.at("/persons", f"there is no key {key_id}, or it was revoked or has expired")
        if key.role not in ("owner", "admin"):
            raise InvalidRequest.at("/persons", f"{key_id} has the role {key.role}: name keys of owners and admins")
    if persons_of(session, dataset_id):
        return ask(session, caller, dataset_id, PersonsChange(persons=persons))
    _name(session, dataset_id, persons)
    return None


def ask(session: Session, caller: Caller, dataset_id: str, act: Act) -> Approval:
    """Stores an act that two persons must agree to. Its asker agrees, if the key is one of theirs."""
    _take_turn(session, dataset_id)
    approval = Approval(
        id=new_id("apr"),
        dataset_id=dataset_id,
        act=act,
        asked_by=caller.id,
        status="open",
        created_at=now(),
        expires_at=now() + LASTS,
    )
    session.add(approval)
    session.flush()
    person = persons_of(session, dataset_id).get(caller.id)
    if person is not None:
        session.add(Agreement(approval_id=approval.id, person=person, key_id=caller.id, at=now()))
        session.flush()
    audit.record(session, "approval.asked", approval.id, dataset=dataset_id, because=act.kind)
    return approval


def agree(session: Session, caller: Caller, approval_id: str) -> Approval:
    """Adds a person's word. The act takes effect with the second one's; a cap's is the caller's to carry out.

    Raises:
        NotFound: there is no such approval, or the caller may not see it.
        Forbidden: the key is of none of the persons.
        Conflict: `wrong-state`: it was decided or has expired, or this person has agreed already.
    """
    approval = _to_decide(session, caller, approval_id)
    person = persons_of(session, approval.dataset_id).get(caller.id)
    if person is None:
        raise Forbidden(NOT_A_PERSON)
    if person in {each.person for each in standing(session, approval)}:
        raise Conflict("wrong-state", f"{person} has agreed already: another person must agree")
    session.merge(Agreement(approval_id=approval.id, person=person, key_id=caller.id, at=now()))
    session.flush()
    audit.record(session, "approval.agreed", approval.id, dataset=approval.dataset_id, because=approval.act.kind)
    if len(standing(session, approval)) >= FEWEST:
        decide(session, approval, "agreed", caller.id)
        if isinstance(approval.act, PersonsChange):
            _name(session, approval.dataset_id, approval.act.persons)
    return approval


def deny(session: Session, caller: Caller, approval_id: str) -> Approval:
    """Ends an approval; nothing changes. For the persons, for the data set's owner, and for who asked.

    Raises:
        NotFound, Conflict: as `agree`.
    """
    approval = _to_decide(session, caller, approval_id)
    audit.record(session, "approval.denied", approval.id, dataset=approval.dataset_id, because=approval.act.kind)
    decide(session, approval, "denied", caller.id)
    return approval


def find(session: Session, caller: Caller, approval_id: str) -> Approval:
    """An approval that the caller may see.

    Raises:
        NotFound: there is none.
    """
    approval = session.get(Approval, approval_id, populate_existing=True)
    if approval is None or not _sees(session, caller, approval):
        raise NotFound(NO_SUCH_APPROVAL)
    return approval


def page(
    session: Session, caller: Caller, *, dataset: str | None, after: tuple[datetime, str] | None, limit: int
) -> list[Approval]:
    """Newest first; one more than requested, to know if there is a next page."""
    query = select(Approval)
    if not caller.is_admin:
        decides = select(DatasetPerson.dataset_id).where(DatasetPerson.key_id == caller.id)
        owns = select(Dataset.id).where(Dataset.owner_key == caller.id)
        seen = [Approval.asked_by == caller.id, Approval.dataset_id.in_(decides)]
        if caller.role == "owner":
            seen.append(Approval.dataset_id.in_(owns))
        query = query.where(or_(*seen))
    if dataset is not None:
        query = query.where(Approval.dataset_id == dataset)
    return newest(session, query, Approval, after=after, limit=limit)


def agreements_of(session: Session, approval_id: str) -> list[Agreement]:
    """Who has agreed, in the order of time."""
    words = select(Agreement).where(Agreement.approval_id == approval_id)
    return list(session.scalars(words.order_by(Agreement.at, Agreement.person)))


def standing(session: Session, approval: Approval) -> list[Agreement]:
    """The words that count now: a word goes with its key, and with the person whom the owner no longer names."""
    persons = persons_of(session, approval.dataset_id)
    return [
        each
        for each in agreements_of(session, approval.id)
        if persons.get(each.key_id) == each.person and is_alive(session.get_one(ApiKey, each.key_id))
    ]


def shown(session: Session, approval: Approval) -> ApprovalView:
    """Shows an approval with who has agreed."""
    agreements = [AgreementView.of(each) for each in agreements_of(session, approval.id)]
    return ApprovalView.of(approval, status=status_of(approval), agreements=agreements)


def status_of(approval: Approval) -> Status:
    """The status of an approval: an open one ends by itself."""
    status: Status = decided.status_of(approval)
    return status


def may_leave(session: Session, dataset_id: str) -> bool:
    """Says if files of jobs may leave one by one: with two persons, they leave as an egress alone."""
    return not persons_of(session, dataset_id)


def require_loose(session: Session, job: Job) -> None:
    """Checks that a job's files may leave one by one.

    Raises:
        Forbidden: its data set has persons.
    """
    if not may_leave(session, job.dataset_id):
        raise Forbidden(
            "on this data set the files of a job leave as an egress, once two persons have agreed: ask for one"
        )


def require_egress(session: Session, job: Job) -> None:
    """Checks that a model may be used: enough of its answers tell the model itself.

    Raises:
        Forbidden: two persons must have agreed to an egress of it.
    """
    if may_leave(session, job.dataset_id):
        return
    agreed = (
        select(Approval)
        .join(Egress, Approval.id == Egress.approval_id)
        .where(
            Egress.job_id == job.id, Egress.deleted_at.is_(None), Egress.problem.is_(None), Approval.status == "agreed"
        )
    )
    if not any(len(standing(session, each)) >= FEWEST for each in session.scalars(agreed)):
        raise Forbidden("on this data set a model answers once two persons have agreed to an egress of it: ask for one")


def require_own_agreement(session: Session, job: Job, egress: Egress) -> None:
    """Checks that an egress has the word of two persons, as they are named now and with keys that live.

    Raises:
        Forbidden: it is from before the owner named persons, or the word of one counts no more.
    """
    if may_leave(session, job.dataset_id):
        return
    if egress.approval_id is None:
        raise Forbidden("this egress is from before two persons had to agree: ask for another one")
    if len(standing(session, session.get_one(Approval, egress.approval_id))) < FEWEST:
        raise Forbidden("the word of a person who agreed to this egress counts no more: ask for another one")


def _sees(session: Session, caller: Caller, approval: Approval) -> bool:
    if caller.id == approval.asked_by or session.get(DatasetPerson, (approval.dataset_id, caller.id)) is not None:
        return True
    access = grants.access_by_id(session, caller, approval.dataset_id)
    return access is not None and access.covers("own")


def _to_decide(session: Session, caller: Caller, approval_id: str) -> Approval:
    _take_turn(session, find(session, caller, approval_id).dataset_id)
    approval = find(session, caller, approval_id)
    require_open(approval, "approval")
    return approval


def _take_turn(session: Session, dataset_id: str) -> None:
    session.execute(select(Dataset.id).where(Dataset.id == dataset_id).with_for_update(key_share=True))


def _name(session: Session, dataset_id: str, persons: Persons) -> None:
    replace_persons(session, dataset_id, persons.by_key())
    session.get_one(Dataset, dataset_id, populate_existing=True).persons_version += 1
    session.flush()
    audit.record(session, "persons.set", dataset_id, persons=sorted(persons.persons))


def replace_persons(session: Session, dataset_id: str, by_key: Mapping[str, str]) -> None:
    """Replaces the person of each key. What was asked of those before them ends: others would have decided."""
    session.execute(delete(DatasetPerson).where(DatasetPerson.dataset_id == dataset_id))
    for key, person in by_key.items():
        session.add(DatasetPerson(dataset_id=dataset_id, key_id=key, person=person))
    still_open = (Approval.dataset_id == dataset_id, Approval.status == "open")
    session.execute(update(Approval).where(*still_open).values(status="denied", decided_at=now()))
    session.flush()
