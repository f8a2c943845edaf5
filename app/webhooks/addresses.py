"""Checks a webhook's address when it is chosen: by its form (app.webhooks.forms), a target or a mailbox."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from app.settings import Settings
from app.webhooks.forms import form_of
from app.webhooks.mail import Mailer, check_recipient
from app.webhooks.targets import Policy


@dataclass(frozen=True)
class Addresses:
    """The addresses that the settings allow."""

    policy: Policy
    settings: Settings

    @classmethod
    def of(cls, settings: Settings) -> Addresses:
        """Builds it from the settings."""
        return cls(Policy.of(settings), settings)

    def mailer(self, tls: ssl.SSLContext) -> Mailer:
        """What sends e-mails to them."""
        return Mailer(self.settings, tls)

    def check(self, address: str) -> None:
        """Checks an address.

        Raises:
            InvalidRequest: it is malformed or not allowed.
        """
        form, plain = form_of(address)
        if form == "mail":
            check_recipient(self.settings, plain)
        else:
            self.policy.check(plain)
