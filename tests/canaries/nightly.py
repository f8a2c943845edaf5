"""The audit of all kinds: `make nightly`. Writes docs/reports/audit.md; ends with 1 where a claim does not hold.

python -m tests.canaries.nightly [CANARIES]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.e2e.conftest import Service

TARGET = Path(__file__).resolve().parents[2] / "docs" / "reports" / "audit.md"
CANARIES = 40_000


def main() -> int:
    """Over a service of its own, so that the audit's data sets stay nowhere."""
    canaries = sys.argv[1] if len(sys.argv) > 1 else str(CANARIES)
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder) / "home").start()
        try:
            line = ["scrimp.cli", "audit", "privacy", "--kinds", "all", "--canaries", canaries, "--report", str(TARGET)]
            settings = {"SCRIMP_HOME": str(service.home), "SCRIMP_PORT": str(service.port)}
            status = subprocess.run([sys.executable, "-m", *line], env=os.environ | settings, check=False).returncode
        finally:
            service.stop()
    print(f"wrote {TARGET}")
    return status


if __name__ == "__main__":
    sys.exit(main())
