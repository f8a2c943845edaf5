"""Deliveries: created from events, claimed, tried and retried. Runs in threads of the relay's process.

    event's transaction ──▶ webhook_events ──fan out──▶ webhook_deliveries ──claim──▶ POST ──▶ delivered
                                                            ▲                           │
                                                            └──── waits, with jitter ◀──┘ no 2xx

Delivery is at least once: a delivery is done when it is recorded as done. Several relays may run. A claim is a
compare-and-set with a lease, and a try's result is written only while its claim is the last one. Only the database's
clock decides when the next try is due and when a lease has expired.
"""

from __future__ import annotations

import logging
import random
import ssl
import threading
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import delete, or_, select, update
from sqlalchemy.engine import CursorResult
from sqlalchemy.orm import Session

from app.audit import record as audit
from app.chain import canonical_json
from app.db.changes import SELDOM_S, Changes
from app.db.clock import now_there
from app.db.database import Database
from app.db.models import Job, JobEvent, Webhook, WebhookDelivery, WebhookEvent
from app.repeat import in_thread
from app.secrets import load_secrets
from app.settings import Settings
from app.webhooks import encryption
from app.webhooks.addresses import Addresses
from app.webhooks.forms import Form, form_of, slack_text
from app.webhooks.sending import Result, send, signed, trust
from app.webhooks.service import may_see, message
from app.webhooks.targets import TargetRefused, parse
from core.contracts.event_kinds import ANNOUNCED, WEBHOOK_TEST
from core.errors import InvalidRequest
from core.ids import now

ANY_EVENT = select(WebhookEvent.id).limit(1)
ANY_PENDING = select(WebhookDelivery.id).where(WebhookDelivery.status == "pending").limit(1)
logger = logging.getLogger(__name__)
POLL_S = 0.5
THREADS = 4
LEASE = timedelta(seconds=60)  # longer than a lookup and a try
BATCH = 200
# Seconds from a failed try to the next try, as Standard Webhooks recommends.
WAITS_S = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
JITTER = 0.2
DISABLE_AFTER = timedelta(days=5)
FORGET_AFTER = timedelta(days=30)
FORGET_EVERY = timedelta(hours=1)
# The job's status at the event. A certificate comes after the end.
STATUS = {
    "job.queued": "queued",
    "job.started": "running",
    "job.succeeded": "succeeded",
    "job.failed": "failed",
    "job.cancelled": "cancelled",
}


