"""Webhooks: a key's subscriptions to events. Only that key and admins see and change them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from datetime import datetime, timedelta

from sqlalchemy import bindparam, delete, func, or_, select
from sqlalchemy.orm import Session

from app.audit import record as audit
from app.db.clock import now_there
from app.db.models import ApiKey, Webhook, WebhookDelivery
from app.db.newest import newest
from app.grants.service import access_by_id, require, visible
from app.keys import service as keys
from app.keys.service import Caller
from app.webhooks import encryption
from core.contracts.event_kinds import CHECKPOINT, THRESHOLD, WEBHOOK_TEST, BudgetEvent
from core.errors import Conflict, NotFound
from core.ids import new_id, now, rfc3339

LISTENING = select(Webhook).where(
    Webhook.enabled, or_(Webhook.dataset_id.is_(None), Webhook.dataset_id == bindparam("of"))
)
MAX_PER_KEY = 20
OVERLAP = timedelta(hours=24)  # how long both secrets sign after a rotation


def may_see(session: Session, key_id: str, dataset_id: str | None) -> bool:
    """Returns True if a key is still valid and may see a data set; with None it only has to be valid."""
    caller = _alive(session, key_id)
    return caller is not None and (dataset_id is None or access_by_id(session, caller, dataset_id) is not None)


def _alive(session: Session, key_id: str) -> Caller | None:
    key = session.get(ApiKey, key_id)
    return Caller(key.id, key.name, key.role) if key is not None and keys.is_alive(key) else None


def create(
    session: Session,
    key: bytes,
    caller: Caller,
    *,
    url: str,
    events: Iterable[str],
    dataset: str | None,
    description: str,
) -> tuple[Webhook, str]:
    """Creates a webhook and its secret, which is shown only once.

    Args:
        key: the key that secrets are encrypted with.
        url: a URL that `Policy.check` has accepted.
        dataset: limits the webhook to jobs on this data set.

    Raises:
        NotFound: there is no such data set, or the key may not see it.
        Conflict: `too-many-webhooks`.
    """
    dataset_id = None if dataset is None else require(session, caller, dataset, "view").id
    keys.locked(session, caller.id)  # so that two concurrent requests cannot both take the last place
    count = session.scalar(select(func.count()).select_from(Webhook).where(Webhook.key_id == caller.id)) or 0
    if count >= MAX_PER_KEY:
        raise Conflict("too-many-webhooks", f"a key has at most {MAX_PER_KEY} webhooks: delete one first")
    secret = encryption.new_secret()
    webhook = Webhook(
        id=new_id("wh"),
        key_id=caller.id,
        dataset_id=dataset_id,
        url=url,
        events=list(dict.fromkeys(events)),
        description=description,
        enabled=True,
        created_at=now(),
    )
    webhook.secret = encryption.encrypt(key, webhook.id, secret)
    session.add(webhook)
    session.flush()
    audit.record(session, "webhook.created", webhook.id, dataset=dataset_id)
    return webhook, secret


def get(session: Session, caller: Caller, webhook_id: str, *, lock: bool = False) -> Webhook:
    """Returns a webhook of the caller's key; an admin sees all.

    Raises:
        NotFound: there is no such webhook, or it belongs to another key.
    """
    webhook = session.get(Webhook, webhook_id, with_for_update=lock or None)
    if webhook is None or not (caller.is_admin or webhook.key_id == caller.id):
        raise NotFound("there is no such webhook")
    return webhook


def page(session: Session, caller: Caller, *, after: tuple[datetime, str] | None, limit: int) -> list[Webhook]:
    """Reads a page of webhooks, newest first, and one row more to show if there is a next page."""
    query = select(Webhook)
    if not caller.is_admin:
        query = query.where(Webhook.key_id == caller.id)
    return newest(session, query, Webhook, after=after, limit=limit)


def change(
    session: Session,
    caller: Caller,
    webhook_id: str,
    *,
    url: str | None = None,
    events: Iterable[str] | None = None,
    description: str | None = None,
    enabled: bool | None = None,
) -> Webhook:
    """Changes the given members. Setting `enabled` clears the record of failures."""
    webhook = get(session, caller, webhook_id, lock=True)
    if url is not None:
        webhook.url = url
    if events is not None:
        webhook.events = list(dict.fromkeys(events))
    if description is not None:
        webhook.description = description
    if enabled is not None:
        webhook.enabled, webhook.disabled_because, webhook.failing_since = enabled, None, None
    audit.record(session, "webhook.changed", webhook.id, enabled=webhook.enabled)
    return webhook


def remove(session: Session, caller: Caller, webhook_id: str) -> None:
    """Deletes a webhook and its deliveries; a delivery in progress may still arrive."""
    webhook = get(session, caller, webhook_id, lock=True)
    session.execute(delete(WebhookDelivery).where(WebhookDelivery.webhook_id == webhook.id))
    session.delete(webhook)
    audit.record(session, "webhook.deleted", webhook_id)


def rotate_secret(session: Session, key: bytes, caller: Caller, webhook_id: str) -> tuple[Webhook, str]:
    """Gives a webhook a new secret. For a day both sign messages, so that a receiver can switch without a gap."""
    webhook = get(session, caller, webhook_id, lock=True)
    secret = encryption.new_secret()
    webhook.previous_secret, webhook.previous_until = webhook.secret, now() + OVERLAP
    webhook.secret = encryption.encrypt(key, webhook.id, secret)
    audit.record(session, "webhook.secret_rotated", webhook.id)
    return webhook, secret


def test(session: Session, caller: Caller, webhook_id: str) -> WebhookDelivery:
    """Queues a `webhook.test` for now, once, like any other delivery; the delivery shows the result.

    Raises:
        NotFound: as in `get`.
        Conflict: `wrong-state`: the previous test has not been sent yet.
    """
    webhook = get(session, caller, webhook_id, lock=True)
    under_way = select(WebhookDelivery.id).where(
        WebhookDelivery.webhook_id == webhook.id,
        WebhookDelivery.type == WEBHOOK_TEST,
        WebhookDelivery.status == "pending",
    )
    if session.scalar(under_way.limit(1)) is not None:
        raise Conflict("wrong-state", "a test of this webhook is under way: wait for its result")
    sent = message(webhook, WEBHOOK_TEST, None, now(), {"webhook": webhook.id}, due=now_there(session))
    session.add(sent)
    audit.record(session, "webhook.tested", webhook.id)
    session.flush()
    return sent


def deliveries(
    session: Session, caller: Caller, webhook_id: str, *, after: tuple[datetime, str] | None, limit: int
) -> list[WebhookDelivery]:
    """Reads a page of deliveries, newest first, and one row more. It omits data sets that the caller may no longer
    see."""
    webhook = get(session, caller, webhook_id)
    seen = or_(WebhookDelivery.dataset_id.is_(None), visible(caller, WebhookDelivery.dataset_id))
    query = select(WebhookDelivery).where(WebhookDelivery.webhook_id == webhook.id, seen)
    return newest(session, query, WebhookDelivery, after=after, limit=limit)


def message(
    webhook: Webhook, kind: str, dataset_id: str | None, at: datetime, data: dict[str, object], *, due: datetime
) -> WebhookDelivery:
    """Builds a delivery that is due from `due` on, by the database's clock."""
    return WebhookDelivery(
        id=new_id("msg"),
        webhook_id=webhook.id,
        dataset_id=dataset_id,
        type=kind,
        payload={"type": kind, "timestamp": rfc3339(at), "data": data},
        status="pending",
        next_at=due,
        created_at=now(),
    )


