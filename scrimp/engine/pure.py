"""The parts of a step as functions: clip and add, noise, account. A loop of one's own can be made of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn

from core.contracts.base import Epsilon
from core.privacy.accounting import epsilon_of
from core.privacy.calibration import noise_multiplier as calibrated
from core.privacy.events import Event, composed, noisy_sums
from scrimp.engine.draws import Keys
from scrimp.engine.errors import MisusedError
from scrimp.engine.model import LoopSettings, Loss, Sums, trained, tried
from scrimp.engine.own_records import records_of
from worker.data.secret_slots import Slotted
from worker.models.dropout import without_dropout
from worker.noise.gaussian import GaussianRelease, NoisedGradient
from worker.noise.secret_places import RandomOrder


@dataclass(frozen=True)
class PrivateSum:
    """A sum over records. PRIVATE: it is not noised.

    Attributes:
        values: float64 tensors.
        max_grad_norm: C.
        slack: what rounding may add: a record more or less changes all values together by at most C · slack.
    """

    values: dict[str, Tensor] = field(repr=False)
    max_grad_norm: float
    slack: float = 1.0


def clipped_sum(
    model: nn.Module,
    loss: Loss,
    records: Any,
    *,
    max_grad_norm: float,
    rows: int,
    physical_batch_size: int | Literal["auto"] = "auto",
) -> PrivateSum:
    """Σ_i g_i · min(1, C/‖g_i‖) over all records, in the names and shapes of the trained parameters. Dropout is off.

    Records get secret rows of their own. Passes, grid and slack follow from the number of rows alone.

    Args:
        records: a tuple of tensors, the target last, or a data set of such tuples.
        max_grad_norm: C.
        rows: R, a public bound on the number of records.

    Raises:
        MisusedError: there are more records than rows.

    >>> import torch
    >>> model = nn.Linear(2, 1, bias=False)
    >>> data = torch.tensor([[3.0, 4.0], [0.3, 0.4]]), torch.zeros(2, 1)
    >>> total = clipped_sum(model, lambda output, target: (output - target).sum(1), data, max_grad_norm=1.0, rows=8)
    >>> [round(each, 6) for each in total.values["weight"].flatten().tolist()]
    [0.9, 1.2]
    """
    data = records_of(records)
    if len(data) > rows:
        raise MisusedError("there are more records than rows: a public bound on their number is needed")
    ready = tried(
        model, loss, data.template, Sums(rows, LoopSettings(max_grad_norm, physical_batch_size=physical_batch_size))
    )
    order = RandomOrder(Keys().of("order")).of(1, rows)
    with without_dropout(ready.module):
        values = ready.engine.private_sum(trained(model), Slotted.injected(data, order, rows))
    return PrivateSum(values, max_grad_norm, ready.slack)


def release(private_sum: PrivateSum, *, noise_multiplier: float, expected_batch_size: int = 1) -> NoisedGradient:
    """(Σ + N(0, (σC · slack)²)) / L, rounded correctly: the noise is of fresh keys from the system, used once.

    Args:
        noise_multiplier: σ.
        expected_batch_size: L. Public: never the number of records that were drawn.

    >>> import torch
    >>> total = PrivateSum({"w": torch.zeros(10_000).double()}, max_grad_norm=0.5)
    >>> 0.9 < float(release(total, noise_multiplier=2.0)["w"].std()) < 1.1
    True
    """
    noise = GaussianRelease(
        Keys().of("noise"),
        noise_multiplier=noise_multiplier,
        max_grad_norm=private_sum.max_grad_norm,
        expected_batch_size=expected_batch_size,
        sensitivity_slack=private_sum.slack,
    )
    return noise.release(private_sum.values, step=1)


def event_of(sample_rate: float, noise_multiplier: float, steps: int) -> Event:
    """What `steps` noisy sums over Poisson samples are to an accountant; a rate of 1 takes every record.

    >>> event_of(1.0, 2.0, 3).model_dump(mode="json")["count"]
    3
    """
    return noisy_sums(sample_rate, noise_multiplier, steps)


def account(*events: Event, delta: float) -> Epsilon:
    """ε of everything together, by the accountant of record: exact without sampling, else never too small.

    Events that were chosen after others' results compose so only if this was fixed in advance.

    >>> one = event_of(sample_rate=1.0, noise_multiplier=2.0, steps=1)
    >>> round(account(one, delta=1e-5).value, 3), round(account(one, one, delta=1e-5).value, 3)
    (1.993, 2.943)
    """
    if not events:
        raise MisusedError("give at least one event")
    return epsilon_of(events[0] if len(events) == 1 else composed(events), delta)


def noise_multiplier(*, target_epsilon: float, delta: float, sample_rate: float, steps: int) -> float:
    """The least σ found for which `account` gives at most the target.

    >>> sigma = noise_multiplier(target_epsilon=2.0, delta=1e-5, sample_rate=1.0, steps=1)
    >>> account(event_of(1.0, sigma, 1), delta=1e-5).value <= 2.0
    True
    """
    return calibrated(target_epsilon, delta, sample_rate, steps)
