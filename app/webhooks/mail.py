"""Sends messages as e-mail, over the operator's SMTP server, to recipients that the operator allows.

Any holder of a key chooses the recipient: without the operator's list the service could be made to write to strangers.
"""

from __future__ import annotations

import re
import smtplib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import formatdate
from typing import Any

from app.settings import Settings
from app.webhooks.forms import text_of
from app.webhooks.sending import Result
from core.errors import InvalidRequest

# No quoted local parts, no comments, no lists: one mailbox, which no parser reads in two ways. No question mark either:
# `=?utf-8?q?…?=` is decoded in a header, to any mailboxes and lines.
MAILBOX = re.compile(
    r"[A-Za-z0-9!#$%&'*+/=^_{|}~-]+(\.[A-Za-z0-9!#$%&'*+/=^_{|}~-]+)*@(?P<domain>[a-z0-9-]+(\.[a-z0-9-]+)+)"
)
LONGEST = 254
TIMEOUT_S = 5.0  # of one exchange; a message has about eight


@dataclass(frozen=True)
class Mailer:
    """The operator's SMTP server."""

    settings: Settings
    tls: ssl.SSLContext

    def send(self, recipient: str, message_id: str, payload: Mapping[str, Any]) -> Result:
        """Sends one message and returns the result. Never raises for the server's errors."""
        settings = self.settings
        try:
            check_recipient(settings, recipient)
        except InvalidRequest:  # registered under laxer rules
            return Result(None, "target-refused")
        secured = settings.smtp_security == "tls"
        host, port = settings.smtp_host, settings.smtp_port
        own_name = _domain(settings)  # by itself smtplib looks this machine up in the DNS, without a deadline
        try:
            # The class for TLS takes the context; the other one has none.
            with (
                smtplib.SMTP_SSL(host, port, own_name, timeout=TIMEOUT_S, context=self.tls)
                if secured
                else smtplib.SMTP(host, port, own_name, timeout=TIMEOUT_S)
            ) as server:
                if settings.smtp_security == "starttls":
                    server.starttls(context=self.tls)
                if settings.smtp_user and settings.smtp_password_file is not None:
                    server.login(settings.smtp_user, settings.smtp_password_file.read_text().strip())
                server.send_message(self._mail(recipient, message_id, payload))
        except (OSError, smtplib.SMTPException) as failure:  # smtplib's errors are OSErrors, too
            return _failed(failure)
        return Result(250, None)

    def _mail(self, recipient: str, message_id: str, payload: Mapping[str, Any]) -> EmailMessage:
        """The e-mail. Every try has the same Message-ID, so that a mailbox shows a repeated one once."""
        text = text_of(payload)
        mail = EmailMessage()
        mail["From"], mail["To"] = self.settings.smtp_from, recipient
        mail["Subject"] = "Scrimp: " + " ".join(text.split())[:150]
        mail["Message-ID"] = f"<{message_id}@{_domain(self.settings)}>"
        mail["Date"] = formatdate()
        mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: no answers of absence
        mail.set_content(f"{text}\n\n{payload['timestamp']}\n")
        return mail


def _domain(settings: Settings) -> str:
    return settings.smtp_from.rpartition("@")[2]


def _failed(failure: Exception) -> Result:
    match failure:
        case smtplib.SMTPRecipientsRefused():
            return Result(next(code for code, _ in failure.recipients.values()), "refused")
        case smtplib.SMTPResponseException():
            return Result(failure.smtp_code, "refused")
        case ssl.SSLError() | smtplib.SMTPNotSupportedError():  # without STARTTLS nothing is sent
            return Result(None, "tls-failed")
        case TimeoutError():
            return Result(None, "timeout")
        case _:
            return Result(None, "not-connected")


def check_recipient(settings: Settings, recipient: str) -> None:
    """Checks a recipient at registration, and again at each try.

    Raises:
        InvalidRequest: there is no SMTP server, it is not a plain mailbox, or the operator allows no such recipient.
    """
    match = MAILBOX.fullmatch(recipient) if len(recipient) <= LONGEST else None
    if match is None:
        raise InvalidRequest.at(
            "/url", "give one plain mailbox in ASCII, its domain in lower case: mailto:ann@example.org"
        )
    allowed = settings.smtp_recipients if settings.smtp_host else []
    if recipient not in allowed and match["domain"] not in allowed:
        raise InvalidRequest.at("/url", "this service sends no e-mail there: an operator allows recipients by setting")
