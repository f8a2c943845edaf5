"""A process that claims jobs against others. Apart from the test, so that it loads little."""

from __future__ import annotations

import multiprocessing
from multiprocessing.synchronize import Barrier, Semaphore
from typing import Any

from app.db.database import Database
from app.lifecycle.claims import Claim, claim


def contend(url: str, jobs: list[str], rounds: int, go: Semaphore, together: Barrier, won: Any) -> None:
    """Each time that it may `go`, claims every job at the same moment as the others; says which claims it got.

    Who got one stands aside from the next: so two or more of them get some, whoever is the fastest.
    """
    db, worker = Database(url), multiprocessing.current_process().name
    for _ in range(rounds):
        go.acquire()
        claims: list[Claim] = []
        for before, job_id in zip([None, *jobs], jobs, strict=False):
            together.wait(300)
            if claims and claims[-1].job_id == before:
                continue
            with db.write() as session:
                held = claim(session, job_id, worker, 60.0)
            if held is not None:
                claims.append(held)
        won.put(claims)
    db.close()
