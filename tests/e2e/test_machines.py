"""The real service on a machine that offers less: jobs run, and the list of workers says what is off."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import SERVED, Service, csv_spec, job_of, until, write_csv
from tests.e2e.test_spine import finished, submit
from tests.worker import second_user as users
from worker.attempt.confined import default_memory_bytes, probe

# A filter sees the length of a write and no path. No other write of the service has the length of this user's map.
USER = 4_294_967_001
UBUNTU = f"""
import os, sys
from tests.worker import standins
standins.ubuntu(["{USER} {USER} 1"])
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture
def on_ubuntu() -> Iterator[Service]:
    users.require_root()
    with users.home_of_service(USER) as home:
        under = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", sys.executable, "-c", UBUNTU]
        made = Service(home, SERVED | {"HOME": str(home)}, under)
        yield made.start()
        assert made.stop() == 0


@pytest.mark.nightly  # by day tests/worker/test_sandbox.py seals an attempt there; this is a whole job
@pytest.mark.slow
def test_where_maps_of_users_cannot_be_written_jobs_run_without_namespaces(on_ubuntu: Service, tmp_path: Path) -> None:
    """Ubuntu since 23.10: each job failed `internal` while /readyz said ready."""
    service = on_ubuntu
    (worker,) = until(lambda: service.get("/v1/workers")["items"])
    here = probe(default_memory_bytes())
    if here.network != "loopback":
        pytest.skip("no namespaces here: nothing can be refused")
    assert worker["sandbox"] == here.model_dump() | {"network": "none"}
    with service.client() as client:
        dataset = client.create_dataset(csv_spec("ubuntu"), write_csv(tmp_path / "u.csv")).id
    ended = finished(service, submit(service, job_of(dataset)))
    assert ended["status"] == "succeeded", ended["failure"]
    found = service.get("/readyz")
    assert found["status"] == "ready" and set(found["checks"].values()) == {"ok"}
