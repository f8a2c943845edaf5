"""E-mails over a real SMTP server on loopback, and messages in Slack's form."""

from __future__ import annotations

import email
import json
import ssl
from collections.abc import Callable, Iterator
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from app.db.database import Database
from app.settings import Settings
from app.webhooks.addresses import Addresses
from app.webhooks.delivery import Deliverer
from app.webhooks.forms import form_of, slack_text, text_of
from app.webhooks.mail import Mailer, check_recipient
from app.webhooks.sending import Result
from core.errors import InvalidRequest
from tests.webhooks.conftest import Hook, Receiver, a_deliverer, deliveries, send_a_test, wait_over, webhook_of
from tests.webhooks.test_relay import self_signed

THRESHOLD: dict[str, Any] = {
    "type": "budget.threshold",
    "timestamp": "2026-01-31T12:00:00.000000Z",
    "data": {
        "dataset": "ds_1",
        "name": "imdb-reviews",
        "block": None,
        "budget": None,
        "account": "train",
        "threshold": 80,
        "share": 0.8125,
        "epsilon": 3.0,
        "delta": 1e-6,
    },
}


class Mailbox:
    """What the server took; `answer` is what it says to a message, `recipient` to a recipient."""

    def __init__(self) -> None:
        self.mails: list[Message] = []
        self.answer, self.recipient = "250 taken", "250 ok"
        self.encrypted: list[bool] = []
        self.users: list[str] = []

    async def handle_RCPT(  # noqa: N802 - aiosmtpd's name
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        envelope.rcpt_tos.append(address)
        return self.recipient

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        assert isinstance(envelope.content, bytes)
        self.mails.append(email.message_from_bytes(envelope.content))
        self.encrypted.append(session.ssl is not None)
        return self.answer

    def authenticate(self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any) -> AuthResult:
        assert isinstance(data, LoginPassword)
        self.users.append(data.login.decode())
        return AuthResult(success=data.password == b"a password", handled=False)


class OnAnyPort(Controller):
    """A server on a port that the system chooses: it knocks at that port once to see itself started."""

    def _trigger_server(self) -> None:
        assert self.server is not None
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()


Serve = Callable[..., int]


@pytest.fixture
def mailbox() -> Mailbox:
    return Mailbox()


@pytest.fixture
def serve(mailbox: Mailbox) -> Iterator[Serve]:
    """Starts SMTP servers; returns their ports."""
    running: list[Controller] = []

    def start(**more: Any) -> int:
        controller = OnAnyPort(mailbox, hostname="127.0.0.1", port=0, server_hostname="localhost", **more)
        controller.start()
        running.append(controller)
        return int(controller.port)

    yield start
    for controller in running:
        controller.stop()


def tls(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context for `localhost`, and a client's that trusts it."""
    certificate, key = self_signed(folder, "localhost")
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    server.load_cert_chain(certificate, key)
    client.load_verify_locations(certificate)
    return server, client


def with_smtp(settings: Settings, port: int, **more: Any) -> Settings:
    changes = {
        "smtp_host": "127.0.0.1",
        "smtp_port": port,
        "smtp_security": "none",
        "smtp_from": "scrimp@service.example",
        "smtp_recipients": ["example.org", "one@other.example"],
    }
    return settings.model_copy(update=changes | more)


def test_an_e_mail_arrives(db: Database, settings: Settings, hook: Hook, mailbox: Mailbox, serve: Serve) -> None:
    deliverer = a_deliverer(db, with_smtp(settings, serve()))
    webhook = hook(url="mailto:ann@example.org")
    send_a_test(db, webhook)
    assert deliverer.deliver_one()
    (delivery,) = deliveries(db)
    assert (delivery.status, delivery.status_code, delivery.error) == ("delivered", 250, None)
    (mail,) = mailbox.mails
    assert (mail["From"], mail["To"]) == ("scrimp@service.example", "ann@example.org")
    assert mail["Message-ID"] == f"<{delivery.id}@service.example>" and mail["Auto-Submitted"] == "auto-generated"
    assert mail["Subject"].startswith("Scrimp: webhook.test") and webhook.id in mail.get_payload()


def test_a_server_that_refuses_is_tried_again(
    db: Database, settings: Settings, hook: Hook, mailbox: Mailbox, serve: Serve, submit: Callable[..., str]
) -> None:
    deliverer = a_deliverer(db, with_smtp(settings, serve()))
    hook(url="mailto:ann@example.org", events=["job.queued"])
    submit()
    deliverer.fan_out()
    for prepare, code in (({"answer": "451 later"}, 451), ({"answer": "250 ok", "recipient": "550 no such box"}, 550)):
        vars(mailbox).update(prepare)
        assert deliverer.deliver_one()
        (delivery,) = deliveries(db)
        assert (delivery.status, delivery.status_code, delivery.error) == ("pending", code, "refused")
        wait_over(db)
    vars(mailbox).update(answer="250 ok", recipient="250 ok")
    assert deliverer.deliver_one()
    assert deliveries(db)[0].status == "delivered"
    assert len({mail["Message-ID"] for mail in mailbox.mails}) == 1  # each try has the same


def test_a_recipient_that_is_no_longer_allowed_gets_nothing(
    db: Database, settings: Settings, hook: Hook, mailbox: Mailbox, serve: Serve
) -> None:
    send_a_test(db, hook(url="mailto:ann@example.org"))
    assert a_deliverer(db, with_smtp(settings, serve(), smtp_recipients=["else.example"])).deliver_one()
    assert deliveries(db)[0].error == "target-refused" and mailbox.mails == []


def test_no_server_is_there(settings: Settings) -> None:
    mailer = Mailer(with_smtp(settings, 1), ssl.create_default_context())
    assert mailer.send("ann@example.org", "msg_1", THRESHOLD) == Result(None, "not-connected")


def test_tls_is_not_left_out(settings: Settings, mailbox: Mailbox, serve: Serve, tmp_path: Path) -> None:
    """Against a server without STARTTLS, nothing is sent; nor under a certificate that nobody vouches for."""
    trusted = ssl.create_default_context()
    plain = with_smtp(settings, serve(), smtp_security="starttls")
    assert Mailer(plain, trusted).send("ann@example.org", "msg_1", THRESHOLD) == Result(None, "tls-failed")
    server, known = tls(tmp_path)
    secured = with_smtp(settings, serve(tls_context=server), smtp_security="starttls", smtp_host="localhost")
    assert Mailer(secured, trusted).send("ann@example.org", "msg_2", THRESHOLD) == Result(None, "tls-failed")
    assert mailbox.mails == []
    assert Mailer(secured, known).send("ann@example.org", "msg_3", THRESHOLD) == Result(250, None)
    assert mailbox.encrypted == [True]


def test_it_signs_in(settings: Settings, mailbox: Mailbox, serve: Serve, tmp_path: Path) -> None:
    password = tmp_path / "password"
    server, trusted = tls(tmp_path)
    port = serve(tls_context=server, authenticator=mailbox.authenticate, auth_required=True)
    named = {"smtp_host": "localhost", "smtp_security": "starttls", "smtp_user": "scrimp"}
    known = with_smtp(settings, port, smtp_password_file=password, **named)
    for text, result in (("a password\n", Result(250, None)), ("another", Result(535, "refused"))):
        password.write_text(text)
        assert Mailer(known, trusted).send("ann@example.org", "msg_1", THRESHOLD) == result
    assert "scrimp" in mailbox.users and len(mailbox.mails) == 1


@pytest.mark.parametrize(
    "recipient",
    [
        "ann@evil.example",
        "ann@sub.example.org",
        "two@other.example",
        "ann@example.org,bob@evil.example",
        "ann@example.org?cc=bob@evil.example",
        "ann@example.org\r\nBcc: bob@evil.example",
        "ann@EXAMPLE.org",
        '"ann@evil.example"@example.org',
        "=?utf-8?q?bob=40evil.example=2c?=@example.org",
        "=?utf-8?q?bob=0d=0aBcc=3a?=@example.org",
        "<ann@example.org>",
        "ann%40evil.example@example.org@evil.example",
        "@example.org",
        "ann@",
        "",
        "a" * 250 + "@example.org",
    ],
)
def test_other_recipients_are_refused(settings: Settings, recipient: str) -> None:
    with pytest.raises(InvalidRequest):
        Addresses.of(with_smtp(settings, 25)).check(f"mailto:{recipient}")


def test_allowed_recipients(settings: Settings) -> None:
    for recipient in ("ann@example.org", "ann+x@example.org", "one@other.example"):
        check_recipient(with_smtp(settings, 25), recipient)
        with pytest.raises(InvalidRequest):  # without a server
            check_recipient(with_smtp(settings, 25, smtp_host=""), recipient)


def test_slack_s_form(db: Database, settings: Settings, hook: Hook, receiver: Receiver, deliverer: Deliverer) -> None:
    webhook = hook(url="slack+" + receiver.url())
    send_a_test(db, webhook)
    assert deliverer.deliver_one()
    (message,) = receiver.received()
    assert json.dumps(message).count("webhook.test") == 1
    assert webhook_of(db, webhook.id).url.startswith("slack+http") and deliveries(db)[0].status == "delivered"
    with pytest.raises(InvalidRequest):  # the same rules as without the mark
        Addresses.of(settings).check("slack+https://127.0.0.1/x")


def test_words() -> None:
    assert text_of(THRESHOLD) == (
        "80 % of the cap of imdb-reviews is reached: 81.2 % of ε = 3 (δ = 1e-06) is spent or held, "
        "on the train account."
    )
    of_team = THRESHOLD | {"data": THRESHOLD["data"] | {"budget": "team", "block": "may"}}
    assert "80 % of the budget team of imdb-reviews, block may is reached" in text_of(of_team)
    called = {"type": "job.failed", "timestamp": "", "data": {"job": "job_1", "name": "<!channel> & co"}}
    assert slack_text(called) == {"text": "job.failed: job job_1, name &lt;!channel&gt; &amp; co"}
    assert form_of("https://a.example") == ("json", "https://a.example")
