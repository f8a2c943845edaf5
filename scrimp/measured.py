"""Charges for measurements of other libraries, whose claims are read out of the object: OpenDP's and Tumult Core's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, Unpack

from scrimp.charges import Use
from scrimp.client import Client
from scrimp.models import Charge

M = TypeVar("M")


@dataclass(frozen=True)
class OfMeasurement(Generic[M]):
    """Holds budget for a measurement: call it only after this has returned, then post the charge.

    Attributes:
        library: whose measurements they are, in words.
        claim_of: the claim that a measurement proves of itself.
    """

    library: str
    claim_of: Callable[..., dict[str, Any]]

    def __call__(
        self,
        client: Client,
        dataset: str,
        measurement: M,
        *,
        attested: str,
        unit: str = "example",
        records_per_unit: int = 1,
        account: str = "both",
        **use: Unpack[Use],
    ) -> Charge:
        """Holds budget for a measurement.

        Args:
            attested: which query this is, in words.
            unit, account, use: as `client.charges.reserve`.
            records_per_unit: as `claim_of`; of unit `user` the bound on a user's records.

        Raises:
            BudgetRefused: it does not fit; nothing was charged.
            ScrimpError: as `claim_of`.
        """
        claim = self.claim_of(measurement, records_per_unit=records_per_unit)
        words = f"{self.library}: {attested}"
        return client.charges.reserve(dataset, claim, unit=unit, attested=words, account=account, **use)
