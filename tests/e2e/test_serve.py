"""`scrimp serve` as a process: its first line and its lock.

That a killed API comes back is in test_events.py, that nothing outlives a kill in test_spine.py, how it ends in
conftest.py (`served`).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from tests.e2e.conftest import Service


def test_it_says_where_it_is_and_runs_once_in_a_home(served: Callable[[str], Service]) -> None:
    service = served("sqlite")
    key = service.home / "admin.key"
    first = service.output.read_text().splitlines()[0]
    assert first == f"Scrimp at http://127.0.0.1:{service.port}  (admin key in {key})"
    assert key.stat().st_mode & 0o777 == 0o600
    assert service.home.stat().st_mode & 0o777 == 0o700

    line = [sys.executable, "-m", "scrimp.cli", "serve", "--home", str(service.home), "--port", str(service.port + 1)]
    second = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)
    assert second.returncode == 1
    assert str(service.home / "serve.lock") in second.stderr
    assert "Traceback" not in second.stderr
