"""/v1/safeguards: what protects the service, as its own settings say it; the annex of a DPIA is written from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter

from app.db.row_view import Whole
from app.keys.auth import OwnerKey
from app.lifecycle.queue.presence import living
from app.settings import Settings
from app.web.deps import Db, ServiceSettings
from app.web.route_operation import Operation
from core import leaves
from core.contracts.base import Document
from core.contracts.sandbox import Sandbox

router = APIRouter(prefix="/v1/safeguards", tags=["system"])
DAY = 24.0  # hours


class Safeguard(Document):
    """One protection."""

    subject: str
    in_force: bool
    says: str
    settings: list[str]  # the environment variables that decide it


class Safeguards(Document, Whole[Safeguard]):
    """The protections that settings decide, in a fixed order."""


@router.get("")
@Operation("What protects the service.", audience="owners", leaves=leaves.FLEET, command="safeguards")
def list_safeguards(db: Db, settings: ServiceSettings, caller: OwnerKey) -> Safeguards:
    """Lists what protects the service as its own settings say it. They are not signed. No host, path or secret is
    told."""
    with db.read() as session:
        sandboxes = [worker.sandbox for worker in living(session, settings.lease_s)]
    return Safeguards(items=[*safeguards(settings), _isolation(sandboxes)])


def safeguards(settings: Settings) -> Iterator[Safeguard]:
    """Those that settings alone decide."""
    yield from _of_secrets(settings)
    yield from _of_ledgers(settings)
    yield from _of_time(settings)
    yield _safeguard(
        "another user for training",
        settings.attempt_uid is not None,
        "training runs as a user of its own",
        "training runs as the worker's user",
        "attempt_uid",
    )


def _safeguard(subject: str, in_force: bool, yes: str, no: str, *names: str) -> Safeguard:
    return Safeguard(
        subject=subject,
        in_force=in_force,
        says=yes if in_force else no,
        settings=[f"SCRIMP_{name.upper()}" for name in names],
    )


def _of_secrets(settings: Settings) -> Iterator[Safeguard]:
    yield _safeguard(
        "encryption of stored data",
        settings.encrypt_parts,
        "what is stored of data sets is sealed under a key of the service",
        "what is stored of data sets is as safe as the disk that it lies on",
        "encrypt_parts",
    )
    yield _safeguard(
        "encryption in transit",
        settings.behind_tls,
        "a proxy ends TLS before the API, and cookies are for TLS alone",
        "the API does not know of TLS before it",
        "behind_tls",
    )
    yield _safeguard(
        "secrets apart",
        settings.secrets_dir is not None,
        "keys are files that an operator provides to the processes that need them",
        "keys lie in the service's own folder, beside its data",
        "secrets_dir",
    )


def _of_ledgers(settings: Settings) -> Iterator[Safeguard]:
    yield _safeguard(
        "ledger kept twice",
        bool(settings.heads_dir or settings.heads_store),
        "the ledgers' heads are recorded outside the service's folder: a restored backup is found",
        "the ledgers' heads are recorded in the service's own folder: a backup of all of it rewinds both",
        "heads_dir",
        "heads_store",
    )
    yield _safeguard(
        "witnesses",
        bool(settings.witnesses) and settings.witness_required,
        f"{len(settings.witnesses)} witnesses must have seen a ledger's newest checkpoint before anything runs on it",
        f"{len(settings.witnesses)} witnesses are told of checkpoints; nothing waits for them",
        "witnesses",
        "witness_required",
    )
    every = f"each ledger is verified in full every {settings.ledger_check_hours:g} hours"
    yield _safeguard(
        "verification of ledgers",
        settings.ledger_check_hours <= DAY,
        every,
        f"{every}, less than once a day",
        "ledger_check_hours",
    )


def _of_time(settings: Settings) -> Iterator[Safeguard]:
    yield _safeguard(
        "deletion of model files",
        settings.artifacts_kept_days is not None,
        f"a job's files are deleted {settings.artifacts_kept_days or 0:g} days after its end",
        "a job's files are kept until somebody deletes them",
        "artifacts_kept_days",
    )
    yield _safeguard(
        "deletion of data",
        settings.content_kept_days is not None,
        f"a data set's content is deleted {settings.content_kept_days or 0:g} days after its last job",
        "a data set's content is kept until its owner deletes it",
        "content_kept_days",
    )
    lasts = f"{settings.session_hours:g} hours"
    yield _safeguard(
        "end of sign-ins",
        settings.session_hours <= DAY,
        f"a sign-in of the dashboard ends after {lasts}",
        f"a sign-in of the dashboard lasts {lasts}, more than a day",
        "session_hours",
    )


def _isolation(sandboxes: list[Any]) -> Safeguard:
    """What the living workers have tested, of each its stored `Sandbox` or None."""
    parsed = [None if each is None else Sandbox.model_validate(each) for each in sandboxes]
    isolated = [each for each in parsed if each and each.seccomp and each.landlock and each.network != "host"]
    if not parsed:
        says = "no worker lives, so none has tested its sandbox"
    elif len(isolated) < len(parsed):
        says = f"of {len(parsed)} living workers {len(isolated)} have tested the whole sandbox: see `scrimp workers`"
    else:
        says = "each living worker has tested its sandbox: few system calls, no network, no files but the job's own"
    return Safeguard(
        subject="isolation of training",
        in_force=bool(isolated) and len(isolated) == len(parsed),
        says=says,
        settings=[],
    )
