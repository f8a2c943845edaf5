"""Where the service of this machine listens and keeps its first admin key, from the service's own variables."""

from __future__ import annotations

import os
from pathlib import Path

DEFAULT_PORT = "8100"


def home() -> Path:
    """The service's folder: SCRIMP_HOME, or ~/.scrimp."""
    return Path(os.environ.get("SCRIMP_HOME") or Path.home() / ".scrimp")


def url() -> str:
    """The address at which the service listens: SCRIMP_HOST and SCRIMP_PORT, or http://127.0.0.1:8100."""
    host = os.environ.get("SCRIMP_HOST") or "127.0.0.1"
    return f"http://{f'[{host}]' if ':' in host else host}:{os.environ.get('SCRIMP_PORT') or DEFAULT_PORT}"


def admin_key_path() -> Path:
    """The file of the first admin key: SCRIMP_ADMIN_KEY_FILE, or HOME/admin.key."""
    return Path(os.environ.get("SCRIMP_ADMIN_KEY_FILE") or home() / "admin.key")
