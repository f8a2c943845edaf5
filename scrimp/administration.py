"""What admins, owners and operators ask of a service: keys, signing keys, the audit log, webhooks, workers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from scrimp.errors import NotAllowed, ScrimpError
from scrimp.lists import Lists
from scrimp.models import (
    NewKey,
    NewSecret,
)
from scrimp.wire import in_path


class Administration(Lists):
    """A part of `Client`."""

    # Keys

    def create_key(
        self,
        name: str,
        role: str,
        *,
        expires_at: datetime | None = None,
        requests_per_minute: int | None = None,
        max_queued_jobs: int | None = None,
        max_running_jobs: int | None = None,
        max_job_s: int | None = None,
        max_stored_bytes: int | None = None,
        weight: int | None = None,
        max_priority: int | None = None,
    ) -> NewKey:
        """Creates a key; its token is in this response and nowhere else.

        Args:
            expires_at: with its zone; None: never.
            requests_per_minute, max_queued_jobs: None: the service's settings apply.
            max_running_jobs: None: as many as there are workers.
            max_job_s: how long one of its jobs may run; None: the service's settings apply.
            max_stored_bytes: of its data sets and uploads; None: the service's settings apply.
            weight: 1 to 100, how many turns its jobs have for each of a key of weight 1; None: 1.
            max_priority: -10 to 10, the highest priority of its jobs among themselves; None: 10.
        """
        body = {
            "name": name,
            "role": role,
            "expires_at": None if expires_at is None else expires_at.isoformat(),
            "requests_per_minute": requests_per_minute,
            "max_queued_jobs": max_queued_jobs,
            "max_running_jobs": max_running_jobs,
            "max_job_s": max_job_s,
            "max_stored_bytes": max_stored_bytes,
            "weight": weight,
            "max_priority": max_priority,
        }
        return NewKey.model_validate(self.json("POST", "/v1/keys", json=body))

    def rotate_key(self, key_id: str | None = None, overlap_s: int = 0) -> NewKey:
        """Gives a key a new token; its grants and jobs stay. This client keeps using its own token.

        Args:
            key_id: None: the key that this client sends.
            overlap_s: how long the old token still works.
        """
        path = f"/v1/keys/{in_path(key_id or self.own_key().id)}/rotate"
        return NewKey.model_validate(self.json("POST", path, json={"overlap_s": overlap_s}))

    def key_id_of(self, name_or_id: str) -> str:
        """The id of a key, for its id, or for admins its name if no other key that is in use has it.

        Raises:
            ScrimpError: no key, or several, have this name, or the caller may not look it up.
        """
        if name_or_id.startswith("key_"):
            return name_or_id
        try:
            ids = [each.id for each in self.keys() if each.name == name_or_id and each.revoked_at is None]
        except NotAllowed as error:
            if error.status != 403:
                raise
            advice = f"only an admin's key finds a key by its name, {name_or_id!r}"
            raise ScrimpError(f"{advice}: give its id, key_…; its holder sees it with `scrimp keys self`") from error
        if len(ids) != 1:
            several = f"{len(ids)} keys are called {name_or_id!r}: give an id: {', '.join(ids[:5])}"
            raise ScrimpError(several if ids else f"no key is called {name_or_id!r}")
        return ids[0]

    # Webhooks

    def create_webhook(
        self, url: str, events: Sequence[str], *, dataset: str | None = None, description: str = ""
    ) -> NewSecret:
        """Creates a webhook; the secret that signs its messages is in this response and nowhere else.

        Args:
            events: such as `job.succeeded`.
            dataset: only jobs on this one (name or id).
        """
        body = {"url": url, "events": list(events), "dataset": dataset, "description": description}
        return NewSecret.model_validate(self.json("POST", "/v1/webhooks", json=body))
