"""Canaries that the model trains on: synthetic records, sequences or texts.

The engine clips them as it clips records, in passes of their own: no record's rounding, mask, view or count sees a
canary. Masks and views of canaries are public (`Plan.begin_public_passes`). Under the records' key the canary at place
i would have those of the record at place i, and one record more, which moves the others, would change all such pairs.
The sum of the drawn canaries is a function of public numbers, the sampler's key and the parameters. Where users are
protected, a canary is a user whose k records are all the same, so that together they may weigh C.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.contracts.slots import PartSlots
from core.errors import PrivacyError
from core.privacy.canary_bound import coins, decoys
from core.privacy.slot_numbers import rows_of_step
from worker.clipping.engine import Clip
from worker.data.passes import padded
from worker.data.records import Records
from worker.data.secret_slots import Slotted
from worker.messages import Start
from worker.models.base import Parameters
from worker.statistics.base import Prepare
from worker.training.audit_records import Draws, form_of
from worker.training.canaries import Canaries, Coordinates
from worker.training.plan import Plan

LEFT_AT_ONCE = 4096  # canaries whose losses are computed together


class PlantedRecords:
    """Synthetic records of the job's own form.

    Args:
        plan: the job's; its engine clips them.
        every: one record for each canary, also for those that are out.
        inside: bool (canaries,), the coins.
        per_unit: k.
    """

    def __init__(self, plan: Plan, every: Records, inside: NDArray[np.bool_], per_unit: int) -> None:
        self._plan, self._every, self._per_unit = plan, every, per_unit
        self._included = np.flatnonzero(inside)
        slots = PartSlots(units=len(inside), rows=len(inside) * per_unit)
        self._rows = rows_of_step(slots, plan.sample_rate, per_unit)  # of a Poisson step

    @property
    def units(self) -> int:
        """See Canaries."""
        return len(self._included)

    @property
    def records(self) -> int:
        """See Canaries."""
        return len(self._every) * self._per_unit

    def initial(self, like: object) -> Parameters:
        """See Canaries.initial: none."""
        return {}

    def add_to(self, total: Parameters, model: Parameters, drawn: NDArray[np.int64] | None, clip: Clip) -> None:
        """See Canaries.add_to."""
        plan = self._plan
        numbers = np.repeat(self._included if drawn is None else self._included[drawn], self._per_unit)
        places = numbers if drawn is None else padded(numbers, self._rows)
        batch = Slotted(self._every, places).own(plan.numerics.rows_per_pass, plan.ranks)
        for name, value in plan.engine.private_sum(model, batch, clip).items():
            total[name] += value

    def prepare(self, transform: Prepare) -> None:
        """See Canaries.prepare."""
        self._every = transform(self._every)

    def left(self, first: Parameters, last: Parameters) -> Tensor:
        """See Canaries.left: each canary's score.

        It is by how much its loss falls if one tensor moves from the first parameters towards the last, less the mean
        of all canaries with its label. Each number moves by the median at most: where all records pull, it moves far,
        and says little of one. The tensor is the largest on which losses depend: there canaries share least.
        """
        losses_first, scores = self._losses(first), torch.zeros(len(self._every), dtype=torch.float64)
        for name in sorted(first, key=lambda name: -first[name].numel()):
            step = last[name].double() - first[name]
            scale = step.abs().nan_to_num().median()
            scores = losses_first - self._losses(first | {name: first[name] + step.clamp(-scale, scale)})
            if scores.any():
                break
        return torch.nan_to_num(less_mean(scores, self._every.labels), nan=0.0, posinf=0.0, neginf=0.0).float()

    def _losses(self, parameters: Parameters) -> Tensor:
        model, losses = self._plan.model, [torch.zeros(0, dtype=torch.float64)]
        for start in range(0, len(self._every), LEFT_AT_ONCE):
            piece = self._every.select(np.arange(start, min(start + LEFT_AT_ONCE, len(self._every))))
            for outputs, batch in model.evaluated(parameters, piece):
                losses.append(batch.only(model.losses(outputs, batch.records.labels).double()).cpu())
        return torch.cat(losses)


def less_mean(scores: Tensor, labels: Tensor) -> Tensor:
    """Each score less the mean of those with its label: the model may like a class better.

    >>> less_mean(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 1]))
    tensor([-1.,  1.,  0.])
    """
    _, places, counts = labels.cpu().unique(return_inverse=True, return_counts=True)
    sums = scores.new_zeros(len(counts)).index_add_(0, places, scores)
    means: Tensor = (sums / counts)[places]
    return scores - means


def canaries_of(start: Start, plan: Plan) -> Canaries | None:
    """The canaries that a job asks for.

    Raises:
        PrivacyError: the job claims no privacy, so there is nothing to audit.
    """
    audit = start.spec.audit
    if audit is None:
        return None
    if start.mechanism is None:
        raise PrivacyError("canaries audit a mechanism, and this job has none")
    inside = coins(start.job_id, audit.canaries)
    if audit.kind == "gradients":
        return Coordinates(np.flatnonzero(inside), audit.canaries + decoys(audit.canaries))
    form = form_of(plan.model, start.spec.model, start.features, sparse=plan.sparse)
    every = form.records(Draws(start.job_id, audit.canaries))
    return PlantedRecords(plan, every, inside, start.mechanism.training.records_per_unit)