def announce_checkpoint(session: Session, dataset_id: str, size: int, note: str) -> None:
    """Makes the deliveries of a data set's new checkpoint, for each webhook that wants it and whose key may see it."""
    data: dict[str, object] = {"dataset": dataset_id, "size": size, "checkpoint": note}
    _queue(session, CHECKPOINT, dataset_id, data, lambda key_id: may_see(session, key_id, dataset_id))


def announce_threshold(session: Session, dataset_id: str, data: dict[str, object], keys: Container[str] | None) -> None:
    """Queues a message that a cap, or a budget within it, is used up to a threshold.

    Args:
        keys: of the budget, which alone see it beside those who own the data set; None: of the cap, which all see who
            see the data set.
    """

    def concerns(key_id: str) -> bool:
        return _concerns(session, key_id, dataset_id, key_id if keys is None or key_id in keys else "")

    _queue(session, THRESHOLD, dataset_id, data, concerns)


def announce(session: Session, kind: BudgetEvent, dataset_id: str, data: dict[str, object], to: str) -> None:
    """Queues a message about a data set, in the event's transaction: for the webhooks of one key and of those who own
    the data set.

    Args:
        to: the key's id.
    """
    _queue(session, kind, dataset_id, data, lambda key_id: _concerns(session, key_id, dataset_id, to))


def _queue(
    session: Session, kind: str, dataset_id: str, data: dict[str, object], concerns: Callable[[str], bool]
) -> None:
    """Adds a delivery for each webhook that listens to this kind on this data set and whose key it concerns."""
    at, due = now(), now_there(session)
    session.add_all(
        message(webhook, kind, dataset_id, at, dict(data), due=due)
        for webhook in session.scalars(LISTENING, {"of": dataset_id}).all()
        if kind in webhook.events and concerns(webhook.key_id)
    )


def _concerns(session: Session, key_id: str, dataset_id: str, to: str) -> bool:
    caller = _alive(session, key_id)
    access = None if caller is None else access_by_id(session, caller, dataset_id)
    return access is not None and (key_id == to or access.covers("own"))