class Deliverer:
    """Sends due deliveries. Safe to run in several threads and processes at once."""

    def __init__(self, db: Database, keys: Sequence[bytes], addresses: Addresses, tls: ssl.SSLContext) -> None:
        self.db, self.keys, self.addresses, self.tls = db, keys, addresses, tls
        self._busy: set[str] = set()  # keys: one key's slow receivers occupy one thread, not all
        self._lock, self._line = threading.Lock(), threading.Lock()
        self._changes, self._nothing = Changes(db, SELDOM_S), False
        self._forget_at = now()

    @classmethod
    def of(cls, db: Database, settings: Settings) -> Deliverer:
        """Builds the deliverer from the settings."""
        keys, tls = load_secrets(settings, "webhook_key"), trust(settings.webhooks_ca_file)
        return cls(db, keys, Addresses.of(settings), tls)

    def start(self, stop: threading.Event) -> list[threading.Thread]:
        """Starts the threads; they end after `stop` is set."""
        senders = [in_thread(f"webhooks-{i}", partial(self.serve, stop), stop, POLL_S) for i in range(THREADS)]
        return [in_thread("webhooks", self.fan_out, stop, POLL_S, Changes(self.db, SELDOM_S)), *senders]

    def fan_out(self) -> int:
        """Turns waiting events into deliveries; returns the number of events."""
        self._forget()
        with self.db.quick_read() as connection:
            if connection.scalar(ANY_EVENT) is None:
                return 0
        waiting = select(WebhookEvent).order_by(WebhookEvent.id).limit(BATCH)
        with self.db.write() as session:
            events = session.scalars(waiting.with_for_update(skip_locked=True)).all()
            for event in events:
                session.add_all(_deliveries(session, event))
                session.delete(event)
            return len(events)

    def serve(self, stop: threading.Event) -> bool:
        """One sender: waits in line until a delivery is due, and goes on while more are.

        The first in line looks, the others sleep. Who has one to send leaves the line before.

        Returns:
            False once it is told to stop.
        """
        with self._line:
            while (taken := self._claim()) is None:
                if self._changes.rest(stop, POLL_S) if self._nothing else stop.wait(POLL_S):
                    return False
        self._send(*taken)
        while self.deliver_one():  # more for the same receiver, which was hidden from the others
            pass
        return True

    def deliver_one(self) -> bool:
        """Tries one due delivery; returns False if there is none."""
        taken = self._claim()
        if taken is None:
            return False
        self._send(*taken)
        return True

    def _send(self, claimed: WebhookDelivery, key_id: str) -> None:
        try:
            result = self._try(claimed)
            self._record(claimed, result)
        finally:
            with self._lock:
                self._busy.discard(key_id)

    def _claim(self) -> tuple[WebhookDelivery, str] | None:
        """Takes the delivery that has been due the longest, and its key. Skips keys that a thread of this process
        serves."""
        with self._lock:
            if self._nothing_waits():
                return None
            due = (
                select(WebhookDelivery, Webhook.key_id)
                .join(Webhook, Webhook.id == WebhookDelivery.webhook_id)
                .where(
                    WebhookDelivery.status == "pending",
                    Webhook.key_id.not_in(self._busy),
                )
                .order_by(WebhookDelivery.next_at, WebhookDelivery.id)
                .limit(1)
            )
            with self.db.read() as session:
                moment = now_there(session)
                row = session.execute(due.where(WebhookDelivery.next_at <= moment)).one_or_none()
            if row is None:
                return None
            delivery, key_id = row
            claim = (
                update(WebhookDelivery)
                .where(
                    WebhookDelivery.id == delivery.id,
                    WebhookDelivery.claim == delivery.claim,
                    WebhookDelivery.status == "pending",
                )
                .values(claim=WebhookDelivery.claim + 1, attempts=WebhookDelivery.attempts + 1, next_at=moment + LEASE)
                .returning(WebhookDelivery)
                .execution_options(synchronize_session=False)
            )
            with self.db.write() as session:
                claimed = session.scalars(claim).one_or_none()
            if claimed is not None:
                self._busy.add(key_id)
            return (claimed, key_id) if claimed is not None else None

    def _nothing_waits(self) -> bool:
        """True if no delivery waits, for a later try either: then none is due before the database changes."""
        if self._changes.due():
            self._nothing = False  # until a look says otherwise: one that fails is repeated
        if not self._nothing:
            with self.db.quick_read() as connection:
                self._nothing = connection.scalar(ANY_PENDING) is None
        return self._nothing

    def _try(self, delivery: WebhookDelivery) -> Result:
        """Tries a delivery once, if the webhook's key may still see its content."""
        with self.db.read() as session:
            webhook = session.get(Webhook, delivery.webhook_id)
            if webhook is None or not (webhook.enabled or delivery.type == WEBHOOK_TEST):
                return Result(None, "disabled")
            if not may_see(session, webhook.key_id, delivery.dataset_id):
                return Result(None, "no-access")
        form, address = form_of(webhook.url)
        if form == "mail":
            return self.addresses.mailer(self.tls).send(address, delivery.id, delivery.payload)
        return self._post(webhook, delivery, form, address)

    def _post(self, webhook: Webhook, delivery: WebhookDelivery, form: Form, address: str) -> Result:
        try:
            secrets = [encryption.decrypt(self.keys, webhook.id, each) for each in _secrets(webhook)]
            target = parse(address)
            addresses = self.addresses.policy.addresses(target)
        except encryption.Unreadable:
            logger.error("cannot read the secret of %s: was webhook_key changed?", webhook.id)
            return Result(None, "secret-unreadable")
        except TargetRefused as refused:
            # One answer for all reasons: the caller must not learn if a name is unknown or leads to an inside address.
            logger.info("no target for %s: %s", webhook.id, refused.why)
            return Result(None, "target-refused")
        except InvalidRequest:  # registered under laxer rules
            return Result(None, "target-refused")
        body = canonical_json(slack_text(delivery.payload) if form == "slack" else delivery.payload)
        return send(target, addresses, signed(delivery.id, body, secrets, now()), body, self.tls)

    def _record(self, delivery: WebhookDelivery, result: Result) -> None:
        """Records a try's result, unless another try has begun since."""
        with self.db.write() as session:
            webhook = session.get(Webhook, delivery.webhook_id, with_for_update=True)
            if webhook is None:
                return
            then = self._then(delivery, result, now_there(session))
            updated: CursorResult[tuple[()]] = session.execute(  # type: ignore[assignment]
                update(WebhookDelivery)
                .where(WebhookDelivery.id == delivery.id, WebhookDelivery.claim == delivery.claim)
                .values(status_code=result.status_code, error=result.error, **then)
            )
            if updated.rowcount and delivery.type != WEBHOOK_TEST:
                self._judge(session, webhook, result)

    def _then(self, delivery: WebhookDelivery, result: Result, moment: datetime) -> dict[str, object]:
        """Returns a delivery's new columns after a try. `moment`: by the database's clock."""
        if result.error is None:
            return {"status": "delivered", "ended_at": now()}
        if result.error in ("gone", "no-access", "disabled"):
            return {"status": "dropped", "ended_at": now()}
        if delivery.type == WEBHOOK_TEST or delivery.attempts > len(WAITS_S):
            return {"status": "failed", "ended_at": now()}
        wait = WAITS_S[delivery.attempts - 1]
        return {"next_at": moment + timedelta(seconds=wait * (1 + JITTER * random.random()))}  # noqa: S311 - jitter

    def _judge(self, session: Session, webhook: Webhook, result: Result) -> None:
        """Disables the webhook if its receiver is gone, or if all deliveries have failed for days."""
        if result.error is None:
            webhook.failing_since = None
        elif result.error == "gone":
            disable(session, webhook, "gone")
        elif result.error not in ("no-access", "disabled"):
            webhook.failing_since = webhook.failing_since or now()
            if now() - webhook.failing_since > DISABLE_AFTER:
                disable(session, webhook, "failing")

    def _forget(self) -> None:
        """Deletes deliveries that ended long ago, once every FORGET_EVERY."""
        if now() < self._forget_at:
            return
        self._forget_at = now() + FORGET_EVERY
        with self.db.write() as session:
            session.execute(delete(WebhookDelivery).where(WebhookDelivery.ended_at < now() - FORGET_AFTER))


