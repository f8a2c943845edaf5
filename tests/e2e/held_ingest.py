"""An ingest worker for tests that waits for the end of each file that it reads until the file that its argument names
is there. What parses in a process of its own is not held, and its parts come; the reading's lease goes on.
"""

from __future__ import annotations

import sys
from pathlib import Path

from app import ingest
from app.sandbox.limited import HelperProcess, Interrupted, Watch

RECEIVED, GO = HelperProcess._received, Path(sys.argv[1])


def _held(self: HelperProcess, deadline: float, watch: Watch) -> bytes:
    """What the helper process answers, once it may be heard. A watch ends the call meanwhile, as ever."""
    while not GO.exists():
        if watch.stop.wait(0.02):
            raise Interrupted
    return RECEIVED(self, deadline, watch)


if __name__ == "__main__":
    HelperProcess._received = _held  # type: ignore[method-assign]
    ingest.main()
