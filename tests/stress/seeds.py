"""`make nightly-seeds`: what draws examples, with fresh ones. Ends with 1 where an example failed.

Adds a row to benchmarks/reports/seeds.md. Examples that fail are kept, and tried first by the next night.
"""

from __future__ import annotations

import secrets
import sys
from datetime import UTC, datetime

from tests.stress.run import ROOT, append, commit, once

REPORT = ROOT / "benchmarks" / "reports" / "seeds.md"
HEAD = """# Tests of drawn examples, with fresh seeds

`make nightly-seeds`. By day these tests draw the same examples each time; here `--hypothesis-profile night` draws
others. Those that fail are kept in `.hypothesis/examples` (`EXAMPLES` of tests/conftest.py), and the next run tries
them first. `pytest --hypothesis-profile night --hypothesis-seed SEED` repeats a night.

| date | commit | seed | passed | failed | minutes |
|---|---|---|---|---|---|
"""


def main() -> int:
    seed = secrets.randbelow(10**9)
    chosen = ["-m", "hypothesis", "--hypothesis-profile", "night", "--hypothesis-seed", str(seed)]
    run = once(["-n", "3", *chosen, *sys.argv[1:]], quiet=False)
    failures = [f"* `{test}`" for test in run.failures]
    row = [datetime.now(UTC).date(), commit(), seed, run.passed, len(failures), f"{run.took_s / 60:.0f}"]
    append(REPORT, HEAD, row, failures)
    print(f"wrote {REPORT}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
