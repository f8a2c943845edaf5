"""Few files are parsed at once: each process may take gigabytes."""

from __future__ import annotations

import threading

from tests.datasets.conftest import CSV, Api, spec


def test_a_registration_that_finds_no_free_parser_is_told_to_come_again(api: Api) -> None:
    parsers = api.client.app.state.parsers
    parsers._settings = api.settings.model_copy(update={"parse_wait_s": 0.05})
    for _ in range(api.settings.max_parsers):
        assert parsers._free.acquire(blocking=False)
    busy = api.upload(spec("waits"), CSV)
    assert (busy.status_code, busy.headers["Retry-After"]) == (503, "5")
    assert "try again" in busy.json()["detail"]
    parsers._settings = api.settings
    threading.Timer(0.2, parsers._free.release).start()
    assert api.upload(spec("waits"), CSV).status_code == 201
    assert parsers._free.acquire(blocking=False), "its place is given back"
