"""`client.charges`: budget for what other systems compute from the same records."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

from scrimp.lists import ChargeCalls
from scrimp.models import Charge


class Use(TypedDict, total=False):
    """What a charge is for."""

    purpose: str | None
    permit: str | None


class Charges(ChargeCalls):
    """The charges of other systems: `client.charges`."""

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
        **use: Unpack[Use],
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
            use: `purpose` and `permit`: what it is for, where the data set's owner requires that.

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
        if use:
            body["use"] = use
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return Charge.model_validate(self.json("POST", "/v1/charges", json=body, headers=headers))
