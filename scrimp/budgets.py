"""`client.budgets`: what keys and teams may use of a data set's cap, and requests for more."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from scrimp.errors import NotFound
from scrimp.lists import BudgetCalls
from scrimp.models import Budget, BudgetRequest
from scrimp.wire import dataset_path, in_path

REQUESTS = "/v1/budget-requests"


class Budgets(BudgetCalls):
    """The budgets within caps: `client.budgets`."""

    def set(
        self,
        dataset: str,
        name: str,
        epsilon: float,
        keys: Sequence[str] | None = None,
        *,
        version: int | None = None,
    ) -> Budget:
        """Sets what the keys of a budget may use together.

        Args:
            name: a key's id, or a team's name.
            epsilon: converted once into the filter's units, which add up.
            keys: the ids of all keys that share it from now on: one that is left out is bounded by the cap alone. None:
                the same as now, or the key that a new one is named after.
            version: the version that this is for; None: as it is now.

        Raises:
            ApiError: 412 if it was changed since that version.
        """
        body = {"epsilon": epsilon, "keys": None if keys is None else list(keys)}
        answer = self.json("PUT", _path(dataset, name), json=body, headers=self._match(dataset, name, version))
        return Budget.model_validate(answer)

    def close(self, dataset: str, name: str, *, version: int | None = None) -> None:
        """Ends a budget: the cap alone bounds its keys. What it spent stays spent."""
        self.json("DELETE", _path(dataset, name), headers=self._match(dataset, name, version))

    def request(
        self, dataset: str, epsilon: float, reason: str, *, expires_at: datetime | None = None
    ) -> BudgetRequest:
        """Asks a data set's owner for a budget, or for a larger one.

        Args:
            expires_at: when the request ends by itself, with its zone; None: in 14 days.
        """
        ends = None if expires_at is None else expires_at.isoformat()
        body = {"dataset": dataset, "epsilon": epsilon, "reason": reason, "expires_at": ends}
        return BudgetRequest.model_validate(self.json("POST", REQUESTS, json=body))

    def approve(
        self, request_id: str, answer: str | None = None, *, seen: BudgetRequest | None = None
    ) -> BudgetRequest:
        """Gives a key what it asked for.

        Args:
            seen: the request as you saw it, with its budget; None: as it is now.

        Raises:
            ApiError: 412 if the request is about another budget now, or if that was changed.
        """
        path = f"{REQUESTS}/{in_path(request_id)}"
        if seen is None:
            seen = BudgetRequest.model_validate(self.json("GET", path))
        headers = {"If-Match": f'"{seen.budget}.{seen.budget_version}"'}
        sent = self.json("POST", f"{path}/approve", json={"answer": answer}, headers=headers)
        return BudgetRequest.model_validate(sent)

    def _match(self, dataset: str, name: str, version: int | None) -> dict[str, Any]:
        if version is None:
            try:
                version = self.get(dataset, name).version
            except NotFound:
                return {}
        return {"If-Match": f'"{version}"'}


def _path(dataset: str, name: str) -> str:
    return f"{dataset_path(dataset)}/budgets/{in_path(name)}"
