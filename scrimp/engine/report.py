"""What a run cost and how it ran: what a certificate of the service says, without a signature."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from core.contracts.base import Epsilon
from core.privacy.events import Event
from core.privacy.slot_numbers import TAIL_BITS
from scrimp.engine.draws import Places
from scrimp.engine.model import TYPES, Tried
from scrimp.engine.pure import account, event_of

UNSIGNED = "nobody signed this report: it says what this process computed, to whoever trusts it"
COUNTED = "the number of records was not declared: it was counted in the data, and is published by this report"


@dataclass(frozen=True)
class Report:
    """Public numbers alone.

    Attributes:
        epsilon: with its δ, accountant, unit and relation.
        steps: so many are charged. `lost_steps` of them ran and left nothing, as a run was resumed.
        noise_multiplier, max_grad_norm, sample_rate, expected_batch_size: σ, C, q and L.
        records, places, rows_per_step: the number that is declared, N, and R.
        counted: the number of records was not declared.
        sensitivity_slack: the noise is larger by it.
        rows_per_pass, unlisted: P, and why it is 1, if it is.
        formed: the layers without a rule.
    """

    epsilon: Epsilon
    steps: int
    lost_steps: int
    noise_multiplier: float
    max_grad_norm: float
    sample_rate: float
    expected_batch_size: int
    records: int
    counted: bool
    places: int
    rows_per_step: int
    sensitivity_slack: float
    rows_per_pass: int
    unlisted: tuple[str, ...]
    formed: tuple[str, ...]
    trained_numbers: int
    passes: str
    torch: str

    @property
    def event(self) -> Event:
        """What the run is to `account`, to compose it with others."""
        return event_of(self.sample_rate, self.noise_multiplier, self.steps)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the numbers do not cover."""
        tail = (
            f"δ grows by at most {self.steps} · 2^-{TAIL_BITS}, for draws beyond a step's rows, and by AES's advantage"
        )
        return (UNSIGNED, tail, *((COUNTED,) if self.counted else ()))

    def document(self) -> str:
        """The report as JSON."""
        members = asdict(self) | {
            "kind": "scrimp-engine-report",
            "signed": False,
            "epsilon": self.epsilon.model_dump(mode="json"),
            "event": self.event.model_dump(mode="json"),
            "notes": self.notes,
        }
        return json.dumps(members, indent=2, ensure_ascii=False, sort_keys=True)

    def save(self, path: str | Path) -> None:
        """Writes the report as JSON."""
        Path(path).write_text(self.document() + "\n", encoding="utf-8")

    def __str__(self) -> str:
        """In a line."""
        epsilon = self.epsilon
        text = f"ε = {epsilon.value:.4g} at δ = {epsilon.delta:g} ({epsilon.accountant}, add or remove one record)"
        return f"{text}: {self.steps} steps at σ = {self.noise_multiplier:.4g}, q = {self.sample_rate:.4g}; unsigned"


@dataclass(frozen=True)
class Charge:
    """What is charged: σ, C and a number of steps, of which some were lost."""

    noise_multiplier: float
    max_grad_norm: float
    steps: int
    lost: int = 0


def report_of(charge: Charge, delta: float, places: Places, tried: Tried, *, counted: bool) -> Report:
    """The report of so many steps."""
    return Report(
        epsilon=account(event_of(places.sample_rate, charge.noise_multiplier, charge.steps), delta=delta),
        steps=charge.steps,
        lost_steps=charge.lost,
        noise_multiplier=charge.noise_multiplier,
        max_grad_norm=charge.max_grad_norm,
        sample_rate=places.sample_rate,
        expected_batch_size=places.expected_batch_size,
        records=places.records,
        counted=counted,
        places=places.slots,
        rows_per_step=places.rows,
        sensitivity_slack=tried.slack,
        rows_per_pass=tried.rows_per_pass,
        unlisted=tried.unlisted,
        formed=tried.engine.fallbacks,
        trained_numbers=tried.numbers,
        passes=TYPES[tried.dtype],
        torch=torch.__version__,
    )
