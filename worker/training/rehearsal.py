"""One whole step on random public records, before anything private: it needs the memory that a private step needs.

A GPU's memory is checked this way: passes that do not fit are made smaller before the first private pass, and never
later. Nothing here is private, and nothing is released.
"""

from __future__ import annotations

import torch

from worker.data.placed import passes_on, placed
from worker.models.next_item import NextItem
from worker.noise.gaussian import GaussianRelease
from worker.optimizers.base import Observing
from worker.optimizers.pieces import flattened
from worker.training.plan import Plan
from worker.training.self_test import PUBLIC_KEY, random_records
from worker.training.steps import Means, take

STEP = 1


def rehearse(plan: Plan) -> None:
    """Runs one step of every kind of pass that the job has, on records from a fixed seed.

    Raises:
        torch.OutOfMemoryError: it does not fit on the plan's device.
    """
    generator = torch.Generator().manual_seed(0)
    parameters = flattened(placed(plan.model.init(PUBLIC_KEY), plan.device))
    if isinstance(plan.model, NextItem) and plan.model.effective_errors is not None:
        # Example errors: the job's own are known only after its items are counted.
        plan.model.effective_errors.restore(0.01, torch.full((plan.model.items + 1,), 0.02))
    records = random_records(plan.model, plan.numerics.rows_per_pass, generator, sparse=plan.sparse)
    release = GaussianRelease(
        PUBLIC_KEY, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=plan.expected_batch_size
    )
    state = plan.optimizer.init(parameters)
    if isinstance(plan.optimizer, Observing):
        state = plan.optimizer.observe(parameters, state)  # of a gradient's names and shapes
    release.prepare(parameters, STEP)
    means = Means(plan.engine, release, plan.begin_public_passes)
    take(STEP, records, (parameters, state), plan.norms(STEP), plan.optimizer, means)
    if plan.scores.points > 0:
        evaluator = plan.model.evaluator(parameters)
        for batch in passes_on(plan.device, records, plan.numerics.rows_per_pass, torch.float64):
            evaluator(batch.records)
