"""`client.charges`: budget for what other systems compute from the same records."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scrimp.models import Charge
from scrimp.rows import Pages
from scrimp.wire import in_path

if TYPE_CHECKING:
    from scrimp.client import Client


class Charges:
    """The charges of other systems: `client.charges`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __call__(self, dataset: str | None = None, status: str | None = None) -> Pages[Charge]:
        """Yields charges, newest first.

        Args:
            dataset: a data set's name or id; None: all that this key may see.
            status: `held`, `posted` or `voided`.
        """
        return self._client.pages("/v1/charges", Charge, dataset=dataset, status=status)

    def get(self, charge_id: str) -> Charge:
        """Shows a charge."""
        return self._one("GET", in_path(charge_id))

    def reserve(
        self,
        dataset: str,
        mechanism: Mapping[str, Any],
        *,
        unit: str,
        attested: str,
        account: str = "both",
        blocks: Sequence[str] | None = None,
        idempotency_key: str | None = None,
    ) -> Charge:
        """Holds budget for what another system is about to compute. It may answer only after this has returned.

        Args:
            mechanism: its privacy, of all that it will answer, such as `{"kind": "laplace", "scale": 10.0}`.
            unit: whom it protects: `example` or `user`.
            attested: which system and query this is, in words.
            account: the part that it reads: `train`, `holdout` or `both`.
            blocks: the labels of the blocks that it reads, and no others; None: every open one is charged.
            idempotency_key: the same key with the same request returns the same charge while it is held; random if not
                given.

        Raises:
            BudgetRefused: it does not fit; nothing was charged.
        """
        body: dict[str, Any] = {
            "dataset": dataset,
            "account": account,
            "mechanism": dict(mechanism),
            "unit": unit,
            "attested": attested,
        }
        if blocks is not None:
            body["blocks"] = list(blocks)
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return Charge.model_validate(self._client.json("POST", "/v1/charges", json=body, headers=headers))

    def post(self, charge_id: str) -> Charge:
        """Spends a charge: the other system has answered something."""
        return self._one("POST", f"{in_path(charge_id)}/post")

    def void(self, charge_id: str, reason: str) -> Charge:
        """Gives a charge back, only if the other system has answered nothing under it."""
        return self._one("POST", f"{in_path(charge_id)}/void", json={"reason": reason})

    def _one(self, method: str, path: str, **sent: Any) -> Charge:
        return Charge.model_validate(self._client.json(method, f"/v1/charges/{path}", **sent))
