"""What `scrimp.engine` raises."""

from __future__ import annotations

from core.errors import PrivacyError


class MisusedError(PrivacyError):
    """The engine is used in a way for which its account would be wrong. Nothing was released by the call."""
