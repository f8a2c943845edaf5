"""The error of a stored part that is not what was stored. Loads no numpy: the API, which reads no part, has it too."""

from __future__ import annotations

from core.errors import PermanentError


class DataDamagedError(PermanentError):
    """A stored part is missing or differs from the registered one."""

    code = "data-damaged"
