"""Writes docs/openapi.json: `make openapi`. A test holds it against the service's own document."""

from __future__ import annotations

import tempfile
from pathlib import Path

from app.main import create_app
from app.secrets import ensure_secrets
from app.settings import Settings
from app.web.openapi import as_text

TARGET = Path(__file__).resolve().parents[1] / "docs" / "openapi.json"


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        settings = Settings(home=Path(home))
        ensure_secrets(settings)
        TARGET.write_text(as_text(create_app(settings).openapi()))
    print(f"wrote {TARGET}")


if __name__ == "__main__":
    main()