def disable(session: Session, webhook: Webhook, because: str) -> None:
    """Disables a webhook on the service's own decision. Its pending deliveries are dropped when they are due."""
    if webhook.enabled:
        webhook.enabled, webhook.disabled_because = False, because
        audit.record(session, "webhook.disabled", webhook.id, because=because)


def _deliveries(session: Session, webhook_event: WebhookEvent) -> list[WebhookDelivery]:
    """Builds one delivery for each webhook that wants this event and whose key may see it."""
    event, job = (
        session.get_one(JobEvent, (webhook_event.job_id, webhook_event.seq)),
        session.get_one(Job, webhook_event.job_id),
    )
    kind = ANNOUNCED[event.type]  # type: ignore[index]
    data = {
        "job": job.id,
        "dataset": job.dataset_id,
        "name": job.name,
        "status": STATUS.get(kind, job.status),
        "sequence": webhook_event.seq,
    }
    listening = select(Webhook).where(
        Webhook.enabled,
        # An event's time is its whole second: an event in the webhook's first second may be older than the webhook.
        Webhook.created_at < event.created_at + timedelta(seconds=1),
        or_(Webhook.dataset_id.is_(None), Webhook.dataset_id == job.dataset_id),
    )
    due = now_there(session)
    return [
        message(webhook, kind, job.dataset_id, event.created_at, dict(data), due=due)
        for webhook in session.scalars(listening)
        if kind in webhook.events and may_see(session, webhook.key_id, job.dataset_id)
    ]


def _secrets(webhook: Webhook) -> list[str]:
    """Returns the stored secrets to sign with: for a while after a rotation also the old one."""
    old = webhook.previous_secret
    still = old is not None and webhook.previous_until is not None and webhook.previous_until > now()
    return [webhook.secret, *([old] if still and old is not None else [])]
